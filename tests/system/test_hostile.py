"""Tests that clients who send garbage move the model by their share at most, on real images."""

import math
import os

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff.privacy import sampling
from fedsmp_tff.program import loop
from tasks.datasets import fashion_mnist
from tasks.models import initializers
from tasks.training import evaluation
from tests.support import numpy_reference
from tests.support import processes
from tests.support import tiny_models

_ROUNDS = int(os.environ.get('HOSTILE_ROUNDS', '6'))
_R, _HOSTILE = 100, 30
# Labels that no image has: with them a client's training goes wrong in its own way.
_NAN, _OVERFLOW, _HUGE, _ASCENT = range(10, 14)


def _with_hostile_labels(model):
  """The model, but a batch with one of the labels above has another loss."""

  def loss(output, label, sample_weight=None):
    kind = tf.reduce_max(label)
    honest = model.loss(output, tf.minimum(label, 9), sample_weight)
    factor = tf.gather([1.0, np.nan, 1e38, 1e6, -30.0], tf.maximum(kind - 9, 0))
    return honest * factor

  return tff.learning.models.FunctionalModel(
      initial_weights=model.initial_weights,
      predict_on_batch_fn=model.predict_on_batch,
      loss_fn=loss,
      input_spec=model.input_spec,
  )


def _hostile(client, x, y):
  """What a hostile client trains on: seven kinds."""
  kind = client % 7
  if kind < 4:
    return x, np.full_like(y, _NAN + kind)
  return [(x[:0], y[:0]), (x[:1], y[:1]), (x, (y + 1) % 10)][kind - 4]


class _Sampler(sampling.FixedSampler):
  """Clients below `hostile_pool` are hostile: 30 of them in every round."""

  def __init__(self, population, hostile_pool):
    super().__init__(population, _R, 1)
    self._pools = hostile_pool, population - hostile_pool

  def sample(self, round_num):
    rng = np.random.default_rng([1, round_num])
    hostile = rng.choice(self._pools[0], _HOSTILE, replace=False)
    honest = self._pools[0] + rng.choice(self._pools[1], _R - _HOSTILE, replace=False)
    return np.concatenate([hostile, honest])


class _Collect(loop.Reporter):

  def __init__(self):
    self.reports = []

  def __call__(self, report):
    self.reports.append(report)
    if report.rounds_done % 5 == 0:
      print(report.rounds_done, report.evaluation, report.metrics and dict(
          report.metrics['aggregator']), flush=True)


class TestExecution:

  @pytest.mark.parametrize('sparsifier', [
      fedsmp_tff.RandK(0.3), fedsmp_tff.Dense()
  ])
  def test_the_aggregate_moves_by_the_hostile_share_at_most(self, sparsifier):
    dim, clip, clients = 50, 0.7, 20
    rng = np.random.default_rng(0)
    updates = list(rng.normal(size=(clients, dim)).astype(np.float32))
    # All six pull the same way, as hard as a float32 can, or are no numbers.
    for i, value in enumerate([np.nan, np.inf, -np.inf, 3e38, 1e30, 1e-38]):
      updates[i] = np.full(dim, value, np.float32)
    factory = processes.factory(
        sparsifier, clients, clipping_norm=clip, noise_multiplier=0.0, seed=1
    )
    process = factory.create(tff.TensorType(np.float32, [dim]))
    state = process.initialize()
    output = process.next(state, updates)
    honest = [np.zeros(dim)] * 6 + updates[6:]
    coordinates = (
        state.coordinates if len(state.coordinates) else np.arange(dim)
    )
    expected = numpy_reference.mean_without_noise(
        honest, coordinates, sparsifier.scale(dim), clip
    )
    moved = np.linalg.norm(output.result - expected)
    assert moved <= 6 * clip / clients + 1e-6
    # The two that are finite and large pull with all they have, three count as zero.
    assert moved == pytest.approx(2 * clip / clients, rel=1e-5)
    # No value left the encoded range: each of the two moves all kept coordinates alike.
    alike = np.zeros(dim)
    alike[coordinates] = 2 * clip / clients / math.sqrt(len(coordinates))
    np.testing.assert_allclose(output.result - expected, alike, atol=1e-7)
    assert output.measurements['participants'] == clients

  @pytest.mark.parametrize('noise_multiplier', [0.0, 1.0])
  def test_training_on_garbage_moves_the_weights_by_the_hostile_share_at_most(
      self, noise_multiplier
  ):
    clip, clients = 0.01, 8
    process = processes.fed_smp(
        tiny_models.linear_regression(),
        fedsmp_tff.LocalTraining(
            tff.learning.optimizers.build_sgdm(0.1), 4, epochs=2
        ),
        fedsmp_tff.RandK(0.5),
        clients_per_round=clients,
        clipping_norm=clip,
        noise_multiplier=noise_multiplier,
        seed=3,
    )
    x, y = tiny_models.regression_examples(6)
    garbage = [x * np.nan, x * np.inf, x * 1e30]

    def weights_after(datasets):
      output = process.next(
          process.initialize(),
          [
              fedsmp_tff.tag_client(i, tf.data.Dataset.from_tensor_slices(d))
              for i, d in enumerate(datasets)
          ],
      )
      flat = [w.reshape(-1) for w in process.get_model_weights(output.state).trainable]
      return np.concatenate(flat), output.metrics['aggregator']

    honest = [(x, y)] * (clients - 3)
    moved, counts = weights_after([(g.astype(np.float32), y) for g in garbage] + honest)
    # The same noise shares, but nothing else, from the three.
    alone, _ = weights_after([(x[:0], y[:0])] * 3 + honest)
    assert np.isfinite(moved).all()
    assert np.linalg.norm(moved - alone) <= 3 * clip / clients + 1e-6
    assert counts['participants'] == clients
    # All three count as zero, and with noise add their shares of it all the same.
    np.testing.assert_allclose(moved, alone, atol=1e-7)


