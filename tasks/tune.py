"""`python -m tasks.tune`: chooses among settings and trains with the choice, within one epsilon.

Candidates with different server learning rates share a trial: one round of training from the
initial weights, whose release gives a model for each rate. Then one round is a vote: each client
of its cohort reports the loss of every candidate's model on its own examples. Trials and vote are
rounds like all others, with the same sampler, clip and noise, and so they cost what as many rounds
of training cost. The clients' votes leave them only in a noisy, secure sum.

Their ledgers are in the run's directory, so that tasks.account counts them with the run.
"""

from collections.abc import Sequence
import contextlib
import dataclasses
import itertools
import json
import math
import secrets
import sys
import time
from typing import Any

from fedsmp_tff.privacy import accountants
from tasks import errors
from tasks.cli import command
from tasks.cli import signals
from tasks.experiments import grids
from tasks.training import run_directory
from tasks.training import runtime_flags as runtime_flags_lib
from tasks.training import settings as settings_lib

_NAME = 'tasks.tune'
# What candidates may differ in: clients, initial weights, sampling and noise are the same.
_FREE = (
    'algorithm', 'p', 'unbiased', 'mask_rounds', 'clip', 'learning_rate', 'momentum', 'batch_size',
    'local_epochs', 'max_client_examples', 'server_learning_rate', 'server_optimizer',
)


def parse(arguments: Sequence[str], *tables: type, program: str) -> tuple[
    list[settings_lib.RunSettings], runtime_flags_lib.RuntimeSettings
]:
  """Returns the candidates of a command line: each combination of flags that are given repeatedly.

  Raises:
    InputError: If a flag is wrong, or candidates differ in more than a vote can decide.
  """
  del tables
  values = {}
  for flag in arguments:
    for choice in grids.choices(flag):
      values.setdefault(flag.partition('=')[0], {})[choice] = None  # Without repetitions.
  parsed = [settings_lib.parse(flags, program=program) for flags in itertools.product(*values.values())]
  candidates, runtime_flags = [settings for settings, _ in parsed], parsed[0][1]
  first, flags = candidates[0], [*map(settings_lib.identity, candidates)]
  if len(candidates) < 2:
    raise errors.InputError(
        'There is one candidate, and nothing to choose. Give a flag several values, such as'
        ' --server_learning_rate={8,15,30}, or use tasks.run.'
    )
  for name in sorted({name for other in flags for name in other} - {*_FREE}):
    if any(other.get(name) != flags[0].get(name) for other in flags):
      raise errors.InputError(
          f'--{name} has several values, but candidates must have the same clients, initial weights'
          f' and noise. Give --{name} once; free are --{", --".join(_FREE)}.'
      )
  if not first.rounds or not all(c.method.private for c in candidates) or first.noise_multiplier == 0:
    raise errors.InputError(
        f'--algorithm={first.algorithm} with --rounds={first.rounds} needs no private choice. Set'
        ' private algorithms, at least one round, and noise above 0.'
    )
  if first.sampling == 'allocation':
    raise errors.InputError(
        '--sampling=allocation would count a whole block for every trial. Set --sampling=poisson.'
    )
  if runtime_flags.overwrite:
    raise errors.InputError('--overwrite is not a flag of tasks.tune. Name another directory.')
  return candidates, runtime_flags


def tune(
    candidates: Sequence[settings_lib.RunSettings],
    runtime_flags: runtime_flags_lib.RuntimeSettings,
) -> int:
  """Chooses a candidate and runs it, or resumes that; returns the exit status."""
  from tasks import run  # pylint: disable=g-import-not-at-top

  name = f'{candidates[0].task}-tuned-{time.strftime("%Y%m%d-%H%M%S")}-{secrets.token_hex(2)}'
  runtime_flags = dataclasses.replace(
      runtime_flags, output_dir=runtime_flags.output_dir or f'runs/{name}'
  )
  chosen = _choice(candidates, runtime_flags)
  status = run.run(candidates[chosen], runtime_flags)
  if not runtime_flags.dry_run:
    print(_joint_text(runtime_flags.output_dir), flush=True)
  return status


