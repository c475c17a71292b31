"""Tests of what the server chooses for a round, and of what it remembers."""

import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import state as state_lib
from fedsmp_tff.post_processing import filters
from fedsmp_tff.post_processing import preconditioning
from fedsmp_tff.post_processing import prediction
from fedsmp_tff.post_processing import released_topk
from fedsmp_tff.post_processing import server_choices
from tests.support import releases

_SEED = tf.constant([1, 2], tf.int64)
_ONE = tf.constant(1.0, tf.float64)


def _release(state, values, valid=True):
  values = tf.constant(values, tf.float64)
  return state_lib.Release(
      state.choice.coordinates, values, tf.zeros_like(values), tf.constant(valid)
  )


class TestByKind:

  def test_names_each(self):
    members = [filters.Momentum(), preconditioning.Preconditioner(), prediction.Prediction()]
    assert server_choices.by_kind(members) == dict(zip(('filter', 'factors', 'guess'), members))
    assert server_choices.by_kind(()) == {}

  def test_refuses_two_of_one_kind(self):
    with pytest.raises(ValueError, match='at most one Filter. Found Low.* and Momentum'):
      server_choices.by_kind([filters.LowPass(), prediction.Prediction(), filters.Momentum()])

  @pytest.mark.parametrize('member', [
      'momentum', filters.Momentum, released_topk.ReleasedTopK(0.5), sparsifiers.RandK(0.5),
  ])
  def test_refuses_what_is_of_no_kind(self, member):
    with pytest.raises(TypeError, match='must be a list of `Factors`, `Guess` and `Filter`'):
      server_choices.by_kind([member])

  def test_refuses_what_is_no_list(self):
    with pytest.raises(TypeError, match='`post_processing` must be a list'):
      server_choices.by_kind(filters.LowPass())


class TestServerChoices:

  def _choices(self, *members, sparsifier=sparsifiers.RandK(num=4)):  # noqa: B008
    return server_choices.ServerChoices(sparsifier, releases.SHAPES, members)

  def test_state_has_room_for_what_is_chosen_and_no_more(self):
    plain = self._choices().initial_state(_SEED, _ONE)
    assert [len(part) for part in plain.choice] == [4, 0, 0] and not plain.memory
    full = self._choices(prediction.Prediction(), preconditioning.Preconditioner())
    state = full.initial_state(_SEED, _ONE)
    assert [len(part) for part in state.choice] == [4, 4, 4]
    assert list(state.memory) == ['factors', 'guess']

  def test_same_seed_and_round_choose_the_same_coordinates(self):
    choices = self._choices()
    state = choices.initial_state(_SEED, _ONE)
    one, again = (choices.choose(state).choice.coordinates.numpy() for _ in range(2))
    np.testing.assert_array_equal(one, again)
    rounds = [
        tuple(choices.choose(state._replace(round_num=tf.constant(t))).choice.coordinates.numpy())
        for t in range(8)
    ]
    assert len(set(rounds)) > 4

  def test_update_is_the_release_at_its_coordinates(self):
    choices = self._choices()
    state = choices.choose(choices.initial_state(_SEED, _ONE))
    update, _ = choices.update(_release(state, [1.0, 2.0, 3.0, 4.0]), state)
    expected = np.zeros(releases.DIM)
    expected[state.choice.coordinates] = [1, 2, 3, 4]
    np.testing.assert_array_equal(update, expected)

  def test_a_filter_makes_the_update_and_remembers(self):
    choices = self._choices(filters.Momentum(0.5), sparsifier=sparsifiers.Dense())
    state = choices.choose(choices.initial_state(_SEED, _ONE))
    ones = np.ones(releases.DIM)
    release = _release(state, ones)._replace(coordinates=tf.range(releases.DIM))
    for expected in (1.0, 1.5, 1.75):
      update, state = choices.update(release, state)
      np.testing.assert_allclose(update, expected * ones)

  def test_a_filter_has_public_randomness_and_no_public_update(self):
    found = []

    class Looks(filters.Momentum):

      def choose(self, known):
        found.append(known)
        return super().choose(known)

    choices = self._choices(Looks())
    state = choices.choose(choices.initial_state(_SEED, _ONE))
    choices.update(_release(state, np.arange(4.0)), state)
    assert found[0].seed.shape == [2]
    with pytest.raises(ValueError, match='training on public data'):
      found[0].public_update()

  def test_nothing_moves_and_nothing_is_remembered_without_a_release(self):
    choices = self._choices(filters.Momentum(0.5), prediction.Prediction())
    state = choices.choose(choices.initial_state(_SEED, _ONE))
    _, state = choices.update(_release(state, [1.0, 2.0, 3.0, 4.0]), state)
    update, after = choices.update(_release(state, [5.0] * 4, valid=False), state)
    assert not np.any(update)
    tf.nest.map_structure(np.testing.assert_array_equal, after.memory, state.memory)

  def test_a_sparsifier_of_public_data_names_what_it_needs(self):
    topk = sparsifiers.TopK(num=4, public_examples=(np.zeros((1, 2)), np.zeros(1)))
    choices = self._choices(sparsifier=topk)
    state = choices.initial_state(_SEED, _ONE)
    with pytest.raises(ValueError, match='`TopK` chooses coordinates by training on public data'):
      choices.choose(state)
    update = tf.constant([0.0, 5, 0, -6, 0, 0, 7, 0, 0, -8])
    found = choices.choose(state, lambda seed: update).choice.coordinates
    assert found.numpy().tolist() == [1, 3, 6, 9]
