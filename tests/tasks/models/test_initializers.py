"""Tests of initial weights: the distributions that Keras and PyTorch document."""

import math

import numpy as np
import pytest
from scipy import stats

from tasks.models import initializers

# Kolmogorov-Smirnov tests of seeded draws: correct draws fail for one seed in a hundred thousand,
# and 20,000 draws with a bound 5 % off pass with about the same probability.
_MIN_P = 1e-5


def _is_uniform(values, bound):
  values = np.ravel(values).astype(float)
  assert np.abs(values).max() <= bound * (1 + 1e-6)
  return stats.kstest(values, stats.uniform(-bound, 2 * bound).cdf).pvalue > _MIN_P


@pytest.mark.parametrize('shape, fan_in', [((200, 100), 200), ((5, 5, 8, 100), 200)])
def test_dense_weights_have_documented_distributions(shape, fan_in):
  # torch.nn.Linear and Conv2d: uniform in +-1/sqrt(fan in), kernel and bias.
  kernel, bias = initializers.TorchInitializer(1).dense(shape)
  assert kernel.shape == shape and bias.shape == shape[-1:]
  assert kernel.dtype == bias.dtype == np.float32
  bound = 1 / math.sqrt(fan_in)
  assert _is_uniform(kernel, bound) and not _is_uniform(kernel, 1.1 * bound)
  assert np.abs(bias).max() <= bound and np.std(bias) > 0.4 * bound
  # Glorot: uniform in +-sqrt(6/(fan in + fan out)); a convolution's fans count its window.
  kernel, bias = initializers.KerasInitializer(1).dense(shape)
  fan_out = 100 * math.prod(shape[:-2])
  assert kernel.shape == shape and _is_uniform(kernel, math.sqrt(6 / (fan_in + fan_out)))
  assert not bias.any()


def test_torch_lstm_has_documented_distributions():
  kernel, recurrent, bias = initializers.TorchInitializer(1).lstm(30, 400)
  bound = 1 / math.sqrt(400)
  assert kernel.shape == (30, 1600) and recurrent.shape == (400, 1600)
  assert _is_uniform(kernel, bound) and _is_uniform(recurrent, bound)
  # The sum of two uniform biases: triangular on +-2 bounds.
  assert stats.kstest(bias, stats.triang(0.5, -2 * bound, 4 * bound).cdf).pvalue > _MIN_P
  embedding = initializers.TorchInitializer(1).embedding((300, 40))
  assert embedding.dtype == np.float32
  assert stats.kstest(embedding.ravel(), 'norm').pvalue > _MIN_P


def test_keras_lstm_has_documented_distributions():
  kernel, recurrent, bias = initializers.KerasInitializer(1).lstm(30, 40)
  assert kernel.shape == (30, 160)
  np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(40), atol=1e-5)
  np.testing.assert_array_equal(bias, np.repeat([0, 1, 0, 0], 40))
  assert _is_uniform(initializers.KerasInitializer(1).embedding((300, 40)), 0.05)


@pytest.mark.parametrize('kind', initializers.INITIALIZERS.values())
def test_weights_follow_the_seed(kind):
  (first, second), (again, _), (other, _) = (
      [initializer.dense((4, 3))[0] for _ in range(2)] for initializer in map(kind, (1, 1, 2))
  )
  np.testing.assert_array_equal(first, again)
  assert not np.array_equal(first, other) and not np.array_equal(first, second)
