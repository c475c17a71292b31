"""Begins a run or resumes it, with the flags, data and ledger that it began with."""

from collections.abc import Iterator
import contextlib
import dataclasses
import datetime
import importlib.metadata
import os
import pathlib
import secrets
import sys
from typing import Any, Optional

import fedsmp_tff
from fedsmp_tff import errors as library_errors
from fedsmp_tff.privacy import budget as budget_lib
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.program import checkpoints as checkpoints_lib
from tasks import errors
from tasks.datasets import task as task_lib
from tasks.training import experiment as experiment_lib
from tasks.training import finished
from tasks.training import run_directory
from tasks.training import settings as settings_lib

_PACKAGES = ('tensorflow', 'tensorflow-federated', 'dp-accounting', 'numpy')
_CHOICE_KINDS = {
    'candidates': (list,), 'chosen': (int, type(None)), 'scores': (list, type(None)),
    'ledgers': (dict,), 'seeds': (dict,), 'privacy': (dict,),
}
_REMEDY = 'Restore it from a backup, or name another directory'


def check_flags(out: run_directory.RunDirectory, settings: settings_lib.RunSettings) -> None:
  """Raises `InputError` if the run in the directory began with other flags."""
  if out.config is None:
    return
  began, flags = out.config['flags'], settings_lib.identity(settings)
  if names := finished.find_differences(began, flags):
    differences = ', '.join(
        f'--{name} was {finished.flag_text(name, finished.recorded_flag(began, name))}'
        f' and is {finished.flag_text(name, flags.get(name))}'
        for name in names
    )
    raise errors.InputError(
        f'--output_dir={out.path} has a run with other flags or defaults: {differences}. Use the'
        ' same flags to resume it, name another directory, or start over with --overwrite.'
    )


def build(
    out: run_directory.RunDirectory, settings: settings_lib.RunSettings, data_dir: Optional[str]
) -> experiment_lib.Experiment:
  """Returns the run of the settings, with the seeds and sigma that it or its choice began with.

  Raises:
    InputError: If a setting does not fit the data, or the run began with other data, or with a
      sigma that does not reach --epsilon.
  """
  has_chosen = bool((out.config or {}).get('choice'))
  choice = None if has_chosen else read_choice(out)  # `check_flags` has compared the run's flags.
  if choice is not None:
    chosen, own = choice['chosen'], settings_lib.identity(settings)
    if chosen is None or finished.find_differences(choice['candidates'][chosen], own):
      what = 'none yet' if chosen is None else 'other flags'
      raise errors.InputError(
          f'--output_dir={out.path} is of tasks.tune, which chose {what}. Use the same tasks.tune'
          ' command, or name another directory.'
      )
  began = out.config or choice
  seeds = experiment_lib.make_seeds(settings.seed, began)
  privacy = (began or {}).get('privacy') or {}
  experiment = experiment_lib.Experiment.build(
      settings, seeds, data_dir, privacy.get('noise_multiplier')
  )
  if began is None:
    return experiment
  check(out, experiment)
  if choice is not None or has_chosen:
    experiment = dataclasses.replace(experiment, choice_rounds=choice_rounds(out, experiment))
  return experiment


def check(out: run_directory.RunDirectory, experiment: experiment_lib.Experiment) -> None:
  """Raises `InputError` if a run or choice began with other data, or its sigma misses --epsilon."""
  path = out.path / run_directory.DATA_DIGEST
  try:
    recorded = run_directory.parse(path)
    is_equal = recorded == data_digest(experiment.data, recorded['key'])
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise errors.InputError(
        f'{path} can\'t be read ({type(error).__name__}: {error}) to check the data. {_REMEDY}.'
    ) from None
  if not is_equal:
    source = (out.config or {}).get('data_source', 'in its choice')
    raise errors.InputError(
        f'--output_dir={out.path} has a run that began with other data ({source}). Restore that'
        ' data, or name another directory.'
    )
  # With other versions a search may end at another last digit, which is no reason to refuse.
  target, spec = experiment.settings.epsilon, experiment.spec
  if target is not None and (epsilon := spec.epsilon()) > 1.001 * target:
    raise errors.InputError(
        f'--epsilon={target:g}: with its sigma, {spec.noise_multiplier:g}, the run in the directory'
        f' has epsilon = {epsilon:.4g} by the installed versions. Install the versions in its'
        ' config.json, or name another directory.'
    )


def choice_rounds(out: run_directory.RunDirectory, experiment: experiment_lib.Experiment) -> int:
  """Returns how many rounds `tasks.tune` has begun in the directory before the run.

  Raises:
    InputError: If a ledger is not of such rounds: epsilon would count it with a wrong noise.
    LedgerError: If a ledger is damaged, or lacks rounds.
  """
  own = experiment.spec.round, _clients_name(experiment), experiment.settings.seed is not None
  ledgers = run_directory.ledgers(out.path)
  others = [(path, record) for path, record in ledgers if path.name != run_directory.LEDGER]
  for path, record in others:
    if (record.spec.round, record.data, record.seeded) != own:
      raise errors.InputError(
          f'{path} has rounds with other clients, sampling or noise than this run, which can\'t'
          ' count with it. Name another directory.'
      )
  return sum(record.rounds_charged for _, record in others)


