"""The systems that the paper compares Fed-SMP with, as learning processes."""

from typing import Any, Optional

import tensorflow_federated as tff

from fedsmp_tff import aggregator
from fedsmp_tff import client_training
from fedsmp_tff import learning_process
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import mechanism as mechanism_lib


def build_dp_fedavg(
    model: tff.learning.models.FunctionalModel,
    training: client_training.LocalTraining,
    mechanism: mechanism_lib.Mechanism,
    *,
    server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
    seed: Optional[int] = None,
) -> tff.learning.templates.LearningProcess:
  """Builds DP-FedAvg (Algorithm 2 of the paper): clip and noise on all d coordinates.

  Args:
    model: See `build_fed_smp`.
    training: See `build_fed_smp`.
    mechanism: The options of the private sum, as `PrivacySpec.mechanism()` makes them.
    server_optimizer: See `build_fed_smp`.
    seed: See `build_fed_smp`.

  Returns:
    See `build_fed_smp`.
  """
  if not mechanism.private:
    raise ValueError(
        '`mechanism` must have a `clipping_norm`; without one this is `build_fedavg`. Found'
        f' {mechanism}.'
    )
  return _build(
      model, training, sparsifiers.Dense(), mechanism, server_optimizer, seed
  )


def build_fedavg(
    model: tff.learning.models.FunctionalModel,
    training: client_training.LocalTraining,
    clients_per_round: int,
    *,
    server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
    seed: Optional[int] = None,
) -> tff.learning.templates.LearningProcess:
  """Builds FedAvg with an unweighted mean: all coordinates, no DP.

  Args:
    model: See `build_fed_smp`.
    training: See `build_fed_smp`.
    clients_per_round: r; `next` takes exactly that many clients.
    server_optimizer: See `build_fed_smp`.
    seed: See `build_fed_smp`.

  Returns:
    See `build_fed_smp`.
  """
  return _build(
      model, training, sparsifiers.Dense(), mechanism_lib.Mechanism(clients_per_round),
      server_optimizer, seed,
  )


def build_fedavg_randk(
    model: tff.learning.models.FunctionalModel,
    training: client_training.LocalTraining,
    clients_per_round: int,
    compression_ratio: float,
    *,
    server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
    seed: Optional[int] = None,
) -> tff.learning.templates.LearningProcess:
  """Builds FedAvg on random coordinates that all clients of a round share; no DP.

  Args:
    model: See `build_fed_smp`.
    training: See `build_fed_smp`.
    clients_per_round: r; `next` takes exactly that many clients.
    compression_ratio: p in (0, 1].
    server_optimizer: See `build_fed_smp`.
    seed: See `build_fed_smp`.

  Returns:
    See `build_fed_smp`.
  """
  return _build(
      model, training, sparsifiers.RandK(compression_ratio),
      mechanism_lib.Mechanism(clients_per_round), server_optimizer, seed,
  )


def build_fedavg_topk(
    model: tff.learning.models.FunctionalModel,
    training: client_training.LocalTraining,
    clients_per_round: int,
    compression_ratio: float,
    public_examples: Any,
    *,
    server_optimizer: Optional[tff.learning.optimizers.Optimizer] = None,
    seed: Optional[int] = None,
) -> tff.learning.templates.LearningProcess:
  """Builds FedAvg on the top k coordinates of an update on public data; no DP.

  Args:
    model: See `build_fed_smp`.
    training: See `build_fed_smp`.
    clients_per_round: r; `next` takes exactly that many clients.
    compression_ratio: p in (0, 1].
    public_examples: See `TopK`.
    server_optimizer: See `build_fed_smp`.
    seed: See `build_fed_smp`.

  Returns:
    See `build_fed_smp`.
  """
  topk = sparsifiers.TopK(compression_ratio, public_examples=public_examples)
  return _build(
      model, training, topk, mechanism_lib.Mechanism(clients_per_round), server_optimizer, seed
  )


def _build(model, training, sparsifier, mechanism, server_optimizer, seed):
  return learning_process.build_fed_smp(
      model, training, aggregator.FedSmpFactory(sparsifier, mechanism),
      server_optimizer=server_optimizer, seed=seed,
  )
