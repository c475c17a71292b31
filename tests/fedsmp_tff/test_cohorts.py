"""Tests of the datasets of a round's participants."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import cohorts
from fedsmp_tff.privacy import sampling

_NUM = 5


def _examples(number):
  x = np.full([number + 1, 3], number, np.float32)
  return {'x': x, 'y': np.full([number + 1], number, np.int32)}


def _datasets():
  return [tf.data.Dataset.from_tensor_slices(_examples(i)).batch(2) for i in range(_NUM)]


def _client_data(ids=('e', 'b', 'c', 'd', 'a')):
  """Client i of the list is `ids[i]`, whose ids are in no order."""
  by_id = {name: _examples(number) for number, name in enumerate(ids)}
  data = tff.simulation.datasets.TestClientData(by_id)
  return data.preprocess(lambda dataset: dataset.batch(2))


def _labels(dataset):
  return [int(label) for batch in dataset for label in batch['y']]


class TestCohort:

  @pytest.mark.parametrize('make', [_datasets, lambda: tuple(_datasets()), _client_data])
  def test_participants_have_their_own_examples_and_dummies_none(self, make):
    data, sampler = make(), sampling.PoissonSampler(_NUM, 2, _NUM, seed=1)
    expected = _datasets()
    for draw in range(8):
      participants = sampler.sample(draw)
      found = fedsmp_tff.cohort(participants, data)
      assert len(found) == len(participants) == _NUM
      for number, dataset in zip(participants, found):
        assert _labels(dataset) == ([number] * (number + 1) if number >= 0 else [])
        assert dataset.element_spec == expected[0].element_spec

  @pytest.mark.parametrize('make', [_datasets, _client_data])
  def test_rounds_share_their_datasets(self, make):
    data, participants = make(), [3, -_NUM - 1, -_NUM - 2]
    first, again = (fedsmp_tff.cohort(participants, data) for _ in range(2))
    assert [a is b for a, b in zip(first, again)] == [True] * 3
    assert first[1] is first[2]

  def test_another_client_data_has_its_own_clients(self):
    for ids, number in ((('a', 'b'), 0), (('b', 'a'), 1)):
      (dataset,) = fedsmp_tff.cohort([ids.index('a')], _client_data(ids))
      assert _labels(dataset) == [number] * (number + 1)

  def test_kept_datasets_are_bounded(self):
    for _ in range(3 * cohorts._MAX_KEPT):
      fedsmp_tff.cohort([0, -_NUM - 1], _client_data())
    assert cohorts._kept_clients.cache_info().currsize == cohorts._MAX_KEPT
    assert cohorts._empty.cache_info().currsize == cohorts._MAX_KEPT

  @pytest.mark.parametrize('make', [_datasets, _client_data])
  def test_a_sampler_of_another_population_is_refused(self, make):
    data = make()
    for population in (_NUM - 1, _NUM + 1):
      sampler = sampling.PoissonSampler(population, 1, population, seed=1)
      # A smaller population shows in its dummies, a larger one in its clients.
      draws = [sampler.sample(draw) for draw in range(40)]
      wrong = -_NUM if population < _NUM else _NUM
      bad = next(draw for draw in draws if wrong in draw)
      with pytest.raises(
          ValueError, match=rf'has 5 clients, but participant {wrong} is of .*population. Sample'
      ):
        fedsmp_tff.cohort(bad, data)
    with pytest.raises(ValueError, match='participant -1 is'):
      fedsmp_tff.cohort([-1], data)

  def test_a_client_that_participates_twice_is_refused(self):
    data = [tf.data.Dataset.range(i) for i in range(10)]
    for client_data in (data, lambda number: number):
      with pytest.raises(ValueError, match='has 3 clients, but 2 different ones'):
        fedsmp_tff.cohort([3, 7, -11, 3, -11], client_data)
    with pytest.raises(TypeError, match='float'):
      fedsmp_tff.cohort([3.2, 3.9], data)

  def test_two_clients_of_one_id_are_refused(self):
    # Epsilon is of one client: a person who is two would have twice the influence.
    data = tff.simulation.datasets.ClientData.from_clients_and_tf_fn(
        ['ann', 'bob', 'ann'], lambda _: tf.data.Dataset.range(3)
    )
    with pytest.raises(ValueError, match='has 3 ids, but 2 different ones, .* one id'):
      fedsmp_tff.cohort([0], data)

  def test_a_function_gives_the_data_of_dummies_too(self):
    assert fedsmp_tff.cohort(np.array([3, -9]), lambda i: f'data of {i}') == [
        'data of 3', 'data of -9'
    ]

  def test_a_single_dataset_is_refused(self):
    with pytest.raises(TypeError, match='a list with the dataset of each client.*Found _RangeDataset'):
      fedsmp_tff.cohort([0], tf.data.Dataset.range(3))
