"""`python -m tasks.tune`: chooses among settings and trains with the choice, within one epsilon.

Candidates with different server learning rates share a trial: one round of training from the
initial weights, whose release gives a model for each of them. Then one round is a vote: each client
of its cohort reports its loss with every candidate's model. Trials and vote are rounds like all
others, with the same sampling, clip and noise, and so they cost what as many rounds of training
cost. What a client reports leaves it only in the noisy, secure sum.

The run follows in the same directory, and its epsilon includes these rounds. Each has a ledger
there. A choice that is interrupted is made anew, and what it has spent counts.
"""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import itertools
import math
import secrets
import signal
import sys
from typing import Any, Optional

if __name__ == '__main__':
  # While packages are imported, Ctrl-C ends without a traceback.
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# pylint: disable=g-import-not-at-top
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import sampling as sampling_lib
from tasks import errors
from tasks import run as run_lib
from tasks.cli import command
from tasks.cli import signals
from tasks.experiments import grids
from tasks.training import finished
from tasks.training import run_directory
from tasks.training import runtime_flags as runtime_flags_lib
from tasks.training import settings as settings_lib

_NAME = 'tasks.tune'
# What candidates may differ in: clients, initial weights, sampling and noise are the same.
_FREE = (
    'p', 'unbiased', 'clip', 'learning_rate', 'momentum', 'batch_size',
    'local_epochs', 'max_client_examples', 'server_learning_rate',
)
_Settings = settings_lib.RunSettings


def parse(
    arguments: Sequence[str], *tables: type, program: str
) -> tuple[list[_Settings], runtime_flags_lib.RuntimeSettings]:
  """Returns the candidates of a command line: each combination of flags with several values.

  `--p=0.1 --p=0.2`, which a shell makes of `--p={0.1,0.2}`, are two values.

  Raises:
    InputError: If a flag is wrong, or a vote cannot decide between the candidates.
  """
  del tables
  values = {}
  for argument in arguments:
    name, separator, _ = argument.partition('=')
    if not name.startswith('--') or not separator and name.removeprefix('--') in _FREE:
      raise errors.InputError(
          f'{argument} is not of the form --FLAG=VALUE. Write it so, without spaces in braces.'
      )
    for choice in grids.choices(argument):
      values.setdefault(name, {})[choice] = None  # Without repetitions.
  for name, choices in values.items():
    if len(choices) > 1 and name.removeprefix('--') not in _FREE:
      raise errors.InputError(
          f'{name} has several values, but candidates may differ only in --{", --".join(_FREE)}.'
          f' Give {name} once.'
      )
  candidates = {}
  for flags in itertools.product(*values.values()):
    settings, runtime_flags = settings_lib.parse(flags, program=program)
    candidates.setdefault(str(settings_lib.identity(settings)), settings)
  candidates = [*candidates.values()]
  _check(candidates, runtime_flags)
  return candidates, runtime_flags


def _check(
    candidates: Sequence[_Settings], runtime_flags: runtime_flags_lib.RuntimeSettings
) -> None:
  first = candidates[0]
  if len(candidates) < 2:
    raise errors.InputError(
        'There is one candidate, and nothing to choose. Give a flag several values, such as'
        ' --server_learning_rate={8,15,30}, or use tasks.run.'
    )
  if not first.rounds or not first.method.private or first.noise_multiplier == 0:
    raise errors.InputError(
        f'--algorithm={first.algorithm} with --rounds={first.rounds} and this noise needs no private'
        ' choice. Use tasks.sweep, or set a private algorithm, rounds and noise.'
    )
  if first.sampling == sampling_lib.ALLOCATION:
    raise errors.InputError(
        f'--sampling={first.sampling} would count a whole block for each trial. Set'
        f' --sampling={sampling_lib.POISSON}.'
    )
  if first.noise != mechanism_lib.Gaussian.name:
    raise errors.InputError(
        f'--noise={first.noise} has another epsilon for a vote than for a round. Set'
        f' --noise={mechanism_lib.Gaussian.name}.'
    )
  if runtime_flags.overwrite:
    raise errors.InputError(
        f'--overwrite is not a flag of {_NAME}. Remove it, and name a new directory with'
        ' --output_dir.'
    )
  if first.epsilon_budget is not None:
    raise errors.InputError(
        f'--epsilon_budget is not a flag of {_NAME}. Remove it, or once the choice is made pass it'
        ' to tasks.run, with the flags in config.json.'
    )