@pytest.mark.slow
class TestRealData:

  @pytest.mark.skipif(
      not os.path.isdir('/usr/share/datasets/fashion-mnist'),
      reason='needs Debian\'s dataset-fashion-mnist',
  )
  def test_fashion_mnist_is_learnt_with_30_of_100_hostile(self, tmp_path):
    data = fashion_mnist.TASK.load(1, 1000)
    model = _with_hostile_labels(fashion_mnist.TASK.build_model(initializers.KerasInitializer(1)))
    training = fedsmp_tff.LocalTraining(
        tff.learning.optimizers.build_sgdm(0.125, 0.5), 10, epochs=10,
        learning_rate_fn=lambda t: 0.125 * 0.99 ** tf.cast(t, tf.float32),
    )
    sparsifier, sigma = fedsmp_tff.TopK(0.005, public_examples=data.public), 1.4
    process = processes.fed_smp(
        model, training, sparsifier, clients_per_round=_R, clipping_norm=1.0,
        noise_multiplier=sigma, seed=1,
    )
    pool = len(data.clients) * _HOSTILE // _R

    def client_data(client):
      x, y = data.clients[client]
      if client < pool:
        x, y = _hostile(client, x, y)
      return fedsmp_tff.tag_client(client, tf.data.Dataset.from_tensor_slices((x, y)))

    # The garbage is such: the first kind's update is not finite, and all rounds have some of it.
    sampler = _Sampler(len(data.clients), pool)
    for round_num in range(_ROUNDS):
      cohort = sampler.sample(round_num)
      assert np.any((cohort < pool) & (cohort % 7 == 0))
    initial = tff.learning.models.ModelWeights(
        *tf.nest.map_structure(tf.convert_to_tensor, model.initial_weights)
    )
    examples = tf.nest.map_structure(tf.convert_to_tensor, _hostile(0, *data.clients[0]))
    update = training.train(
        model, initial, examples, training.initial_hparams(initial.trainable),
        tf.constant([1, 2], tf.int64),
    )
    assert not all(np.isfinite(part).all() for part in update)

    measure = evaluation.build(model, fashion_mnist.TASK.is_scored)
    test = evaluation.shards_of(data.test)
    collect = _Collect()
    loop.run(
        process, client_data, sampler, _ROUNDS,
        lambda rounds_done, weights: measure(weights, test), [collect],
    )
    accuracies = [report.evaluation.accuracy for report in collect.reports]
    print([round(a, 4) for a in accuracies])
    # Of C r from clients and sigma C sqrt(k) of noise, give or take five standard deviations.
    root_k = math.sqrt(sparsifier.num_kept(sum(w.shape.num_elements() for w in initial.trainable)))
    most = (_R / (sigma * root_k) + 1 + 5 / root_k) ** 2 - 1
    for report in collect.reports[1:]:
      counts = report.metrics['aggregator']
      assert counts['participants'] == _R and 0 <= counts['signal_to_noise'] <= most
    # Chance is 0.1, with a standard error of 0.003. Last bits differ between processors, and training
    # spreads them: one run was at 0.18 after four rounds where another was at 0.30.
    assert accuracies[0] < 0.15 and accuracies[-1] > 0.2
