"""The training loop: who takes part, round after round, and what is reported."""

from collections.abc import Callable, Sequence
import dataclasses
import time
from typing import Any, Optional

import numpy as np
import tensorflow_federated as tff

from fedsmp_tff import checkpoints as checkpoints_lib
from fedsmp_tff import runtime

_SEED_WORDS = 8


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
      ValueError: If r is not from 1 to n, or `seed` not from 0 to 2^256 - 1.
    """
    if not 1 <= clients_per_round <= population:
      raise ValueError(
          f'`clients_per_round` must be from 1 to `population`={population}.'
          f' Found {clients_per_round}.'
      )
    self._population = population
    self._clients_per_round = clients_per_round
    if seed is not None and not 0 <= seed < 2 ** (32 * _SEED_WORDS):
      raise ValueError(f'`seed` must be from 0 to 2^256 - 1. Found {seed}.')
    self._entropy = np.random.SeedSequence(seed).entropy

  def sample(self, round_num: int) -> np.ndarray:
    """The clients of a round: distinct numbers below n, int64[r]."""
    rng = np.random.default_rng([self._entropy, round_num])
    return rng.choice(self._population, self._clients_per_round, replace=False)

  def state(self) -> np.ndarray:
    """What `restore` takes, uint32[8]: as secret as the seed."""
    return np.array(
        [self._entropy >> (32 * i) & 0xFFFFFFFF for i in range(_SEED_WORDS)],
        np.uint32,
    )

  def restore(self, state: np.ndarray) -> None:
    """Makes this sampler choose as the one that gave `state`."""
    self._entropy = sum(int(word) << (32 * i) for i, word in enumerate(state))


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


class Reporter:
  """Hears of every round, and is carried over from one process to the next."""

  def __call__(self, report: RoundReport) -> None:
    """Takes in a round; called once before the first, too."""

  def state(self) -> Any:
    """What a checkpoint keeps: arrays and NumPy scalars, always of one structure."""
    return ()

  def restore(self, rounds_done: int, state: Any) -> None:
    """Goes on as after `rounds_done` rounds.

    Args:
      rounds_done: The rounds that are not run again.
      state: What `state` returned after them.
    """


def run(
    process: tff.learning.templates.LearningProcess,
    client_data: Callable[[int], Any],
    sampler: FixedSizeSampler,
    rounds: int,
    evaluate: Callable[[Any, bool], Any],
    rounds_per_evaluation: int,
    reporters: Sequence[Reporter],
    *,
    checkpoints: Optional[checkpoints_lib.Checkpoints] = None,
    between_rounds: Callable[[], None] = lambda: None,
) -> tuple[Any, Optional[BaseException]]:
  """Runs `rounds` rounds, evaluating at times, and reports each round as it ends.

  With `checkpoints` it goes on after the last one, and a round's checkpoint is
  written after it was reported. So whatever ends the process, all rounds of the
  last checkpoint have been reported; those after it are run, and reported, again.

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
    checkpoints: Where the run is kept, and found again; None: nowhere. Whatever
      ends the run, the state after the last reported round is saved.
    between_rounds: Called before each round; a `KeyboardInterrupt` from it ends
      the run there.

  Returns:
    The weights after the last round that was reported, so that what is reported as
    spent covers what is released; and the `KeyboardInterrupt` or
    `runtime.WorkersLostError` that ended the run early, or None. Before anything
    was reported these are raised instead.

  Raises:
    CheckpointError: If a checkpoint can't be read or written.
  """

  def program_state(rounds_done, state):
    return checkpoints_lib.ProgramState(
        run_id=b'',
        rounds_done=np.int32(rounds_done),
        process=state,
        sampler=sampler.state(),
        reporters=tuple(reporter.state() for reporter in reporters),
    )

  saved = None
  if checkpoints is not None:
    saved = checkpoints.latest(program_state(0, _zeros(process)))
  if saved is None:
    state, rounds_done = process.initialize(), 0
  else:
    state, rounds_done = saved.process, int(saved.rounds_done)
    sampler.restore(saved.sampler)
    for reporter, carried in zip(reporters, saved.reporters):
      reporter.restore(rounds_done, carried)
  reported, stopped_by = saved, None

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
    return program_state(rounds_done, state)

  def save_if_due():
    if checkpoints is not None and checkpoints.due(int(reported.rounds_done)):
      checkpoints.save(reported)

  try:
    if reported is None:
      reported = report(0, None, 0.0)
      save_if_due()
    for round_num in range(rounds_done, rounds):
      between_rounds()
      start = time.monotonic()
      cohort = [client_data(int(i)) for i in sampler.sample(round_num)]
      output = process.next(state, cohort)
      state = output.state
      reported = report(
          round_num + 1, output.metrics, time.monotonic() - start
      )
      save_if_due()
  except (KeyboardInterrupt, runtime.WorkersLostError) as error:
    if reported is None:
      raise
    stopped_by = error
  finally:
    if checkpoints is not None and reported is not None:
      checkpoints.save(reported)
  return process.get_model_weights(reported.process), stopped_by


def _zeros(process: tff.learning.templates.LearningProcess) -> Any:
  """A state of zeros."""
  return tff.types.structure_from_tensor_type_tree(
      lambda leaf: np.zeros(leaf.shape, leaf.dtype),
      process.initialize.type_signature.result.member,
  )