def tune(candidates: list[_Settings], runtime_flags: runtime_flags_lib.RuntimeSettings) -> int:
  """Chooses a candidate and runs it, or resumes that; returns the exit status."""
  path = runtime_flags.output_dir or run_directory.default_path(f'{candidates[0].task}-tuned')
  runtime_flags = dataclasses.replace(runtime_flags, output_dir=path)
  chosen = _choose(candidates, runtime_flags)
  return 0 if chosen is None else run_lib.run(chosen, runtime_flags, _NAME)


def _choose(
    candidates: list[_Settings], runtime_flags: runtime_flags_lib.RuntimeSettings
) -> Optional[_Settings]:
  """Returns the choice, from the directory or by trials and a vote; None for --dry_run."""
  first, stop = candidates[0], signals.Signals(_NAME)
  flags = [*map(settings_lib.identity, candidates)]
  run_lib.prepare_tensorflow(_NAME, seeded=first.seed is not None)
  from tasks import vote
  from tasks.training import experiment as experiment_lib
  from tasks.training import plan
  from tasks.training import pretraining
  from tasks.training import resuming

  with contextlib.ExitStack() as stack:
    stack.enter_context(command.owner_only())
    stack.enter_context(stop.handled())
    stack.enter_context(errors.refusing_unseeded_draws(first.seed))
    out = stack.enter_context(run_directory.RunDirectory(runtime_flags.output_dir))
    record = resuming.read_choice(out)
    order = _order(out, record, flags)
    if record is not None and record['chosen'] is not None:
      return candidates[order[record['chosen']]]
    stack.enter_context(runtime_flags_lib.context(runtime_flags))
    num = len(vote.groups(candidates)) + 1
    seeds = experiment_lib.make_seeds(first.seed, record)
    # The noise for --epsilon is that of all rounds.
    all_rounds = dataclasses.replace(first, rounds=first.rounds + num)
    experiment = experiment_lib.Experiment.build(
        all_rounds, seeds, runtime_flags.data_dir, record and record['privacy']['noise_multiplier']
    )
    if record is not None:
      resuming.check(out, experiment)
    lost, experiment = resuming.choice_rounds(out, experiment), experiment.with_settings(first)
    print(
        f'{len(candidates)} candidates: {num - 1} trial round{"s" * (num > 2)} and a vote, then'
        f' {first.rounds} rounds with the choice\n'
        f'{plan.choice_text(experiment, num, lost)}\n\noutput: {out.path}\n',
        flush=True,
    )
    if runtime_flags.dry_run:
      return None
    if record is None:  # A choice that is made anew has the same clients.
      out.write_json(run_directory.DATA_DIGEST, resuming.data_digest(experiment.data))
    privacy = {'noise_multiplier': experiment.spec.noise_multiplier}
    record = {'candidates': flags, 'seeds': seeds.public(), 'privacy': privacy}
    own = _Record(out, record)
    own.write()
    stop.next_step = f'; the same command with --output_dir={out.path} resumes it.'
    numbers = itertools.count(len(run_directory.ledgers(out.path)))
    experiment = pretraining.initialize(experiment, None, False)
    ballot = vote.Vote(experiment, own.open_ledger, numbers, stop)
    scores = ballot.scores(ballot.weights(candidates))
    chosen = int(scores.argmin())
    # Before anybody sees the scores: the number of votes must not depend on them.
    own.write(chosen, scores.tolist())
    print(_scores_text(flags, scores, ballot.noise_stddev), flush=True)
    stop.begin_round()  # Raises if a signal came in the vote.
    stop.in_round = False
  return candidates[chosen]


