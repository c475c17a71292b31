"""Tests that clients who send garbage move the model by their share at most."""

import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from tests.support import linear_runs
from tests.support import numpy_reference
from tests.support import processes
from tests.support import tiny_models


class TestExecution:

  @pytest.mark.parametrize('sparsifier', [fedsmp_tff.RandK(0.3), fedsmp_tff.Dense()])
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
    coordinates = state.coordinates if len(state.coordinates) else np.arange(dim)
    expected = numpy_reference.mean_without_noise(honest, coordinates, sparsifier.scale(dim), clip)
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
        fedsmp_tff.LocalTraining(tff.learning.optimizers.build_sgdm(0.1), 4, epochs=2),
        fedsmp_tff.RandK(0.5), clients_per_round=clients, clipping_norm=clip,
        noise_multiplier=noise_multiplier, seed=3,
    )
    x, y = tiny_models.regression_examples(6)

    def weights_after(hostile):
      cohort = [*hostile, *[(x, y)] * (clients - 3)]
      output = process.next(process.initialize(), [
          fedsmp_tff.tag_client(i, tf.data.Dataset.from_tensor_slices(d))
          for i, d in enumerate(cohort)
      ])
      assert output.metrics['aggregator']['participants'] == clients
      return linear_runs.flat(output.state.global_model_weights)

    garbage = weights_after([((x * v).astype(np.float32), y) for v in (np.nan, np.inf, 1e30)])
    # The same noise shares, but nothing else, from the three.
    alone = weights_after([(x[:0], y[:0])] * 3)
    assert np.isfinite(garbage).all()
    # All three count as zero, and with noise add their shares of it all the same.
    np.testing.assert_allclose(garbage, alone, atol=1e-7)
