"""The paper's algorithm read into NumPy, independently of the library, for comparison."""

import decimal
import itertools
import math

import numpy as np


def mean_without_noise(updates, coordinates, scale, clipping_norm):
  """Lines 1 to 6 of DP-spar of Algorithm 1, and the mean over clients: a vector [d], sigma = 0."""
  total = np.zeros(len(updates[0]))
  for update in updates:
    kept = scale * np.asarray(update, np.float64)[coordinates]
    norm = np.linalg.norm(kept)
    if clipping_norm is not None and norm > clipping_norm:
      kept *= clipping_norm / norm
    total[coordinates] += kept
  return total / len(updates)


def top_coordinates(vector, k):
  """The k largest |values|, lower coordinate first among equals; ascending."""
  return np.sort(np.argsort(-np.abs(vector), kind='stable')[:k])


def linear_regression_update(weights, x, y, *, batches, learning_rate, momentum):
  """ClientUpdate for loss mean((x w + b - y)^2) with momentum SGD.

  `batches` lists the rows of each step. Returns old minus new (w, b).
  """
  w, b = (np.array(a, np.float64) for a in weights)
  velocity_w, velocity_b = np.zeros_like(w), np.zeros_like(b)
  for rows in batches:
    residual = x[rows] @ w + b - y[rows]
    gradient_w = 2 * x[rows].T @ residual / residual.size
    gradient_b = 2 * residual.sum(axis=0) / residual.size
    velocity_w = momentum * velocity_w + gradient_w
    velocity_b = momentum * velocity_b + gradient_b
    w = w - learning_rate * velocity_w
    b = b - learning_rate * velocity_b
  return weights[0] - w, weights[1] - b


def energies(releases, shapes, decay):
  """`fedsmp_tff.released.Energies` in plain NumPy, for arrays of one or two axes.

  Args:
    releases: Of (coordinates, values, stddev), the oldest first.
    shapes: Of the model's tensors.
    decay: Of the older ones, with each release.

  Returns:
    Totals, visits, and the estimates of all coordinates.
  """
  dim = sum(map(math.prod, shapes))
  total, visits, noise = np.zeros(dim), np.zeros(dim), 0.0
  for coordinates, values, stddev in (release[:3] for release in releases):
    total, visits, noise = decay * total, decay * visits, decay * noise
    total[coordinates] += values**2 - stddev**2
    visits[coordinates] += 1
    noise += np.sum(stddev**2)
  if not visits.any():
    return total, visits, np.zeros(dim)
  s2 = noise / visits.sum()
  mean = max(total.sum() / visits.sum(), s2 * math.sqrt(2 / visits.sum()))

  def factors(of_groups, expected, seen, level):
    variance = 2 * seen * s2**2 + (4 * s2 + 2 * level) * expected
    with np.errstate(invalid='ignore'):
      weight = expected**2 / (expected**2 + variance)
      found = np.maximum(1 + weight * (of_groups / expected - 1), 0.02)
    return np.where(expected == 0, 1.0, found)

  def relative(*sums):
    found = factors(*sums)
    return len(found) * found / np.sum(found)

  prior, start = [], 0
  for shape in shapes:
    part = slice(start, start + math.prod(shape))
    start = part.stop
    t, n = total[part].reshape(shape), visits[part].reshape(shape)
    level = mean * factors(t.sum(), mean * n.sum(), n.sum(), mean)
    prior.append(np.full(shape, level))
    if len(shape) == 2:
      columns = np.ones(shape[1])
      for _ in range(3):
        rows = relative(t.sum(axis=1), level * n @ columns, n.sum(axis=1), level)
        columns = relative(t.sum(axis=0), level * rows @ n, n.sum(axis=0), level)
      prior[-1] *= np.outer(rows, columns)
  prior = np.concatenate([np.ravel(part) for part in prior])
  estimates, seen = prior.copy(), visits > 0
  precision = visits[seen] * prior[seen] ** 2
  weight = precision / (precision + s2 * (s2 + 2 * prior[seen]))
  estimates[seen] += weight * (total[seen] / visits[seen] - prior[seen])
  return total, visits, estimates


def discrete_gaussian(variance, x):
  """Probabilities of the integers `x`, which are nearly all, in floating point."""
  weights = np.exp(-(x**2) / (2 * variance))
  return weights / weights.sum()


def discrete_gaussian_thresholds(variance, lowest):
  """Cumulative probabilities of all but the last of `lowest` to -`lowest`, in units of 2^-128."""
  with decimal.localcontext(prec=90):
    v = decimal.Decimal(variance)
    weights = [(-x * x / (2 * v)).exp() for x in range(lowest, 1 - lowest)]
    sums = list(itertools.accumulate(weights))
    return [int(part / sums[-1] * 2**128) for part in sums[:-1]]