@dataclasses.dataclass(frozen=True)
class _Record:
  """The file of a choice, which tells what its ledgers must have.

  Attributes:
    out: The directory.
    fixed: The fields that are known before the first round.
    run_id: Name of the choice in its ledgers.
  """

  out: run_directory.RunDirectory
  fixed: dict[str, Any]
  run_id: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))

  def write(self, chosen: Optional[int] = None, scores: Optional[list[float]] = None) -> None:
    """Writes the file, with the rounds of all ledgers in the directory."""
    ledgers = {path.name: own.rounds_charged for path, own in run_directory.ledgers(self.out.path)}
    own = {'chosen': chosen, 'scores': scores, 'ledgers': ledgers}
    self.out.write_json(run_directory.TUNING, self.fixed | own)

  @contextlib.contextmanager
  def open_ledger(self, trial: Any) -> Iterator[ledger_lib.Ledger]:
    """Yields the open ledger of a trial or vote, which can't be lost unnoticed from now on."""
    from tasks.training import resuming

    with resuming.open_ledger(self.out.new_ledger_path(), trial, self.run_id) as ledger:
      self.write()
      try:
        yield ledger
      finally:
        self.write()


def _order(
    out: run_directory.RunDirectory, record: Optional[dict[str, Any]],
    flags: Sequence[dict[str, Any]],
) -> list[int]:
  """Returns the indices of the flags of a directory's candidates; empty without a choice.

  Raises:
    InputError: If it has a run without a choice, or a choice among other flags.
  """
  if out.config is not None and (record is None or record['chosen'] is None):
    raise errors.InputError(
        f'{out.path / run_directory.TUNING} lacks the choice of the run in --output_dir. Restore it,'
        ' resume the run by tasks.run with the flags in its config.json, or name another directory.'
        if out.config.get('choice') else
        f'--output_dir={out.path} has a run that {_NAME} did not begin. Name another directory.'
    )
  if record is None:
    return []
  order = [
      i for candidate in record['candidates'] for i, own in enumerate(flags)
      if not finished.find_differences(candidate, own)
  ]
  if sorted(order) != [*range(len(flags))] or len(order) != len(record['candidates']):
    raise errors.InputError(
        f'--output_dir={out.path} has a choice among other candidates, or with other flags. Use the'
        ' same flags, or name another directory.'
    )
  return order


def _scores_text(flags: Sequence[dict[str, Any]], scores: Any, stddev: float) -> str:
  """Returns the result of the vote, with what its noise alone leaves uncertain."""
  names = [name for name in _FREE if any(f.get(name) != flags[0].get(name) for f in flags)]
  best, second, *_ = sorted(scores)
  texts = [[f'--{name}={finished.flag_text(name, own.get(name))}' for name in names] for own in flags]
  lines = [
      f'  {score:+.4f}  {" ".join(text)}{"  (chosen)" if score == best else ""}'
      for text, score in zip(texts, scores)
  ]
  text = (
      'loss on clients after one round, less its mean over candidates; the noise in each has a'
      f' standard deviation of {stddev:.2g}:'
  )
  if second - best < 2 * math.sqrt(2) * stddev:
    lines.append('The best two are tied within the noise: more clients per round would part them.')
  return '\n'.join([text, *lines, ''])


main = command.Command(
    _NAME,
    (
        'usage: python -m tasks.tune --task=TASK --FLAG={VALUE,VALUE,...} [flags of tasks.run]',
        '',
        'Chooses one of several values of a flag, or combinations of several flags, by a vote of',
        'clients, and trains with it. One epsilon covers the choice and the run. For example:',
        '  python -m tasks.tune --task=shakespeare --p=0.05 --server_learning_rate={8,15,30}',
        '',
        'The choice costs as much as two rounds, a trial and a vote. Each further combination of',
        'values other than --server_learning_rate costs one more trial. The vote is weak if few',
        'clients take part in a round: it prints its noise. Flags that may have several values:',
        f'  --{", --".join(_FREE[:6])},',
        f'  --{", --".join(_FREE[6:])}',
        'The same command with the same --output_dir resumes a run.',
    ),
    tune,
    new_flags=settings_lib.new_flags,
    parse=parse,
).main


if __name__ == '__main__':
  command.end(main(sys.argv))
