"""Tests of public factors."""


import numpy as np
import pytest

from fedsmp_tff import sparsifiers
from fedsmp_tff.post_processing import preconditioning
from tests.support import releases as releases_lib


class TestPreconditioner:

  @pytest.mark.parametrize(
      'options', [{'decay': 0}, {'exponent': -1}, {'exponent': 2}]
  )
  def test_what_is_refused(self, options):
    with pytest.raises(ValueError, match=f'`{next(iter(options))}` must be'):
      preconditioning.Preconditioner(**options)

  def test_nothing_before_the_first_release(self):
    option = preconditioning.Preconditioner()
    factors = option.choose(
        sparsifiers.Known(releases_lib.SHAPES, memory=option.initialize(releases_lib.SHAPES), coordinates=np.array([1, 7]))
    )
    np.testing.assert_array_equal(factors, [1, 1])

  def test_least_noise_for_the_same_norm(self):
    option = preconditioning.Preconditioner()
    values = np.array([1, 2, 3, 4, 1, 1, 1, 6, 2, 0.5])
    everywhere = np.arange(releases_lib.DIM, dtype=np.int32)
    memory = option.next(
        option.initialize(releases_lib.SHAPES), releases_lib.release(everywhere, values, np.zeros(releases_lib.DIM))
    )
    factors = option.choose(
        sparsifiers.Known(releases_lib.SHAPES, memory=memory, coordinates=everywhere)
    ).numpy()
    assert np.sum((factors * values) ** 2) == pytest.approx(np.sum(values**2), rel=1e-5)
    # By Cauchy and Schwarz.
    least = np.sum(np.abs(values)) ** 2 / (releases_lib.DIM * np.sum(values**2))
    assert np.mean(factors**-2.0) == pytest.approx(least, rel=1e-4)

  def test_factors_are_bounded(self):
    option = preconditioning.Preconditioner(exponent=1.0)
    values = np.array([1e-9, 1e9] + [1.0] * 8)
    everywhere = np.arange(releases_lib.DIM, dtype=np.int32)
    release = releases_lib.release(everywhere, values, np.full(releases_lib.DIM, 1e-3))
    memory = releases_lib.remembered(option, [release])
    factors = option.choose(
        sparsifiers.Known(releases_lib.SHAPES, memory=memory, coordinates=everywhere)
    ).numpy()
    assert np.all(np.isfinite(factors)) and factors.min() > 0
    assert factors.max() / factors.min() <= 100 * (1 + 1e-5)
