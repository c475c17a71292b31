"""Tests of public guesses."""

import math

import numpy as np
import pytest

from fedsmp_tff import sparsifiers
from fedsmp_tff.post_processing import prediction
from tests.support import releases as releases_lib


class TestPrediction:

  @pytest.mark.parametrize('options', [{'decay': 1}, {'share': -1}, {'share': math.nan}])
  def test_what_is_refused(self, options):
    with pytest.raises(ValueError, match=f'`{next(iter(options))}` must be'):
      prediction.Prediction(**options)

  def test_as_by_hand(self):
    option, releases = prediction.Prediction(decay=0.7, share=0.6), releases_lib.some()
    expected = np.zeros(releases_lib.DIM)
    for j in range(releases_lib.DIM):
      heard = [value for r in releases for i, value in zip(r.coordinates, r.values) if i == j]
      weights = 0.7 ** np.arange(len(heard))[::-1]
      expected[j] = 0.6 * np.dot(weights, heard) / weights.sum() if heard else 0
    everywhere = np.arange(releases_lib.DIM)
    memory = releases_lib.remembered(option, releases)
    guess = option.choose(
        sparsifiers.Known(releases_lib.SHAPES, memory=memory, coordinates=everywhere)
    )
    np.testing.assert_allclose(guess, expected, rtol=1e-5, atol=1e-6)
