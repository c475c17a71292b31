"""Tests of the estimates on a problem whose constants are known: half a squared distance."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import local_training
from fedsmp_tff.theory import estimation

_DIM, _CLIENT, _BATCH, _CLIENTS = 6, 6, 3, 4
_RATE = 0.1


def _estimate(y, client_examples, rounds=1, seed=0):
  """For f(theta) = mean over examples of |theta - y|^2 / 2, whose gradient is theta - mean y."""

  @tf.function
  def predict(weights, x, training):
    del training
    return tf.zeros_like(x) + weights[0][0]

  model = tff.learning.models.FunctionalModel(
      initial_weights=((np.zeros(_DIM, np.float32),), ()),
      predict_on_batch_fn=predict,
      loss_fn=lambda output, y, sample_weight=None: tf.reduce_mean(
          tf.reduce_sum((output - y) ** 2, axis=1) / 2
      ),
      input_spec=(tf.TensorSpec([None, _DIM]), tf.TensorSpec([None, _DIM])),
  )
  optimizer = tff.learning.optimizers.build_sgdm(_RATE)
  training = local_training.LocalTraining(optimizer, _BATCH, epochs=1)
  return estimation.estimate(model, (np.zeros_like(y), y), training, client_examples, rounds, seed)


@pytest.fixture(scope='module')
def case():
  rng = np.random.default_rng(0)
  scale = np.array([5.0, 3.0, 1.0, 1.0, 0.5, 0.1])
  y = (scale + rng.normal(size=(2 * _CLIENTS * _CLIENT, _DIM))).astype(np.float32)
  found = _estimate(y, _CLIENT, rounds=3, seed=7)
  order = np.random.default_rng(7).permutation(len(y))
  halves = y[order[: len(y) // 2]], y[order[len(y) // 2 :]].reshape(_CLIENTS, _CLIENT, _DIM)
  return found, *halves


class TestExecution:

  def test_constants_are_those_of_the_data(self, case):
    found, _, clients = case
    constants = found.constants
    assert (constants.smoothness, constants.dissimilarity) == pytest.approx((1, 1), rel=1e-4)
    means = clients.mean(axis=1)
    between = np.mean(np.sum((means - means.mean(axis=0)) ** 2, axis=1))
    assert constants.dissimilarity_offset == pytest.approx(between, rel=1e-4)
    batches = clients.reshape(_CLIENTS, -1, _BATCH, _DIM).mean(axis=2)
    within = np.mean(np.sum((batches - means[:, None]) ** 2, axis=2))
    assert constants.gradient_variance == pytest.approx(within, rel=1e-4)
    loss = np.mean(np.sum(clients**2, axis=2)) / 2
    assert constants.initial_gap == pytest.approx(loss, rel=1e-5)

  def test_what_topk_loses(self, case):
    found, server, clients = case
    assert found.dim == _DIM and found.kept.tolist() == [1, 2, 3, 4, 5, 6]
    assert found.lost[-1] == pytest.approx(0, abs=1e-12)
    assert np.all(np.diff(found.lost) <= 1e-12)
    # All steps go the same way here, so that updates are multiples of the first gradient but
    # for the order of batches: two steps, by at most rate x spread of batches of a part.
    energy = np.cumsum(clients.mean(axis=(0, 1))[np.argsort(-server.mean(axis=0))] ** 2)
    np.testing.assert_allclose(found.lost, 1 - energy / energy[-1], atol=0.05)
    assert found.topk_variance(2) == pytest.approx(found.lost[1])

  def test_update_norm_is_the_median(self, case):
    found, _, clients = case
    # Two steps of rate 0.1 towards the mean: 0.19 of the distance in the first round, and the
    # distance itself shrinks by as much a round.
    norms = [
        0.19 * np.linalg.norm(mean - (1 - 0.81**t) * clients.mean(axis=(0, 1)))
        for t in range(3) for mean in clients.mean(axis=1)
    ]
    assert found.update_norm == pytest.approx(np.median(norms), rel=0.05)

  @pytest.mark.parametrize('num, value, sentence', [
      (10, 0.0, '`client_examples` must be lower: with 4, half of the 10 public'), (20, np.nan, 'Found nan'),
  ])
  def test_too_few_clients_and_divergence_are_said(self, num, value, sentence):
    with pytest.raises(ValueError, match=sentence):
      _estimate(np.full((num, _DIM), value, np.float32), client_examples=4)