def read_choice(out: run_directory.RunDirectory) -> Optional[dict[str, Any]]:
  """Returns the contents of the file of `tasks.tune`; None without one, and to overwrite.

  It has the candidates' flags, the index of the chosen one and the scores (None before the vote),
  the rounds of each of its ledgers, and what the run shares with these: seeds and sigma.

  Raises:
    InputError: If it can't be read.
  """
  path = out.path / run_directory.TUNING
  if out.overwrites or not os.path.lexists(path):
    return None
  try:
    content = run_directory.parse(path)
    library_errors.check_fields(content, _CHOICE_KINDS)
    library_errors.check_fields(content['privacy'], {'noise_multiplier': (float, int)})
    run_directory.check_seeds(content['seeds'])
    for candidate in content['candidates']:
      library_errors.check_fields(candidate, {'rounds': (int,)})
    if content['chosen'] not in (None, *range(len(content['candidates']))):
      raise ValueError('`chosen` is not the number of a candidate')
    if content['chosen'] is not None and not content['ledgers']:
      raise ValueError('`ledgers` has none of the rounds of the choice')
    if content['privacy']['noise_multiplier'] <= 0:
      raise ValueError('`noise_multiplier` must be above 0')
  except (OSError, ValueError) as error:
    step = 'resume its run by tasks.run with the flags in its config.json' * bool(out.config)
    remedy = f'Restore it from a backup, or {step or "name another directory"}'
    raise errors.InputError(f"{path} can't be read ({error}). {remedy}.") from None
  return content


def budget(
    out: run_directory.RunDirectory, experiment: experiment_lib.Experiment
) -> Optional[budget_lib.EpsilonBudget]:
  """Returns the budget of --epsilon_budget; it includes the runs that --overwrite replaces.

  Raises:
    InputError: If these can't be composed with this run.
    LedgerError: If a ledger of the directory is damaged or lacks rounds, with or without a budget.
  """
  epsilon, name = experiment.settings.epsilon_budget, _clients_name(experiment)
  # The run would replace metrics.csv, which shows what a ledger lacks.
  ledgers = run_directory.ledgers(out.path)
  if epsilon is None:
    return None
  former = [
      record for path, record in ledgers
      # The ledger of a run that resumes counts its own rounds.
      if record.rounds and (out.config is None or path.name != run_directory.LEDGER)
  ]
  if others := sorted({record.data for record in former} - {name}):
    raise errors.InputError(
        f'--epsilon_budget can\'t include the runs that --overwrite replaces in {out.path}: they'
        f' have other clients ({", ".join(others)}; this run: {name}), and one person may be in'
        ' several of them. Name another directory.'
    )
  if any(record.unbounded for record in former):
    raise errors.InputError(
        f'--epsilon_budget={epsilon:g} is spent: {out.path} has had a run without noise, whose'
        ' epsilon is infinite. Name another directory.'
    )
  if experiment.settings.seed is None and any(record.seeded for record in former):
    raise errors.InputError(
        f'--epsilon_budget={epsilon:g} can\'t include the seeded run that {out.path} has had:'
        ' anyone who knows its seed can remove its noise. Name another directory.'
    )
  try:
    return budget_lib.EpsilonBudget(epsilon, experiment.spec, [record.charged for record in former])
  except ValueError as error:
    raise errors.InputError(
        f'--epsilon_budget={epsilon:g}: {error} Name another directory.'
    ) from None


def lost_rounds(out: run_directory.RunDirectory, experiment: experiment_lib.Experiment) -> int:
  """Returns how many rounds of the run in the directory count for privacy beside its rounds done.

  These were begun, and are not in the last checkpoint or were run again.

  Raises:
    LedgerError: If the ledger is damaged.
  """
  path = out.path / run_directory.LEDGER
  is_fresh = experiment.private and experiment.settings.seed is None
  if out.config is None or not is_fresh or not path.exists():
    return 0
  rounds_done = _checkpoints(out).rounds_done() or 0
  charged = ledger_lib.read(path).rounds_charged
  if rounds_done < experiment.settings.rounds:
    # A run that resumes begins a new block of an allocation: the rest of the old one is lost.
    charged = experiment.spec.round.next_block(charged)
  return max(0, charged - rounds_done)


