"""Tests of one round's steps, called one after the other."""

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff import fed_smp
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.post_processing import filters
from tests.support import one_round
from tests.support import processes

_CLIENTS = 3


def _one_round(steps, state, updates):
  message = state.message()
  reports = [
      steps.report(tf.constant(update), message, tf.constant([7, i], tf.int64))
      for i, update in enumerate(updates)
  ]
  return steps.finish(steps.sum(reports), state)


@pytest.mark.parametrize('noise', ['gaussian', 'skellam'])
@pytest.mark.parametrize('post_processing', [(), (filters.Momentum(0.5),)])
def test_the_steps_make_the_aggregator_s_rounds(noise, post_processing):
  options = dict(clipping_norm=1.0, noise=noise)
  updates = one_round.updates(_CLIENTS)
  steps = fed_smp.FedSmpRound(
      sparsifiers.RandK(num=5), mechanism_lib.Mechanism(_CLIENTS, **options), [(one_round.DIM,)],
      post_processing,
  )
  process = processes.factory(
      sparsifiers.RandK(num=5), _CLIENTS, post_processing, seed=3, **options
  ).create(one_round.VECTOR)
  state, process_state = steps.choose(steps.initial_state(seed=3)), process.initialize()
  # Integers are rounded at random, by less than a step each.
  atol = 1e-6 if noise == 'gaussian' else 2 * steps.channel.step * np.sqrt(6)
  for _ in range(2):
    np.testing.assert_array_equal(
        state.choice.coordinates, process_state.choice.coordinates
    )
    update, state, measurements = _one_round(steps, state, updates)
    state = steps.choose(state)
    output = process.next(process_state, updates)
    process_state = output.state
    np.testing.assert_allclose(update, output.result, atol=atol)
    assert list(measurements) == list(output.measurements) == steps.measurements
  assert int(state.round_num) == 2


def test_without_a_seed_masks_are_fresh():
  steps = fed_smp.FedSmpRound(
      sparsifiers.RandK(num=5), mechanism_lib.Mechanism(_CLIENTS), [(one_round.DIM,)]
  )
  seeds = {tuple(steps.initial_state(None).seed.numpy()) for _ in range(3)}
  assert len(seeds) == 3
