"""Divides examples among clients of equal size whose labels differ: a Dirichlet split."""

import dataclasses
from typing import Optional

import numpy as np

from tasks.cli import options


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of a task that cuts a pool of labeled examples."""

  dirichlet: Optional[float] = options.option(
      None,
      'Concentration of the Dirichlet distribution from which each client draws its distribution of'
      ' labels. Smaller values make clients differ more (default: an even cut).',
      above=0,
  )


def split(
    labels: np.ndarray, num_parts: int, alpha: float, rng: np.random.Generator
) -> list[np.ndarray]:
  """Divides all examples into parts with equal sizes and different label distributions.

  Each part draws its label distribution q from Dirichlet(alpha K f), for K labels with frequencies
  f (Hsu et al. 2019, arXiv 1909.06335, in which f is uniform and alpha stands for alpha K; with
  uniform f it is Dirichlet(alpha, ..., alpha), as in pfl-research and in Flower's
  `InnerDirichletPartitioner`). It then draws its examples by q, without replacement. Where a label
  has run out, q is renormalized over the labels that are left, so that the last parts get what the
  others have left over.

  Args:
    labels: int[N], in random order: examples of a label are taken in this order.
    num_parts: Number of parts, whose sizes differ by at most one.
    alpha: Concentration, positive and finite: parts have about one label near 0, and labels in
      proportion to f at infinity.
    rng: Source of randomness.

  Returns:
    The indices of the examples of each part, ascending; each index is in one part. Examples of a
    label tend to follow each other: shuffle a part before you cut it.
  """
  _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
  by_label = np.split(np.argsort(codes, kind='stable'), np.cumsum(counts)[:-1])
  # Finite in the logarithms below.
  concentration = np.clip(alpha * len(counts) * counts / len(labels), 1e-300, 1e300)
  used, parts = np.zeros_like(counts), []
  for part in np.array_split(np.arange(len(labels)), num_parts):
    drawn = _draw(len(part), _log_dirichlet(concentration, rng), counts - used, rng)
    spans = zip(by_label, used, used + drawn)
    parts.append(np.sort(np.concatenate([own[begin:end] for own, begin, end in spans])))
    used += drawn
  return parts


def _log_dirichlet(concentration: np.ndarray, rng: np.random.Generator) -> np.ndarray:
  """Returns the logarithm of a draw from a Dirichlet distribution, up to a constant.

  The draw itself would be zero where a small concentration makes a label rare, and could not be
  renormalized. A Gamma(a) variable is one of Gamma(a + 1) times u^(1/a), for a uniform u.
  """
  exponential = rng.standard_exponential(len(concentration))
  return np.log(rng.standard_gamma(concentration + 1)) - exponential / concentration


def _draw(
    size: int, log_weights: np.ndarray, left: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
  """Returns the number of examples of each label, at most `left`; `size` in total."""
  drawn = np.zeros_like(left)
  while missing := size - drawn.sum():
    log_open = np.where(drawn < left, log_weights, -np.inf)
    weights = np.exp(log_open - log_open.max())
    drawn = np.minimum(drawn + rng.multinomial(missing, weights / weights.sum()), left)
  return drawn
