"""Tests of clients of equal size whose labels differ."""

import numpy as np
import pytest

from tasks.datasets import label_skew
from tasks.datasets import task as task_lib

_CLASSES, _PER_CLASS, _CLIENTS = 10, 2000, 2000


def _labels(counts=(_PER_CLASS,) * _CLASSES):
  return np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))


def _split(alpha, labels=None, num_parts=_CLIENTS, seed=0):
  labels = _labels() if labels is None else labels
  return label_skew.split(labels, num_parts, alpha, np.random.default_rng(seed))


def _coincidences(parts, labels):
  """The fraction of the pairs of a part's examples that have equal labels, for each part."""
  fractions = []
  for part in parts:
    counts, size = np.bincount(labels[part]), len(part)
    fractions.append((counts**2 - counts).sum() / (size**2 - size))
  return np.array(fractions)


class TestExecution:

  # The smallest alpha has weight on one label alone, which may have run out; the others are
  # uneven numbers, and more parts than examples.
  @pytest.mark.parametrize('alpha', [1e-300, 1e-3, 0.1, 1.0, 1e9])
  @pytest.mark.parametrize('counts, num_parts', [
      ((200,) * 10, 200), ((7, 1, 90), 9), ((2, 1), 5), ((30,), 4),
  ])
  def test_sizes_are_equal_and_each_example_is_in_one_part(self, alpha, counts, num_parts):
    labels = _labels(counts)
    parts = _split(alpha, labels, num_parts)
    even = task_lib.split_evenly(labels, labels, num_parts)
    assert [len(part) for part in parts] == [len(x) for x, _ in even]
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))

  def test_the_split_follows_the_seed(self):
    first, again, other = (np.concatenate(_split(0.1, seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)

  @pytest.mark.parametrize('alpha', [0.1, 0.6, 5.0, 1e6])
  def test_pairs_of_labels_agree_as_dirichlet_predicts(self, alpha):
    # Labels drawn by q ~ Dirichlet(alpha, ..., alpha) are equal with probability
    # E[sum q^2] = (1 + alpha) / (1 + K alpha), as in Polya's urn. The first half of the clients
    # draws while no label has run out: at most half of the examples are gone. The mean over 1,000
    # clients of a number in [0, 1] has a standard deviation below 0.5 / sqrt(1000) = 0.016.
    labels = _labels()
    found = _coincidences(_split(alpha)[: _CLIENTS // 2], labels).mean()
    assert found == pytest.approx((1 + alpha) / (1 + _CLASSES * alpha), abs=4 * 0.016)

  def test_labels_equal_single_draws_in_numpy(self):
    # An independent draw: one label after the other, by weights without the labels that are gone.
    labels, alpha, size = _labels((40, 25, 15)), 0.5, 8
    def one_by_one(rng):
      left, clients = np.bincount(labels), []
      for _ in range(len(labels) // size):
        q, own = rng.dirichlet(alpha * 3 * np.bincount(labels) / len(labels)), []
        for _ in range(size):
          weights = np.where(left > 0, q, 0)
          own.append(rng.choice(3, p=weights / weights.sum()))
          left[own[-1]] -= 1
        clients.append(np.bincount(own, minlength=3))
      return clients

    def moments(clients):  # [repeats, clients, labels] -> means, and means of squares.
      return np.stack([np.mean(clients, axis=0), np.mean(np.square(clients), axis=0)])

    repeats = 1000
    ours = [
        [np.bincount(labels[part], minlength=3) for part in _split(alpha, labels, 10, seed)]
        for seed in range(repeats)
    ]
    others = [one_by_one(np.random.default_rng([1, seed])) for seed in range(repeats)]
    # Counts are in [0, 8], and squares in [0, 64], with deviations of at most 4 and 32. A
    # difference of two means over 1,000 exceeds 5 standard deviations in one of the 60 numbers with
    # a probability under 4e-5. The last clients, who draw what is left, are among them.
    bounds = 5 * np.array([4, 32]).reshape(2, 1, 1) * np.sqrt(2 / repeats)
    assert np.all(np.abs(moments(ours) - moments(others)) < bounds)

  def test_labels_of_clients_have_the_frequencies_of_the_pool(self):
    # Of uneven labels, as of SVHN: with a uniform prior the first clients would have a quarter
    # each. The mean share over 500 of 1,000 clients deviates by at most 0.5 / sqrt(500) = 0.022.
    counts = np.array([4000, 2000, 1000, 1000])
    labels = _labels(tuple(counts))
    for alpha in (0.2, 1e6):
      first = np.concatenate(_split(alpha, labels, 1000)[:500])
      shares = np.bincount(labels[first]) / len(first)
      np.testing.assert_allclose(shares, counts / counts.sum(), atol=4 * 0.022)

  def test_skew_grows_as_alpha_falls(self):
    labels = _labels()
    skews = [_coincidences(_split(alpha), labels).mean() for alpha in (1e-3, 0.1, 0.6, 5, 1e6)]
    assert skews == sorted(skews, reverse=True)
    even = task_lib.split_evenly(np.arange(len(labels)), labels, _CLIENTS)
    # Over 2,000 clients of 10 examples: 45 pairs, each equal with probability 0.1, so that the mean
    # of an even cut has a standard deviation of 0.3 / sqrt(45 * 2000) = 0.001.
    assert skews[-1] == pytest.approx(_coincidences([x for x, _ in even], labels).mean(), abs=0.006)
