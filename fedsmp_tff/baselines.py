"""The systems that the paper compares Fed-SMP with, as learning processes."""

from typing import Any

import tensorflow_federated as tff

from fedsmp_tff import client_training
from fedsmp_tff import learning_process
from fedsmp_tff import sparsifiers


def build_dp_fedavg(
    model: tff.learning.models.FunctionalModel,
    training: client_training.LocalTraining,
    **options: Any,
) -> tff.learning.templates.LearningProcess:
  """DP-FedAvg (Algorithm 2 of the paper): clip and noise on all d coordinates.

  Args:
    model: See `build_fed_smp`.
    training: See `build_fed_smp`.
    **options: `clients_per_round`, `clipping_norm`, `noise_multiplier` and the
      optional ones of `build_fed_smp`.

  Returns:
    See `build_fed_smp`.
  """
  return learning_process.build_fed_smp(model, training, sparsifiers.Dense(), **options)


def build_fedavg_randk(
    model: tff.learning.models.FunctionalModel,
    training: client_training.LocalTraining,
    compression_ratio: float,
    **options: Any,
) -> tff.learning.templates.LearningProcess:
  """FedAvg on random coordinates that all clients of a round share; no DP.

  Args:
    model: See `build_fed_smp`.
    training: See `build_fed_smp`.
    compression_ratio: p in (0, 1].
    **options: `clients_per_round` and the optional ones of `build_fed_smp`.

  Returns:
    See `build_fed_smp`.
  """
  return _without_privacy(
      model, training, sparsifiers.RandK(compression_ratio), **options
  )


def build_fedavg_topk(
    model: tff.learning.models.FunctionalModel,
    training: client_training.LocalTraining,
    compression_ratio: float,
    public_examples: Any,
    **options: Any,
) -> tff.learning.templates.LearningProcess:
  """FedAvg on the top k coordinates of an update on public data; no DP.

  Args:
    model: See `build_fed_smp`.
    training: See `build_fed_smp`.
    compression_ratio: p in (0, 1].
    public_examples: See `TopK`.
    **options: `clients_per_round` and the optional ones of `build_fed_smp`.

  Returns:
    See `build_fed_smp`.
  """
  topk = sparsifiers.TopK(compression_ratio, public_examples=public_examples)
  return _without_privacy(model, training, topk, **options)


def build_fedavg(
    model: tff.learning.models.FunctionalModel,
    training: client_training.LocalTraining,
    **options: Any,
) -> tff.learning.templates.LearningProcess:
  """FedAvg with an unweighted mean: all coordinates, no DP.

  Args:
    model: See `build_fed_smp`.
    training: See `build_fed_smp`.
    **options: `clients_per_round` and the optional ones of `build_fed_smp`.

  Returns:
    See `build_fed_smp`.
  """
  return _without_privacy(model, training, sparsifiers.Dense(), **options)


def _without_privacy(model, training, sparsifier, **options):
  return learning_process.build_fed_smp(
      model,
      training,
      sparsifier,
      clipping_norm=None,
      noise_multiplier=None,
      **options,
  )
