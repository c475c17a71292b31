"""Tests of private evaluation: bounded, noisy, and nothing else."""

import collections
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import fed_smp
from fedsmp_tff import private_evaluation
from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import adaptive_clipping

_UNSCORED = -1


def _threshold():
  """A classifier: label 1 where the one feature is above a weight, which is 0."""

  def predict_on_batch(weights, x, training):
    del training
    above = x[:, 0] - weights[0][0]
    return tf.stack([-above, above], axis=-1)

  return tff.learning.models.FunctionalModel(
      initial_weights=((np.float32(0),), ()),
      predict_on_batch_fn=tf.function(predict_on_batch),
      loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(output),
      metrics_fns=tff.learning.metrics.create_functional_metric_fns(
          collections.OrderedDict()
      ),
      input_spec=(tf.TensorSpec([None, 1], tf.float32), tf.TensorSpec([None], tf.int32)),
  )


def _is_scored(labels):
  return tf.not_equal(labels, _UNSCORED)


def _client(right, wrong, unscored=0, client_id=None):
  """A client with so many right, wrong and unscored labels."""
  labels = np.repeat([1, 0, _UNSCORED], [right, wrong, unscored]).astype(np.int32)
  dataset = tf.data.Dataset.from_tensor_slices((np.ones([len(labels), 1], np.float32), labels))
  return dataset if client_id is None else fedsmp_tff.tag_client(client_id, dataset)


def _evaluation(seats, noise_multiplier=0.0, seed=None, dropout=0.0, **options):
  return private_evaluation.build_private_evaluation(
      _threshold(),
      fedsmp_tff.Mechanism(
          seats, **{'clipping_norm': 1.0, 'noise_multiplier': noise_multiplier, **options}
      ),
      is_scored=_is_scored,
      seed=seed,
      dropout=dropout,
  )


def _weights():
  return tff.learning.models.ModelWeights((np.float32(0),), ())


def _accuracy(cohort, **options):
  found = _evaluation(len(cohort), **options)(_weights(), 0, cohort)
  return float(found['accuracy'])


class TestComputation:

  @pytest.mark.parametrize('noise', ['gaussian', 'discrete_gaussian'])
  def test_only_secure_sums_leave_clients_and_only_two_numbers_come_out(self, noise):
    evaluate = _evaluation(3, 1.0, noise=noise)
    tff.test.assert_not_contains_unsecure_aggregation(evaluate)
    tff.test.assert_contains_secure_aggregation(evaluate)
    released = evaluate.type_signature.result
    assert released.placement is tff.SERVER
    assert str(released.member) == '<accuracy=float64,stddev=float64>'

  def test_what_is_refused(self):
    model = _threshold()
    for mechanism, sentence in (
        (fedsmp_tff.Mechanism(3), 'fixed `clipping_norm`'),
        (
            fedsmp_tff.Mechanism(
                3, 1.0, adaptive_clipping=adaptive_clipping.AdaptiveClipping(0.5)
            ),
            'fixed `clipping_norm`',
        ),
        (fedsmp_tff.Mechanism(3, 1.0, client_metrics=True), 'no `client_metrics`'),
        (fedsmp_tff.Mechanism(3, 1.0, noise='skellam', num_values=3), '`num_values`=3'),
    ):
      with pytest.raises(ValueError, match=sentence):
        private_evaluation.build_private_evaluation(model, mechanism)
    with pytest.raises(ValueError, match='`dropout` must be in'):
      private_evaluation.build_private_evaluation(
          model, fedsmp_tff.Mechanism(3, 1.0), dropout=1.0
      )
    with pytest.raises(ValueError, match='`is_scored` must return a bool for each label'):
      private_evaluation.build_private_evaluation(
          model, fedsmp_tff.Mechanism(3, 1.0), is_scored=lambda y: y != _UNSCORED
      )


