"""The paper's algorithm read into NumPy, independently of the library, for comparison."""

import numpy as np


def sparsified_and_clipped(update, coordinates, scale, clipping_norm):
  """Lines 1 to 6 of DP-spar of Algorithm 1, before the noise: a vector [d]."""
  mask = np.zeros(len(update))
  mask[coordinates] = 1
  sparse = scale * np.asarray(update, np.float64) * mask
  if clipping_norm is None:
    return sparse
  norm = np.sqrt(np.sum(sparse**2))
  return sparse * min(1.0, clipping_norm / norm) if norm > 0 else sparse


def mean_without_noise(updates, coordinates, scale, clipping_norm):
  """(1/r) times the sum over clients, sigma = 0: a vector [d]."""
  return sum(
      sparsified_and_clipped(u, coordinates, scale, clipping_norm)
      for u in updates
  ) / len(updates)


def top_coordinates(vector, k):
  """The k largest |values|, lower coordinate first among equals; ascending."""
  return np.sort(np.argsort(-np.abs(vector), kind='stable')[:k])


def linear_regression_update(
    weights, x, y, *, batches, learning_rate, momentum
):
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
