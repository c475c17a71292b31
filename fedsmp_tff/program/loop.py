"""The training loop: samples the participants of each round, runs it and reports it."""

from collections.abc import Callable, Sequence
import dataclasses
import time
from typing import Any, Optional

import grpc
import numpy as np
import tensorflow_federated as tff

from fedsmp_tff import runtime
from fedsmp_tff.privacy import budget as budget_lib
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import sampling
from fedsmp_tff.program import checkpoints as checkpoints_lib


@dataclasses.dataclass(frozen=True)
class RoundReport:
  """The results of a round.

  Attributes:
    rounds_done: Number of rounds that ended, this one included; 0 before the first.
    rounds_charged: Number of rounds that count for privacy: the same, and those that were
      begun and lost.
    weights: The model's weights after the round.
    metrics: The metrics of the process; None before the first round.
    evaluation: The result of the evaluation; None if there was none.
    round_seconds: Time that the round took.
    evaluation_seconds: Time that the evaluation took.
  """

  rounds_done: int
  rounds_charged: int
  weights: Any
  metrics: Optional[Any] = None
  evaluation: Optional[Any] = None
  round_seconds: float = 0.0
  evaluation_seconds: float = 0.0


class Reporter:
  """Receives a report after every round; checkpoints contain its state."""

  def __call__(self, report: RoundReport) -> None:
    """Receives the report of a round; called once before the first, too."""

  def state(self) -> Any:
    """Returns its state for a checkpoint: arrays and NumPy scalars in a fixed structure."""
    return ()

  def restore(self, rounds_done: int, state: Any) -> None:
    """Restores the state after `rounds_done` rounds.

    Args:
      rounds_done: Number of rounds that are not run again.
      state: The result of `state` after them.
    """


