"""Tests of one round's steps, called one after the other: choices, the round, what is remembered."""

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff import fed_smp
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.post_processing import released_topk
from tests.support import one_round
from tests.support import processes
from tests.support import releases

_CLIENTS = 3


def _one_round(steps, state, updates):
  message = state.message()
  reports = [
      steps.report(tf.constant(update), message, tf.constant([7, i], tf.int64))
      for i, update in enumerate(updates)
  ]
  return steps.finish(steps.sum(reports), state)


class TestRounds:

  @pytest.mark.parametrize('noise', ['gaussian', 'discrete_gaussian'])
  @pytest.mark.parametrize('sparsifier', [
      sparsifiers.RandK(num=5), released_topk.ReleasedTopK(num=5)
  ])
  def test_the_steps_make_the_aggregator_s_rounds(self, noise, sparsifier):
    options = dict(clipping_norm=1.0, noise=noise)
    updates = one_round.updates(_CLIENTS)
    steps = fed_smp.FedSmpRound(
        sparsifier, mechanism_lib.Mechanism(_CLIENTS, **options), [(one_round.DIM,)]
    )
    process = processes.factory(sparsifier, _CLIENTS, seed=3, **options).create(one_round.VECTOR)
    state, process_state = steps.choose(steps.initial_state(seed=3)), process.initialize()
    # Integers are rounded at random, by less than a step each.
    atol = 1e-6 if noise == 'gaussian' else 2 * steps.channel.step * np.sqrt(6)
    for _ in range(2):
      np.testing.assert_array_equal(state.coordinates, process_state.coordinates)
      update, state, measurements = _one_round(steps, state, updates)
      state = steps.choose(state)
      output = process.next(process_state, updates)
      process_state = output.state
      np.testing.assert_allclose(update, output.result, atol=atol)
      assert list(measurements) == list(output.measurements) == steps.measurements
    assert int(state.round_num) == 2

  def test_without_a_seed_masks_are_fresh(self):
    steps = fed_smp.FedSmpRound(
        sparsifiers.RandK(num=5), mechanism_lib.Mechanism(_CLIENTS), [(one_round.DIM,)]
    )
    seeds = {tuple(steps.initial_state(None).seed.numpy()) for _ in range(3)}
    assert len(seeds) == 3


class TestChoices:

  def _steps(self, sparsifier=sparsifiers.RandK(num=4), **options):  # noqa: B008
    mechanism = mechanism_lib.Mechanism(
        _CLIENTS, clipping_norm=100.0, noise_multiplier=0.0, min_reporting=2, **options
    )
    return fed_smp.FedSmpRound(sparsifier, mechanism, releases.SHAPES)

  def _updates(self, num=_CLIENTS, seed=0):
    return one_round.updates(num, dim=releases.DIM, seed=seed)

  def test_state_has_room_for_what_is_chosen_and_no_more(self):
    state = self._steps().initial_state(1)
    assert state.coordinates.shape == [4] and state.memory == ()
    state = self._steps(sparsifiers.Dense()).initial_state(1)
    assert state.coordinates.shape == [0] and state.memory == ()
    state = self._steps(released_topk.ReleasedTopK(num=4)).initial_state(1)
    assert [part.shape for part in state.memory] == [[releases.DIM], [releases.DIM], []]

  def test_same_seed_and_round_choose_the_same_coordinates(self):
    steps = self._steps()
    state = steps.initial_state(1)
    one, again = (steps.choose(state).coordinates.numpy() for _ in range(2))
    np.testing.assert_array_equal(one, again)
    rounds = [
        tuple(steps.choose(state._replace(round_num=tf.constant(t))).coordinates.numpy())
        for t in range(8)
    ]
    assert len(set(rounds)) > 4

  @pytest.mark.parametrize('held', [1, 3])
  def test_coordinates_are_kept_between_the_rounds_that_choose(self, held):
    steps = self._steps(sparsifiers.RandK(num=4, mask_rounds=held))
    state = steps.initial_state(1)
    masks = []
    for t in range(7):
      state = steps.choose(state._replace(round_num=tf.constant(t)))
      masks.append(tuple(state.coordinates.numpy()))
      # What is due follows from the round, but a caller may say so.
      others = steps.choose(state, due=tf.constant(False)).coordinates
      np.testing.assert_array_equal(others, state.coordinates)
    # Of the 210 masks two in a row may be equal: not with this seed.
    assert [t for t in range(1, 7) if masks[t] != masks[t - 1]] == list(range(held, 7, held))
    fresh = self._steps()
    for t in range(0, 7, held):
      chosen = fresh.choose(fresh.initial_state(1)._replace(round_num=tf.constant(t)))
      assert masks[t] == tuple(chosen.coordinates.numpy())

  def test_update_is_the_release_at_its_coordinates(self):
    steps = self._steps(released_topk.ReleasedTopK(num=4))
    state = steps.choose(steps.initial_state(1))
    updates = self._updates()
    update, after, _ = _one_round(steps, state, updates)
    expected, kept = np.zeros(releases.DIM), state.coordinates.numpy()
    expected[kept] = np.mean(updates, axis=0)[kept]
    np.testing.assert_allclose(update, expected, atol=1e-5)
    assert not np.any(update.numpy()[np.setdiff1d(np.arange(releases.DIM), kept)])
    # The next round's are not yet chosen.
    np.testing.assert_array_equal(after.coordinates, state.coordinates)

  def test_nothing_moves_and_nothing_is_remembered_without_a_release(self):
    steps = self._steps(released_topk.ReleasedTopK(num=4))
    start = steps.choose(steps.initial_state(1))
    _, state, _ = _one_round(steps, start, self._updates())
    # It would see a release: the first one changed all parts but the noise, of which there is none.
    assert np.any(state.memory.total != start.memory.total)
    assert np.any(state.memory.visits != start.memory.visits)
    state = steps.choose(state)
    update, after, measurements = _one_round(steps, state, self._updates(num=1, seed=1))
    assert measurements['released'] == 0 and not np.any(update)
    tf.nest.map_structure(np.testing.assert_array_equal, after.memory, state.memory)
    update, after, measurements = _one_round(steps, state, self._updates(num=2, seed=1))
    assert measurements['released'] == 1 and np.any(update)
    assert np.any(after.memory.total != state.memory.total)

  def test_a_sparsifier_of_public_data_names_what_it_needs(self):
    topk = sparsifiers.TopK(num=4, public_examples=(np.zeros((1, 2)), np.zeros(1)))
    steps = self._steps(topk)
    state = steps.initial_state(1)
    with pytest.raises(ValueError, match='`TopK` chooses coordinates by training on public data'):
      steps.choose(state)
    update = tf.constant([0.0, 5, 0, -6, 0, 0, 7, 0, 0, -8])
    found = steps.choose(state, lambda seed: update).coordinates
    assert found.numpy().tolist() == [1, 3, 6, 9]
