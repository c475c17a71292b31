"""Tests of initial weights: the distributions that Keras and PyTorch document."""

import math

import numpy as np
import pytest
from scipy import stats

from tasks.models import initializers

# Kolmogorov-Smirnov tests of seeded draws: a right one fails for one seed in a hundred
# thousand, and of 20,000 draws one of a bound 5 % off passes with about the same probability.
_LEAST_P = 1e-5


def _is_uniform(values, bound):
  values = np.ravel(values).astype(float)
  assert np.abs(values).max() <= bound * (1 + 1e-6)
  return stats.kstest(values, stats.uniform(-bound, 2 * bound).cdf).pvalue > _LEAST_P


@pytest.mark.parametrize('shape, fan_in', [((200, 100), 200), ((5, 5, 8, 100), 200)])
class TestDense:

  def test_torch(self, shape, fan_in):
    # torch.nn.Linear and Conv2d: uniform in +-1/sqrt(fan in), kernel and bias.
    kernel, bias = initializers.TorchInitializer(1).dense(shape)
    assert kernel.shape == shape and bias.shape == shape[-1:]
    assert kernel.dtype == bias.dtype == np.float32
    bound = 1 / math.sqrt(fan_in)
    assert _is_uniform(kernel, bound) and not _is_uniform(kernel, 1.1 * bound)
    assert np.abs(bias).max() <= bound and np.std(bias) > 0.4 * bound

  def test_keras(self, shape, fan_in):
    # Glorot: uniform in +-sqrt(6/(fan in + fan out)); a convolution's fans count its window.
    kernel, bias = initializers.KerasInitializer(1).dense(shape)
    fan_out = 100 * math.prod(shape[:-2])
    assert kernel.shape == shape and _is_uniform(kernel, math.sqrt(6 / (fan_in + fan_out)))
    assert not bias.any()


class TestRecurrent:

  def test_torch(self):
    kernel, recurrent, bias = initializers.TorchInitializer(1).lstm(30, 400)
    bound = 1 / math.sqrt(400)
    assert kernel.shape == (30, 1600) and recurrent.shape == (400, 1600)
    assert _is_uniform(kernel, bound) and _is_uniform(recurrent, bound)
    # The sum of two uniform biases: triangular on +-2 bounds.
    triangle = stats.triang(0.5, -2 * bound, 4 * bound)
    assert stats.kstest(bias, triangle.cdf).pvalue > _LEAST_P
    embedding = initializers.TorchInitializer(1).embedding((300, 40))
    assert embedding.dtype == np.float32
    assert stats.kstest(embedding.ravel(), 'norm').pvalue > _LEAST_P

  def test_keras(self):
    kernel, recurrent, bias = initializers.KerasInitializer(1).lstm(30, 40)
    assert kernel.shape == (30, 160)
    np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(40), atol=1e-5)
    np.testing.assert_array_equal(bias, np.repeat([0, 1, 0, 0], 40))
    assert _is_uniform(initializers.KerasInitializer(1).embedding((300, 40)), 0.05)


@pytest.mark.parametrize('kind', initializers.INITIALIZERS.values())
def test_weights_follow_the_seed(kind):
  one, again, other = (kind(seed).dense((4, 3))[0] for seed in (1, 1, 2))
  np.testing.assert_array_equal(one, again)
  assert not np.array_equal(one, other)
  initializer = kind(1)
  first, second = initializer.dense((4, 3))[0], initializer.dense((4, 3))[0]
  assert not np.array_equal(first, second)
