"""Tests of the update on public data."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import client_training
from fedsmp_tff import flattening
from fedsmp_tff import public_update
from fedsmp_tff import sparsifiers
from tests.support import linear_runs
from tests.support import tiny_models

_NUM = len(linear_runs.PUBLIC[0])


def _model_and_weights():
  model = tiny_models.linear_regression()
  weights = tff.learning.models.ModelWeights(
      *tf.nest.map_structure(tf.convert_to_tensor, model.initial_weights)
  )
  return model, weights


def _update(seed, due=True, clip=np.inf, **options):
  model, weights = _model_and_weights()
  training = linear_runs.training()
  weights_type = tff.types.tensorflow_to_type(
      tf.nest.map_structure(tf.TensorSpec.from_tensor, weights)
  )
  update = public_update.PublicUpdate(
      client_training.TracedTraining(training, model, weights_type),
      sparsifiers.PublicTraining(linear_runs.PUBLIC, training, **options),
      flattening.Flattener(weights_type.trainable),
  )
  hparams = training.initial_hparams(weights.trainable)
  clip = tf.constant(clip, tf.float64)
  return update(weights, hparams, clip, tf.constant(seed, tf.int64), due).numpy()


def _halves(clip):
  """Each way to cut the public examples into two pseudo-clients, and their clipped mean."""
  _, weights = _model_and_weights()
  weights = tf.nest.map_structure(lambda w: w.numpy(), weights)
  x, y = linear_runs.PUBLIC
  found = {}
  for others in itertools.combinations(range(1, _NUM), _NUM // 2 - 1):
    first = [0, *others]
    second = [i for i in range(_NUM) if i not in first]
    updates = [
        linear_runs.numpy_update(weights, (x[rows], y[rows]), linear_runs.RATE)
        for rows in (first, second)
    ]
    clipped = [u * min(1.0, clip / np.linalg.norm(u)) for u in updates]
    found[tuple(first)] = np.mean(clipped, 0)
  return found


class TestExecution:

  def test_one_training_on_all_examples(self):
    _, weights = _model_and_weights()
    weights = tf.nest.map_structure(lambda w: w.numpy(), weights)
    expected = linear_runs.numpy_update(weights, linear_runs.PUBLIC, linear_runs.RATE)
    np.testing.assert_allclose(_update([1, 2]), expected, rtol=1e-5, atol=1e-6)

  @pytest.mark.parametrize('clip', [np.inf, 0.1])
  def test_pseudo_clients_are_a_cut_of_the_examples_and_their_mean_is_the_update(self, clip):
    halves = _halves(clip)
    cuts = set()
    for seed in range(6):
      update = _update([seed, 0], clip=clip, clients=2)
      right = [
          cut for cut, mean in halves.items() if np.allclose(update, mean, rtol=1e-5, atol=1e-6)
      ]
      # Exactly one of the 35 cuts: no example is left out, or with both.
      assert len(right) == 1
      cuts.update(right)
    # Six of 35 at random are one and the same with probability 35^-5.
    assert len(cuts) > 1

  def test_one_seed_has_one_update(self):
    np.testing.assert_array_equal(_update([3, 4], clients=4), _update([3, 4], clients=4))
    assert not np.array_equal(_update([3, 4], clients=4), _update([3, 5], clients=4))

  @pytest.mark.parametrize('options', [{}, dict(clients=3)])
  def test_one_that_is_not_due_is_zero(self, options):
    kept, made = (
        _update([1, 2], due=tf.constant(due), **options) for due in (False, True)
    )
    np.testing.assert_array_equal(kept, np.zeros(linear_runs.DIM))
    np.testing.assert_array_equal(made, _update([1, 2], **options))

  def test_public_labels_may_have_another_dtype_than_clients(self):
    @tf.function
    def predict(weights, x, training):
      del training
      return tf.matmul(x, weights[0][0])

    def loss(logits, labels, sample_weight=None):
      del sample_weight
      return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    model = tff.learning.models.FunctionalModel(
        initial_weights=((np.eye(4, 3, dtype=np.float32),), ()),
        predict_on_batch_fn=predict,
        loss_fn=loss,
        input_spec=(tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int32)),
    )
    x, labels = linear_runs.PUBLIC[0], np.arange(_NUM) % 3
    chosen = []
    for dtype in (np.int32, np.int64):  # NumPy's own integers are the latter.
      process = fedsmp_tff.build_fed_smp(
          model,
          linear_runs.training(),
          fedsmp_tff.FedSmpFactory(
              fedsmp_tff.TopK(0.5, public_examples=(x, labels.astype(dtype))),
              fedsmp_tff.Mechanism(2, clipping_norm=1.0, noise_multiplier=1.0),
          ),
      )
      clients = [tf.data.Dataset.from_tensor_slices((x, labels.astype(np.int32)))] * 2
      state = process.next(process.initialize(), clients).state
      chosen.append(process.initialize().aggregator.coordinates)
      assert state.aggregator.round_num == 1
    np.testing.assert_array_equal(*chosen)
