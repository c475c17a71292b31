"""The training loop: samples the participants of each round, runs it and reports it."""

from collections.abc import Callable, Mapping
import dataclasses
import time
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import cohorts
from fedsmp_tff import local_training
from fedsmp_tff import runtime
from fedsmp_tff.privacy import budget as budget_lib
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import sampling
from fedsmp_tff.program import checkpoints as checkpoints_lib
from fedsmp_tff.runtime import map_reduce


@dataclasses.dataclass(frozen=True)
class RoundReport:
  """The results of a round.

  Attributes:
    rounds_done: Number of finished rounds, this one included; 0 before the first.
    rounds_charged: Number of rounds that count for privacy: `rounds_done`, and lost rounds, which
      only a ledger knows.
    weights: The model's weights after the round.
    metrics: The metrics of the process; None before the first round.
    evaluation: The result of the evaluation; None if there was none.
    round_seconds: Duration of the round.
    evaluation_seconds: Duration of the evaluation.
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
    """Receives the report of a round; also called once before the first."""

  def state(self) -> Any:
    """Returns the state for a checkpoint: arrays and NumPy scalars in a fixed structure."""
    return ()

  def restore(self, rounds_done: int, state: Any) -> None:
    """Restores the result of `state` after `rounds_done` rounds, which are not run again."""


def run(
    process: tff.learning.templates.LearningProcess,
    client_data: cohorts.ClientDatasets,
    sampler: sampling.Sampler,
    rounds: int,
    evaluate: Callable[[int, Any], Optional[Any]],
    reporters: Mapping[str, Reporter],
    *,
    checkpoints: Optional[checkpoints_lib.Checkpoints] = None,
    ledger: Optional[ledger_lib.Ledger] = None,
    between_rounds: Callable[[], None] = lambda: None,
) -> tuple[Any, Optional[BaseException]]:
  """Runs `rounds` rounds, and reports each at its end.

  With `checkpoints` the run resumes after the last one, and a round's checkpoint is written after
  its report. So however the process ends, all rounds of the last checkpoint have been reported;
  later rounds are run and reported again. With `ledger` each round is recorded before it begins.
  Where a round that is run again counts again, since its noise is fresh, each round's checkpoint is
  written, so that a killed process loses one round; elsewhere they take at most 5 % of the time.

  A round that is repeated with fresh noise gets a new draw of clients: two releases on one draw
  are not two independent rounds. Checkpoints have no sampler state, so that no copy of them
  repeats a draw either. So a run that resumes begins a new block of an allocation, which `ledger`
  charges; without `ledger` it can resume only between two blocks. A seeded sampler, for simulation
  with seeded noise, repeats its draws, and must have the same seed when the run resumes.

  Args:
    process: The learning process.
    client_data: The data of all clients: datasets, or a function; see `cohorts.cohort`.
    sampler: Sampler of the participants of each round.
    rounds: T.
    evaluate: Function from the number of finished rounds and the model's weights, before the first
      round and after each, to a result for the reporters, or None if none is due (`is_due`).
    reporters: Reporters by name, called in their order after each round, and once before the first.
      A checkpoint has their states by name; a reporter without a state may come and go.
    checkpoints: Store of the state after the last reported round, however the run ends; None: no
      checkpoints.
    ledger: Record of each round before it begins; None: no ledger.
    between_rounds: Function called before each round; its `KeyboardInterrupt` ends the run there.

  Returns:
    The weights after the last reported round, so that the reported epsilon covers them; and the
    `KeyboardInterrupt`, `budget.BudgetSpentError` or `runtime.WorkersLostError` that ended the run
    early, or None. Before anything was reported these are raised instead.

  Raises:
    CheckpointError: If a checkpoint can't be read or written.
    LedgerError: If the ledger does not match the checkpoint, or can't be written.
    RuntimeError: If the current TFF context has no secure sums.
    ValueError: If there is a ledger whose epsilon does not cover the run: the process aggregates
      client values outside secure aggregation or releases metrics of clients, the sampler or the
      mechanism does not match the ledger's `spec`, or only some of process, sampler and ledger have
      a seed. Mechanism and seed of a process that `build_fed_smp` did not make are unknown, and not
      checked.
  """
  if ledger is not None:
    _check_releases(process)
    _check_is_of_ledger(process, sampler, ledger)
  progress = _Progress(process, evaluate, reporters, checkpoints, ledger)
  if progress.resume():
    state, rounds_done = progress.reported.process, int(progress.reported.rounds_done)
  else:
    state, rounds_done = process.initialize(), 0
    if not hasattr(process, 'mechanism'):  # `build_fed_smp` warns itself.
      weights = process.get_model_weights(state)
      local_training.warn_about_batch_norm(getattr(weights, 'non_trainable', ()))
  stopped_by = None
  try:
    if progress.reported is None:
      progress.report(0, state, None, 0.0)
    for round_num in range(rounds_done, rounds):
      between_rounds()
      start = time.monotonic()
      draw = round_num if ledger is None else ledger.begin(round_num)
      cohort = cohorts.cohort(sampler.sample(draw), client_data)
      with map_reduce.explain_default_context():
        output = process.next(state, cohort)
      state = output.state
      progress.report(round_num + 1, state, output.metrics, time.monotonic() - start)
  except (KeyboardInterrupt, budget_lib.BudgetSpentError, runtime.WorkersLostError) as error:
    if progress.reported is None:
      raise
    stopped_by = error
  finally:
    if checkpoints is not None and progress.reported is not None:
      checkpoints.save(progress.reported)
  return process.get_model_weights(progress.reported.process), stopped_by


@dataclasses.dataclass
class _Progress:
  """Reports rounds, saves checkpoints, and resumes from them; for the arguments see `run`."""

  process: tff.learning.templates.LearningProcess
  evaluate: Callable[[int, Any], Optional[Any]]
  reporters: Mapping[str, Reporter]
  checkpoints: Optional[checkpoints_lib.Checkpoints]
  ledger: Optional[ledger_lib.Ledger]
  reported: Optional[checkpoints_lib.ProgramState] = None  # After the last reported round.

  def resume(self) -> bool:
    """Restores the last checkpoint; returns whether there is one."""
    if self.checkpoints is not None:
      zeros = tff.types.structure_from_tensor_type_tree(
          lambda leaf: np.zeros(leaf.shape, leaf.dtype),
          self.process.initialize.type_signature.result.member,
      )
      self.reported = self.checkpoints.latest(self._program_state(0, zeros))
    if self.reported is None:
      return False
    if self.ledger is not None:
      self.ledger.check(self.reported.ledger)
    for name, reporter in self.reporters.items():
      reporter.restore(int(self.reported.rounds_done), self.reported.reporters[name])
    return True

  def report(self, rounds_done: int, state: Any, metrics: Any, seconds: float) -> None:
    """Evaluates and reports a round, and then saves a checkpoint if one is due."""
    weights = self.process.get_model_weights(state)
    start = time.monotonic()
    evaluation = self.evaluate(rounds_done, weights)
    evaluation_seconds = time.monotonic() - start
    charged = rounds_done if self.ledger is None else self.ledger.rounds_charged(rounds_done)
    for reporter in self.reporters.values():
      reporter(RoundReport(
          rounds_done, charged, weights, metrics, evaluation, seconds, evaluation_seconds
      ))
    self.reported = self._program_state(rounds_done, state)
    if self.checkpoints is not None and (self._repeats_count() or self.checkpoints.due()):
      self.checkpoints.save(self.reported)

  def _repeats_count(self) -> bool:
    """Returns whether a round that is lost and run again, with fresh noise, counts twice."""
    ledger = self.ledger
    return ledger is not None and not ledger.seeded and ledger.spec.noise_multiplier > 0

  def _program_state(self, rounds_done: int, state: Any) -> checkpoints_lib.ProgramState:
    return checkpoints_lib.ProgramState(
        rounds_done=np.int32(rounds_done),
        process=state,
        ledger=() if self.ledger is None else self.ledger.state(),
        reporters={name: reporter.state() for name, reporter in self.reporters.items()},
    )


def _check_releases(process: tff.learning.templates.LearningProcess) -> None:
  """Raises ValueError if a process releases client values without noise, as far as types show."""
  try:
    tff.test.assert_not_contains_unsecure_aggregation(process.next)
  except AssertionError as error:
    raise ValueError(
        '`process` aggregates client values outside secure aggregation, without noise: the epsilon'
        " of `ledger` does not cover them. Give a process of TFF's"
        ' `metrics_aggregator=fedsmp_tff.no_client_metrics`, and a `FedSmpFactory` for all of its'
        " aggregators (docs/aggregator.md, 'What keeps the guarantee'); or run it without `ledger`."
    ) from error
  metrics = process.next.type_signature.result['metrics'].member
  released = metrics['client_work'] if 'client_work' in dir(metrics) else ()
  if tf.nest.flatten(tff.types.structure_from_tensor_type_tree(lambda leaf: leaf, released)):
    raise ValueError(
        '`process` releases metrics of clients exactly: the epsilon of `ledger` does not cover'
        ' them. Build it with `metrics_aggregator=fedsmp_tff.no_client_metrics`, or run it without'
        ' `ledger`.'
    )


def _check_is_of_ledger(
    process: tff.learning.templates.LearningProcess,
    sampler: sampling.Sampler,
    ledger: ledger_lib.Ledger,
) -> None:
  """Raises ValueError if sampler, mechanism or seeds do not match the ledger."""
  spec = ledger.spec
  names = ('__class__', 'population', 'clients_per_round', 'num_slots')
  compared = [('sampler', sampler, spec.sampler(), names, 'Pass `spec.sampler()`')]
  mechanism = getattr(process, 'mechanism', None)
  if mechanism is not None:
    # Noise is in units of C, so that a C that adapts does not change epsilon.
    names = [f.name for f in dataclasses.fields(mechanism) if f.name != 'adaptive_clipping']
    remedy = 'Build its `FedSmpFactory` with `spec.mechanism()`'
    compared.append(('process.mechanism', mechanism, spec.mechanism(), names, remedy))
  for title, actual, expected, names, remedy in compared:
    for name in names:
      value, needed = getattr(actual, name, None), getattr(expected, name)
      if value != needed:
        raise ValueError(
            f'`{title}` must match `ledger.spec`, with `{name}`={needed}. Found {value}. {remedy}.'
        )
  parts = {'process': process, 'sampler': sampler, 'ledger': ledger}
  seeded = {name: getattr(part, 'seeded', ledger.seeded) for name, part in parts.items()}
  if len({*seeded.values()}) > 1:
    raise ValueError(
        '`process`, `sampler` and `ledger` must all be seeded, for simulation, or none: epsilon'
        f' needs fresh draws and noise. Seeded: {", ".join(n for n in seeded if seeded[n])}.'
    )


def is_due(rounds_done: int, every: int, rounds: int) -> bool:
  """Returns whether a periodic event is due: every `every` rounds, and after all `rounds`.

  >>> [rounds_done for rounds_done in range(6) if is_due(rounds_done, every=2, rounds=5)]
  [0, 2, 4, 5]
  """
  return rounds_done == rounds or rounds_done % every == 0