class TestExecution:

  @pytest.mark.parametrize('clip', [1e-3, 1.0, 50.0])
  def test_without_noise_it_is_the_mean_of_clients_own_accuracies(self, clip):
    # Unlike the share of all labels, 504 of 1,007. C is a matter of scale.
    cohort = [_client(3, 1), _client(500, 500, unscored=7), _client(1, 2)]
    assert _accuracy(cohort, clipping_norm=clip) == pytest.approx(
        np.mean([3 / 4, 1 / 2, 1 / 3]), abs=1e-6
    )

  def test_whoever_has_no_scored_labels_is_not_in_the_mean(self):
    cohort = [_client(3, 1), _client(0, 0), _client(0, 0, unscored=9), _client(1, 0)]
    assert _accuracy(cohort) == pytest.approx((3 / 4 + 1) / 2, abs=1e-6)
    assert math.isnan(_accuracy(cohort[1:3]))

  def test_a_million_examples_count_as_one_client(self):
    # Summed labels would give 4e-6.
    assert _accuracy([_client(1, 0)] * 3 + [_client(0, 10**6)]) == pytest.approx(3 / 4, abs=1e-6)

  @pytest.mark.parametrize('counts', [(1, 0), (0, 10**6), (5, 5), (0, 0), (10**6, 1)])
  def test_what_a_client_sends_is_within_the_clip(self, counts):
    # Bounded before the clip, which leaves it as it is.
    mechanism = fedsmp_tff.Mechanism(1, clipping_norm=2.0)
    steps = private_evaluation._Evaluation(
        _threshold(), mechanism, _is_scored, 0.0, None
    )
    values = np.array(steps._shares(_client(*counts), _weights()))
    assert np.linalg.norm(values) <= 1 + 1e-12 and np.all(values >= 0)
    report = steps.client_report(_client(*counts), _weights(), steps.start(0))
    assert set(report) == {'values', 'participants'}
    sent = steps.round.channel.decode_sum(report['values'], 1, tf.zeros([2], tf.int64)).numpy()
    np.testing.assert_allclose(sent, values, atol=1e-6)

  @pytest.mark.parametrize('options', [
      {}, dict(min_reporting=2, clipping_norm=20.0), dict(noise='discrete_gaussian')
  ])
  @pytest.mark.parametrize('right, wrong', [(1, 0), (1, 1)])
  def test_the_noise_of_the_accuracy_is_what_it_states(self, right, wrong, options):
    seats, sigma, runs = 4, 0.12, 100
    mechanism = fedsmp_tff.Mechanism(
        seats, **{'clipping_norm': 1.0, 'noise_multiplier': sigma, **options}
    )
    steps = private_evaluation._Evaluation(_threshold(), mechanism, _is_scored, 0.0, 11)

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int64)])
    def report(number, client):
      data = {
          'client_id': tf.data.Dataset.from_tensors(client), 'examples': _client(right, wrong)
      }
      return steps.client_report(data, _weights(), steps.start(number))

    finish = tf.function(lambda number, total: steps.finish(steps.start(number), total))
    found = []
    for t in tf.range(runs):
      total = steps.round.sum([report(t, client) for client in tf.range(seats, dtype=tf.int64)])
      found.append(finish(t, total))
    accuracies = np.array([one['accuracy'] for one in found])
    a = right / (right + wrong)
    # All seats report: with `min_reporting`, more noise than sigma.
    shares = seats / options.get('min_reporting', seats)
    stddev = sigma * math.sqrt(shares * (a**2 + (1 - a) ** 2)) / seats
    # A sample's standard deviation is off by 1 / sqrt(2 * 100) = 7 %; four of them. The ratio's
    # second order adds about (0.12 * 2 / 4)^2, 0.4 %.
    assert np.std(accuracies) == pytest.approx(stddev, rel=0.287)
    assert np.mean(accuracies) == pytest.approx(a, abs=4 * stddev / math.sqrt(runs) + stddev**2)
    # Estimated with the same noise: 10 % off a round, 0.5 % in the mean.
    assert np.mean([one['stddev'] for one in found]) == pytest.approx(stddev, rel=0.03)

  def test_noise_is_fresh_without_a_seed_and_by_the_number_with_one(self):
    cohort = [_client(1, 1)] * 3
    fresh = _evaluation(3, 1.0)
    assert len({float(fresh(_weights(), 0, cohort)['accuracy']) for _ in range(5)}) == 5
    tagged = [_client(1, 1, client_id=i) for i in range(3)]
    seeded = _evaluation(3, 1.0, seed=4)
    numbers = [0, 1, 2, 0]
    found = [float(seeded(_weights(), t, tagged)['accuracy']) for t in numbers]
    assert found[0] == found[3] and len(set(found)) == 3

  def test_no_client_s_seed_is_one_of_training(self):
    mechanism = fedsmp_tff.Mechanism(3, 1.0, 1.0)
    steps = private_evaluation._Evaluation(_threshold(), mechanism, _is_scored, 0.0, 4)
    training = fed_smp.FedSmpRound(sparsifiers.Dense(), mechanism, [tf.TensorShape([2])])

    def seeds(state_of):
      return {
          tuple(randomness.of_client(randomness.of_round(state_of(t).seed, t), i).numpy())
          for t in range(5) for i in range(3)
      }

    ours, theirs = seeds(steps.start), seeds(lambda t: training.initial_state(4))
    assert len(ours | theirs) == 30

  def test_with_too_few_reports_nothing_is_released(self):
    cohort = [_client(1, 0, client_id=i) for i in range(6)]
    evaluate = _evaluation(6, 0.1, seed=1, dropout=0.5, min_reporting=3)
    accuracies = [float(evaluate(_weights(), t, cohort)['accuracy']) for t in range(12)]
    # A round of six has fewer than three reports with probability 0.34.
    missing = [math.isnan(accuracy) for accuracy in accuracies]
    assert 0 < sum(missing) < 12
    assert all(0.7 < a < 1.3 for a, gone in zip(accuracies, missing) if not gone)

  def test_another_number_of_clients_than_seats_fails(self):
    with pytest.raises(Exception, match='must have exactly'):
      _evaluation(3, 1.0)(_weights(), 0, [_client(1, 0)] * 2)