def _choice(
    candidates: Sequence[settings_lib.RunSettings],
    runtime_flags: runtime_flags_lib.RuntimeSettings,
) -> int:
  """Returns the chosen candidate's index, from the directory or by trials and a vote."""
  from tasks import run  # pylint: disable=g-import-not-at-top

  flags, first = [*map(settings_lib.identity, candidates)], candidates[0]
  names = sorted({n for other in flags for n in other if other[n] != flags[0].get(n)})
  shown = [{name: other.get(name) for name in names} for other in flags]
  stop = signals.Signals()
  with contextlib.ExitStack() as stack:
    stack.enter_context(command.owner_only())
    stack.enter_context(stop.handled())
    stack.enter_context(errors.refusing_unseeded_draws(first.seed))
    out = stack.enter_context(run_directory.RunDirectory(runtime_flags.output_dir))
    if (found := out.tuning()) is not None:
      if found['candidates'] != shown:
        raise errors.InputError(
            f'--output_dir={out.path} has a choice among other candidates'
            f' ({json.dumps(found["candidates"])[:200]}). Name the same ones, or another directory.'
        )
      return found['chosen']
    if out.config is not None:
      raise errors.InputError(
          f'--output_dir={out.path} has a run that tasks.tune did not begin. Name another directory.'
      )
    run.prepare_tensorflow(seeded=first.seed is not None)
    from tasks import vote  # pylint: disable=g-import-not-at-top
    from tasks.training import experiment as experiment_lib  # pylint: disable=g-import-not-at-top
    from tasks.training import pretraining  # pylint: disable=g-import-not-at-top
    from tasks.training import resuming  # pylint: disable=g-import-not-at-top

    stack.enter_context(runtime_flags_lib.context(runtime_flags))
    num = len(vote.groups(candidates)) + 1
    print(f'{len(candidates)} candidates: {num - 1} trial rounds, one vote, then the choice')
    seeds = experiment_lib.make_seeds(first.seed, None)
    # The noise for --epsilon is that of all rounds.
    longer = dataclasses.replace(first, rounds=first.rounds + num)
    experiment = experiment_lib.Experiment.build(longer, seeds, runtime_flags.data_dir)
    experiment = experiment.with_settings(first)
    print(_plan_text(experiment.spec, num), flush=True)
    if runtime_flags.dry_run:
      return 0
    run_id, number = secrets.token_hex(8), itertools.count(time.time_ns())

    def open_ledger(trial):
      stop.begin_round()
      path = out.path / f'privacy_ledger.{next(number)}.jsonl'
      return resuming.open_ledger(path, trial, run_id)

    experiment = pretraining.initialize(experiment, None, False)
    weights = vote.candidate_weights(experiment, candidates, open_ledger)
    scores = vote.scores(experiment, weights, open_ledger)
    stop.in_round = False
    chosen = int(scores.argmin())
    stddev = vote.MAX_NORM * experiment.spec.noise_multiplier / experiment.spec.clients_per_round
    print(_scores_text(shown, scores, stddev), flush=True)
    out.write_json(run_directory.TUNING, {
        'candidates': shown, 'chosen': chosen, 'scores': scores.tolist(), 'seeds': seeds.public(),
        'privacy': {'noise_multiplier': experiment.spec.noise_multiplier},
    })
  return chosen


def _plan_text(spec: Any, num: int) -> str:
  alone, joint = (spec.epsilon(rounds=spec.rounds + more) for more in (0, num))
  return (
      f'epsilon = {joint:.4g} for choice and run, {spec.rounds + num} rounds with sigma ='
      f' {spec.noise_multiplier:.4g}; {alone:.4g} for the run without the choice\n'
  )


def _scores_text(shown: Sequence[dict[str, Any]], scores: Any, stddev: float) -> str:
  """Returns the result of the vote, with what its noise alone leaves uncertain."""
  first, second, *_ = sorted(scores)
  lines = [
      f'  {score:+.4f}  {" ".join(f"--{k}={v}" for k, v in flags.items())}'
      f'{"  (chosen)" if score == first else ""}'
      for flags, score in zip(shown, scores)
  ]
  text = f'loss on clients after one round, less the mean; noise {stddev:.2g}:'
  if second - first < 2 * math.sqrt(2) * stddev:
    lines.append('The best two are tied within the noise: more clients per round would part them.')
  return '\n'.join([text, *lines, ''])


def _joint_text(path: str) -> str:
  """Returns the epsilon of all rounds in a directory, the choice and the run."""
  records = [record for _, record in run_directory.ledgers(path)]
  rounds, delta = [record.charged for record in records], records[0].spec.delta
  epsilon = accountants.tightest_sound_accountant(rounds).epsilon(rounds, delta)
  status = ': SIMULATED' if any(record.seeded for record in records) else ''
  return (
      f'\nchoice and run together: epsilon = {epsilon:.4g}, delta = {delta:.3g},'
      f' {sum(record.rounds_charged for record in records)} rounds{status}'
  )


main = command.Command(
    _NAME,
    (
        'usage: python -m tasks.tune --task=TASK --FLAG={VALUE,VALUE,...} [flags of tasks.run]',
        '',
        'Chooses one of several values of a flag, or combinations of several flags, by a vote of',
        'clients, and trains with it. One epsilon covers the choice and the run. For example:',
        '  python -m tasks.tune --task=shakespeare --p=0.05 --server_learning_rate={8,15,30}',
        '',
        'The choice costs what one round costs for each combination of values other than',
        '--server_learning_rate, and one more. It is weak if few clients take part in a round: the',
        'vote prints its noise.',
        'The same command with the same --output_dir resumes a run.',
    ),
    tune,
    new_flags=settings_lib.new_flags,
    parse=parse,
).main


if __name__ == '__main__':
  command.end(main(sys.argv))
