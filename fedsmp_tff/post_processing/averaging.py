"""Averages of the weights over rounds: less noise than the last ones, from the same releases."""

import abc
from typing import Any

import numpy as np
import tensorflow as tf

from fedsmp_tff.post_processing import base


class Average(abc.ABC):
  """An average of the weights that were released so far.

  After Shejwalkar et al. (arXiv 2210.01864): training with noise ends near a good model and
  moves around it; averages of its last places are nearer.

  Privacy: a function of released weights (`base.PostProcessing`).

  Attributes:
    num: Number of weights in the average.
    mean: The average, a structure of arrays like the weights; None before the first.
  """

  def __init__(self):
    self.num = 0
    self.mean = None

  @abc.abstractmethod
  def share(self, num: int) -> float:
    """Returns the share in the average that the `num`-th weights, from 1, get when added."""

  def add(self, weights: Any) -> None:
    """Adds the weights after one more round."""
    self.num += 1
    share = self.share(self.num)
    weights = tf.nest.map_structure(np.asarray, weights)
    if share == 1:
      self.mean = weights
    else:
      self.mean = tf.nest.map_structure(
          lambda mean, new: mean + (share * (new - mean)).astype(mean.dtype),
          self.mean, weights,
      )


class ExponentialAverage(Average):
  """Weighs the weights of t rounds ago by decay^t, without bias from the first round on.

  The share of the n-th weights is max(1 - decay, 1 / n): a plain mean of the first
  1 / (1 - decay) rounds.

  >>> average = ExponentialAverage(decay=0.75)
  >>> for weights in (1.0, 3.0, 5.0):
  ...   average.add([weights])
  >>> average.num, average.mean
  (3, [3.0])
  """

  def __init__(self, decay: float = 0.95):
    super().__init__()
    base.check_decay(decay)
    self._decay = decay

  def share(self, num: int) -> float:
    return max(1 - self._decay, 1 / num)


class TailAverage(Average):
  """The plain mean of the weights after all but the first rounds."""

  def __init__(self, first: int):
    """Initializes.

    Args:
      first: Number of rounds to leave out; during them the average is the last weights.
    """
    super().__init__()
    if first < 0:
      raise ValueError(f'`first` must be at least 0. Found {first}.')
    self._first = first

  def share(self, num: int) -> float:
    return 1 / max(num - self._first, 1)
