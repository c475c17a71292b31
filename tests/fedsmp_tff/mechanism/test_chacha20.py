"""Tests of the cipher against the one of the `cryptography` package."""

from cryptography.hazmat.primitives import ciphers
from cryptography.hazmat.primitives.ciphers import algorithms
import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff.mechanism import chacha20


def _expected(seed, num):
  key = np.array(seed, np.int64).tobytes() * 2
  cipher = ciphers.Cipher(algorithms.ChaCha20(key, bytes(16)), None)
  return np.frombuffer(cipher.encryptor().update(bytes(8 * num)), np.int64)


class TestExecution:

  @pytest.mark.parametrize('num', [1, 8, 9, 4001])
  def test_stream_equals_the_cryptography_package(self, num):
    stream = tf.function(lambda seed: chacha20.stream(seed, num))
    for seed in ([0, 0], [-1, 2**63 - 1], [-(2**63), 123456789]):
      words = stream(tf.constant(seed, tf.int64))
      assert words.dtype == tf.int64
      np.testing.assert_array_equal(words, _expected(seed, num))