def run(
    process: tff.learning.templates.LearningProcess,
    client_data: Callable[[int], Any],
    sampler: sampling.Sampler,
    rounds: int,
    evaluate: Callable[[int, Any], Optional[Any]],
    reporters: Sequence[Reporter],
    *,
    checkpoints: Optional[checkpoints_lib.Checkpoints] = None,
    ledger: Optional[ledger_lib.Ledger] = None,
    between_rounds: Callable[[], None] = lambda: None,
) -> tuple[Any, Optional[BaseException]]:
  """Runs `rounds` rounds, and reports each as it ends.

  With `checkpoints` the run resumes after the last one, and a round's checkpoint is
  written after it was reported. So whatever ends the process, all rounds of the
  last checkpoint have been reported; those after it are run, and reported, again.
  With `ledger` each round is recorded before it begins.

  A round that is run again with fresh noise gets a new draw of clients: two releases on one draw
  are not two independent rounds. Checkpoints have nothing of the sampler, so that no copy of them
  repeats a draw either: without a seed each draw is fresh. A sampler with a seed must have the same
  one when the run resumes, and repeats its draws: for simulation, where the noise follows from a
  seed too.

  Args:
    process: The learning process.
    client_data: Maps a client's number to what `process.next` takes for it; a negative
      number's is that of a client without examples.
    sampler: Chooses the participants of each round.
    rounds: T.
    evaluate: Called before the first round and after each, with the number of rounds that
      ended and the model's weights; returns whatever the reporters understand, or None
      where nothing was due (`every`).
    reporters: Called in turn after each round, and once before the first.
    checkpoints: Saves the run's state and restores it; None: no checkpoints. Whatever
      ends the run, the state after the last reported round is saved.
    ledger: Records each round before it begins; None: no ledger.
    between_rounds: Called before each round; a `KeyboardInterrupt` from it ends
      the run there.

  Returns:
    The weights after the last round that was reported, so that what is reported as
    spent covers what is released; and the `KeyboardInterrupt`, `budget.BudgetSpentError` or
    `runtime.WorkersLostError` that ended the run early, or None. Before anything
    was reported these are raised instead.

  Raises:
    CheckpointError: If a checkpoint can't be read or written.
    LedgerError: If the ledger is not the one that the checkpoint knows.
    RuntimeError: If the current TFF context has no secure sums.
    ValueError: If there is a ledger whose epsilon does not cover what runs: the process adds
      something of clients outside of secure aggregation, the sampler is not that of the ledger's
      `spec`, or one of sampler and ledger has a seed, or the mechanism is not that of `spec`. The
      mechanism of a `build_fed_smp` process is known; that of another process, such as a stock
      one with a `FedSmpFactory`, is not, and is not checked.
  """
  if ledger is not None:
    _check_sums_are_secure(process)
    _check_is_of_ledger(process, sampler, ledger)

  def program_state(rounds_done, state):
    return checkpoints_lib.ProgramState(
        run_id=b'',
        rounds_done=np.int32(rounds_done),
        process=state,
        ledger=() if ledger is None else ledger.state(),
        reporters=tuple(reporter.state() for reporter in reporters),
    )

  saved = None
  if checkpoints is not None:
    saved = checkpoints.latest(program_state(0, _zeros(process)))
  if saved is None:
    state, rounds_done = process.initialize(), 0
  else:
    state, rounds_done = saved.process, int(saved.rounds_done)
    if ledger is not None:
      ledger.check(saved.ledger)
    for reporter, carried in zip(reporters, saved.reporters):
      reporter.restore(rounds_done, carried)
  reported, stopped_by = saved, None

  def report(rounds_done, metrics, seconds):
    weights = process.get_model_weights(state)
    start = time.monotonic()
    evaluation = evaluate(rounds_done, weights)
    evaluation_seconds = time.monotonic() - start
    charged = rounds_done if ledger is None else ledger.rounds_charged(rounds_done)
    for reporter in reporters:
      reporter(
          RoundReport(
              rounds_done, charged, weights, metrics, evaluation, seconds, evaluation_seconds
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
      draw = round_num if ledger is None else ledger.begin(round_num)
      cohort = [client_data(int(i)) for i in sampler.sample(draw)]
      output = _next(process, state, cohort)
      state = output.state
      reported = report(round_num + 1, output.metrics, time.monotonic() - start)
      save_if_due()
  except (KeyboardInterrupt, budget_lib.BudgetSpentError, runtime.WorkersLostError) as error:
    if reported is None:
      raise
    stopped_by = error
  finally:
    if checkpoints is not None and reported is not None:
      checkpoints.save(reported)
  return process.get_model_weights(reported.process), stopped_by


def _check_sums_are_secure(process: tff.learning.templates.LearningProcess) -> None:
  """Raises ValueError if a process adds anything of clients outside of secure aggregation."""
  try:
    tff.test.assert_not_contains_unsecure_aggregation(process.next)
  except AssertionError as error:
    raise ValueError(
        '`process` adds something of clients outside of secure aggregation, exactly, which the'
        " epsilon of `ledger` does not cover. Give a process of TFF's"
        ' `metrics_aggregator=fedsmp_tff.no_client_metrics`, and a `FedSmpFactory` for all of its'
        " aggregators (docs/composing.md, 'What keeps the guarantee'); or run it without `ledger`."
    ) from error


def _check_is_of_ledger(
    process: tff.learning.templates.LearningProcess,
    sampler: sampling.Sampler,
    ledger: ledger_lib.Ledger,
) -> None:
  """Raises ValueError if what samples or adds noise is not what the ledger's epsilon is about."""
  spec = ledger.spec
  names = ('__class__', 'population', 'clients_per_round', 'num_slots')
  _check_equal('sampler', sampler, spec.sampler(), names, 'pass `spec.sampler()`')
  if sampler.seeded != ledger.seeded:
    raise ValueError(
        '`sampler` and `ledger` must both have a seed, for simulation, or neither: epsilon needs'
        f' fresh draws and fresh noise. Found that only `{"sampler" if sampler.seeded else "ledger"}`'
        ' has one.'
    )
  mechanism = getattr(process, 'mechanism', None)
  if mechanism is not None:
    # Noise is in units of C, so that these do not change epsilon.
    free = ('clipping_schedule', 'adaptive_clipping')
    names = [f.name for f in dataclasses.fields(mechanism) if f.name not in free]
    _check_equal(
        'process.mechanism', mechanism, spec.mechanism(), names,
        'build its `FedSmpFactory` with `spec.mechanism()`',
    )


def _check_equal(title: str, actual: Any, expected: Any, names: Sequence[str], remedy: str) -> None:
  """Raises ValueError if an attribute differs from that of what `ledger.spec` makes."""
  for name in names:
    found, needed = getattr(actual, name, None), getattr(expected, name)
    if found != needed:
      raise ValueError(
          f'`{title}` must be that of `ledger.spec`, with `{name}`={needed}. Found {found};'
          f' {remedy}.'
      )


def _next(process: tff.learning.templates.LearningProcess, state: Any, cohort: list[Any]) -> Any:
  """Runs `process.next`; names the remedy where TFF's default context can't."""
  try:
    return process.next(state, cohort)
  except grpc.RpcError as error:
    if 'Cannot embed a federated value' not in str(error):
      raise
    raise RuntimeError(
        "TFF's default context has no secure sums; call `fedsmp_tff.runtime.set_local_context()`,"
        ' or another of `fedsmp_tff.runtime`, before anything runs.'
    ) from error


def every(
    rounds_per_evaluation: int, rounds: int, measure: Callable[[Any], Any]
) -> Callable[[int, Any], Optional[Any]]:
  """Returns an `evaluate` of `run` that measures at times.

  Args:
    rounds_per_evaluation: Rounds from one measurement to the next, from the first weights on.
    rounds: T; the last weights are measured in any case.
    measure: Maps weights to whatever the reporters understand.
  """

  def evaluate(rounds_done, weights):
    return measure(weights) if is_due(rounds_done, rounds_per_evaluation, rounds) else None

  return evaluate


def is_due(rounds_done: int, every: int, rounds: int) -> bool:
  """Whether what is due every so many rounds, and after the last of `rounds`, is due.

  >>> [rounds_done for rounds_done in range(6) if is_due(rounds_done, every=2, rounds=5)]
  [0, 2, 4, 5]
  """
  return rounds_done == rounds or rounds_done % every == 0


def _zeros(process: tff.learning.templates.LearningProcess) -> Any:
  """A state of zeros."""
  return tff.types.structure_from_tensor_type_tree(
      lambda leaf: np.zeros(leaf.shape, leaf.dtype),
      process.initialize.type_signature.result.member,
  )
