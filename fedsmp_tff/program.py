"""The training loop: who takes part, round after round, and what is reported."""

from collections.abc import Callable, Sequence
import dataclasses
import time
from typing import Any, Optional

import numpy as np
import tensorflow_federated as tff

from fedsmp_tff import runtime


class FixedSizeSampler:
  """Exactly r of n clients a round, without replacement: line 1 of Algorithm 1.

  Rounds are independent, and a round's choice depends on nothing but the seed and
  its number.
  """

  def __init__(
      self, population: int, clients_per_round: int, seed: Optional[int] = None
  ):
    """Initializes the sampler.

    Args:
      population: n.
      clients_per_round: r, from 1 to n.
      seed: None takes the operating system's entropy. A privacy claim that rests
        on sampling needs it unknown to those who see the releases.

    Raises:
      ValueError: If r is not from 1 to n.
    """
    if not 1 <= clients_per_round <= population:
      raise ValueError(
          f'`clients_per_round` must be from 1 to `population`={population}.'
          f' Found {clients_per_round}.'
      )
    self._population = population
    self._clients_per_round = clients_per_round
    self._entropy = np.random.SeedSequence(seed).entropy

  def sample(self, round_num: int) -> np.ndarray:
    """The clients of a round: distinct numbers below n, int64[r]."""
    rng = np.random.default_rng([self._entropy, round_num])
    return rng.choice(self._population, self._clients_per_round, replace=False)


@dataclasses.dataclass(frozen=True)
class RoundReport:
  """What is known after a round.

  Attributes:
    rounds_done: Rounds that ended, this one included; 0 before the first.
    metrics: The process's own metrics; None before the first round.
    evaluation: What the evaluation returned; None if there was none.
    round_seconds: Time that the round took.
    evaluation_seconds: Time that the evaluation took.
  """

  rounds_done: int
  metrics: Optional[Any] = None
  evaluation: Optional[Any] = None
  round_seconds: float = 0.0
  evaluation_seconds: float = 0.0


def run(
    process: tff.learning.templates.LearningProcess,
    client_data: Callable[[int], Any],
    sampler: FixedSizeSampler,
    rounds: int,
    evaluate: Callable[[Any, bool], Any],
    rounds_per_evaluation: int,
    reporters: Sequence[Callable[[RoundReport], None]],
) -> tuple[Any, Optional[BaseException]]:
  """Runs `rounds` rounds, evaluating at times, and reports each round as it ends.

  Args:
    process: The learning process.
    client_data: Maps a client's number to what `process.next` takes for it.
    sampler: Chooses the clients of each round.
    rounds: T.
    evaluate: Maps the model's weights, and whether this is the last evaluation, to
      whatever the reporters understand.
    rounds_per_evaluation: Evaluation takes place after that many rounds, and after
      the last, and before the first.
    reporters: Called in turn after each round, and once before the first.

  Returns:
    The weights after the last round that was reported, so that what is reported as
    spent covers what is released; and the `KeyboardInterrupt` or
    `runtime.WorkersLostError` that ended the run early, or None.
  """
  state = reported = process.initialize()
  stopped_by = None

  def report(rounds_done, metrics, seconds):
    last = rounds_done == rounds
    start = time.monotonic()
    evaluation = None
    if last or rounds_done % rounds_per_evaluation == 0:
      evaluation = evaluate(process.get_model_weights(state), last)
    evaluation_seconds = time.monotonic() - start
    for reporter in reporters:
      reporter(
          RoundReport(
              rounds_done, metrics, evaluation, seconds, evaluation_seconds
          )
      )

  try:
    report(0, None, 0.0)
    for round_num in range(rounds):
      start = time.monotonic()
      cohort = [client_data(int(i)) for i in sampler.sample(round_num)]
      output = process.next(state, cohort)
      state = output.state
      report(round_num + 1, output.metrics, time.monotonic() - start)
      reported = state
  except (KeyboardInterrupt, runtime.WorkersLostError) as error:
    stopped_by = error
  return process.get_model_weights(reported), stopped_by
