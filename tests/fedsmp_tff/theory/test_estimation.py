"""Tests of the estimates on a problem whose constants are known: half a squared distance."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import local_training
from fedsmp_tff.theory import estimation

_DIM, _CLIENT, _BATCH, _CLIENTS = 6, 6, 3, 4
_RATE = 0.1


def _model(start):
  """f(theta) = mean over examples of |theta - y|^2 / 2, whose gradient is theta - mean y."""

  @tf.function
  def predict(weights, x, training):
    del training
    return tf.zeros_like(x) + weights[0][0]

  return tff.learning.models.FunctionalModel(
      initial_weights=((start,), ()),
      predict_on_batch_fn=predict,
      loss_fn=lambda output, y, sample_weight=None: tf.reduce_mean(
          tf.reduce_sum((output - y) ** 2, axis=1) / 2
      ),
      input_spec=(tf.TensorSpec([None, _DIM]), tf.TensorSpec([None, _DIM])),
  )


def _training(**options):
  return local_training.LocalTraining(
      tff.learning.optimizers.build_sgdm(_RATE), _BATCH, **(options or {'epochs': 1})
  )


@pytest.fixture(scope='module')
def case():
  rng = np.random.default_rng(0)
  scale = np.array([5.0, 3.0, 1.0, 1.0, 0.5, 0.1])
  y = (scale + rng.normal(size=(2 * _CLIENTS * _CLIENT, _DIM))).astype(np.float32)
  start = np.zeros(_DIM, np.float32)
  found = estimation.estimate(
      _model(start), (np.zeros_like(y), y), _training(), _CLIENT, rounds=3, seed=7
  )
  order = np.random.default_rng(7).permutation(len(y))
  halves = y[order[: len(y) // 2]], y[order[len(y) // 2 :]].reshape(_CLIENTS, _CLIENT, _DIM)
  return found, *halves


class TestExecution:

  def test_smoothness_is_one(self, case):
    assert case[0].constants.smoothness == pytest.approx(1.0, rel=1e-4)

  def test_variances_are_those_of_the_data(self, case):
    found, _, clients = case
    means = clients.mean(axis=1)
    between = np.mean(np.sum((means - means.mean(axis=0)) ** 2, axis=1))
    assert found.constants.dissimilarity_offset == pytest.approx(between, rel=1e-4)
    batches = clients.reshape(_CLIENTS, -1, _BATCH, _DIM).mean(axis=2)
    within = np.mean(np.sum((batches - means[:, None]) ** 2, axis=2))
    assert found.constants.gradient_variance == pytest.approx(within, rel=1e-4)
    assert found.constants.dissimilarity == 1

  def test_initial_gap_is_the_loss(self, case):
    found, _, clients = case
    loss = np.mean(np.sum(clients**2, axis=2)) / 2
    assert found.constants.initial_gap == pytest.approx(loss, rel=1e-5)

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

  def test_clients_of_one_batch_have_no_variance_within(self):
    y = np.random.default_rng(1).normal(size=(12, _DIM)).astype(np.float32)
    found = estimation.estimate(
        _model(np.zeros(_DIM, np.float32)), (y, y), _training(), _BATCH, rounds=1, seed=0
    )
    assert found.constants.gradient_variance == 0

  def test_no_two_clients(self):
    y = np.zeros((10, _DIM), np.float32)
    with pytest.raises(ValueError, match='`client_examples`=4 makes 1 clients of half of the 10'):
      estimation.estimate(_model(y[0]), (y, y), _training(), 4, rounds=1, seed=0)

  def test_divergence_is_said(self):
    y = np.full((20, _DIM), np.nan, np.float32)
    with pytest.raises(ValueError, match='Found nan'):
      estimation.estimate(
          _model(np.zeros(_DIM, np.float32)), (y, y), _training(), 4, rounds=1, seed=0
      )