def begin(
    out: run_directory.RunDirectory, experiment: experiment_lib.Experiment
) -> checkpoints_lib.Checkpoints:
  """Begins a run, or continues it; returns its checkpoints.

  Raises:
    InputError: If all checkpoints of the run are missing.
  """
  is_new = out.config is None
  if is_new:
    out.begin(_config(out, experiment), data_digest(experiment.data))
  else:
    changed = [
        f'{name} {before}, now {now}' for name, now in _versions().items()
        if (before := out.config['versions'].get(name)) != now
    ]
    if changed:
      versions = library_errors.printable('; '.join(changed))
      print(f'tasks.run: last bits may differ: the run began with {versions}', file=sys.stderr)
  checkpoints = _checkpoints(out)
  # The run ended before its first checkpoint.
  if not is_new and checkpoints.rounds_done() is None:
    # Row 0 is of the initial weights. `budget` has refused damaged rows.
    if (rounds := len(out.metrics.rows()) - 1) > 0:
      raise errors.InputError(
          f'{out.metrics.path} has rows of {rounds} rounds, but'
          f' {out.path / run_directory.CHECKPOINTS} has no checkpoint. {_REMEDY}.'
      )
    out.remove_rows()
  return checkpoints


@contextlib.contextmanager
def ledger(
    out: run_directory.RunDirectory, experiment: experiment_lib.Experiment,
    budget: Optional[budget_lib.EpsilonBudget], has_begun: bool,
) -> Iterator[ledger_lib.Ledger]:
  """Yields the open privacy ledger of a run.

  A run without noise has one too: after `--overwrite`, epsilon of its directory is infinite.

  Args:
    out: The directory of the run.
    experiment: The run.
    budget: Its budget; None without one.
    has_begun: Whether rounds may have begun, so that there must be a ledger.

  Raises:
    LedgerError: If the ledger is damaged, lost or of another run, or can't be written, or if a run
      within the budget shares its noise or its rounds.
  """
  path = out.path / run_directory.LEDGER
  if has_begun and not path.exists():
    raise ledger_lib.LedgerError(f'{path} is missing, but the run has begun. {ledger_lib.REMEDY}.')
  with open_ledger(path, experiment, out.config['run_id'], budget) as opened:
    if budget is not None:
      ledger_lib.check_independent(run_directory.ledgers(out.path))
    yield opened


def open_ledger(
    path: pathlib.Path, experiment: experiment_lib.Experiment, run_id: str,
    budget: Optional[budget_lib.EpsilonBudget] = None,
) -> ledger_lib.Ledger:
  """Returns the ledger of a file, with all facts of a run; for errors see `ledger`."""
  initial_weights = 'random'
  if experiment.settings.warm_start != settings_lib.NONE:
    digest = experiment.data.public_digest()
    initial_weights = f'pre-trained on public examples, digest {digest}'
  return ledger_lib.Ledger(
      path, experiment.spec, run_id, seed=experiment.seeds.process,
      data=_clients_name(experiment), initial_weights=initial_weights, budget=budget,
  )


def _checkpoints(out: run_directory.RunDirectory) -> checkpoints_lib.Checkpoints:
  directory, run_id = out.path / run_directory.CHECKPOINTS, out.config['run_id']
  return checkpoints_lib.Checkpoints(directory, run_id.encode())


def _versions() -> dict[str, str]:
  return {name: importlib.metadata.version(name) for name in _PACKAGES}


def _config(
    out: run_directory.RunDirectory, experiment: experiment_lib.Experiment
) -> dict[str, Any]:
  """Returns the contents of config.json of a new run."""
  choice = read_choice(out)
  private, epsilons = experiment.private, experiment.epsilons(experiment.settings.rounds)
  return {
      **dataclasses.asdict(experiment.settings),
      'dim': experiment.round.dim,
      'num_kept': experiment.round.num_kept,
      'num_clients': experiment.spec.population,
      **experiment.data.as_dict(),
      'sampled': experiment.eval_examples is not None,
      'privacy': experiment.spec.record() if private else None,
      'guarantee_status': experiment.guarantee_status if private else None,
      **{f'{name}_after_all_rounds': value for name, value in epsilons.items()},
      'flags': settings_lib.identity(experiment.settings),
      'choice': {} if choice is None else choice['ledgers'],
      'seeds': experiment.seeds.public(),
      'run_id': secrets.token_hex(8),
      'fedsmp_tff': fedsmp_tff.__version__,
      'versions': _versions(),
      'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
      'command': ['python', '-m', 'tasks.run' if choice is None else 'tasks.tune', *sys.argv[1:]],
  }


def _clients_name(experiment: experiment_lib.Experiment) -> str:
  """Returns the name of the data in ledgers, which is equal for equal clients."""
  task, digest = experiment.settings.task, experiment.data.split_digest
  return task if digest is None else f'{task} divided as {digest}'


def data_digest(data: task_lib.TaskData, key: Optional[str] = None) -> dict[str, str]:
  """Returns `run_directory.DATA_DIGEST`, a digest of all examples, with a new key if there is none.

  Without a key, which stays with the run's other secrets, anyone could test for someone's data.
  """
  key, examples = key or secrets.token_hex(32), (*data.clients, data.test, data.public or ())
  return {'key': key, 'digest': task_lib.digest_of_examples(examples, 32, bytes.fromhex(key))}
