"""Checks that the run in --output_dir has the flags and the data of this command."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import importlib.metadata
import json
import os
import pathlib
import secrets
import subprocess
import sys
import typing
from typing import Any, Optional

import numpy as np

import fedsmp_tff
from tasks import errors
from tasks.cli import options
from tasks.cli import place as place_lib
from tasks.cli import settings as settings_lib
from tasks.datasets import task as task_lib

if typing.TYPE_CHECKING:
  from fedsmp_tff.privacy import ledger as ledger_lib
  from fedsmp_tff.program import checkpoints as checkpoints_lib
  from tasks.training import experiment as experiment_lib
  from tasks.training import run_directory

# In the directory of checkpoints.
_DATA_DIGEST = 'data_digest.json'
_PACKAGES = ('tensorflow', 'tensorflow-federated', 'dp-accounting', 'numpy')


def check_flags(out: run_directory.RunDirectory, settings: settings_lib.RunSettings) -> None:
  """Raises `InputError` if the run in a directory has other flags than these."""
  if out.config is not None:
    check_identity(out.path, out.config, settings_lib.identity(settings))


def check_identity(path: Any, config: dict[str, Any], flags: dict[str, Any]) -> None:
  """Raises `InputError` if a run has other flags than these.

  Args:
    path: The run's directory.
    config: The contents of its config.json.
    flags: What `settings.identity` returns for this command.
  """
  recorded = config['flags']
  differ = differing(recorded, flags)
  if differ:
    raise errors.InputError(
        f'--output_dir={path} has a run with {_command_line(recorded, differ)}, not'
        f' {_command_line(flags, differ)}; give it the same flags to resume it, name'
        ' another directory, or start over with --overwrite.'
    )


def differing(recorded: dict[str, Any], flags: dict[str, Any]) -> list[str]:
  """Returns the flags in which two identities differ."""
  return sorted(
      name for name in {*recorded, *flags} if recorded.get(name) != flags.get(name)
  )


def check_data(out: run_directory.RunDirectory, experiment: experiment_lib.Experiment) -> None:
  """Raises `InputError` if a run began with other data, if that is not known, or if a budget can't be.

  Args:
    out: The directory of the run.
    experiment: The run now.
  """
  if experiment.settings.epsilon_budget is not None:
    out.check_clients(_name_of_clients(out, experiment))
  if out.config is not None:
    _check_digest(out.path, out.checkpoints, out.config, experiment.data)


def begin(
    out: run_directory.RunDirectory,
    experiment: experiment_lib.Experiment,
    place: place_lib.PlaceSettings,
) -> checkpoints_lib.Checkpoints:
  """Begins a run, or continues it; returns its checkpoints.

  Raises:
    InputError: If files of the run are missing or damaged.
  """
  from fedsmp_tff.program import checkpoints as checkpoints_lib  # pylint: disable=g-import-not-at-top

  resumed = out.config is not None
  if not resumed:
    out.begin(config(experiment, place))
  for change in changes(out.config, surroundings(place)):
    print(f'tasks.run: {change}; last bits may differ.', file=sys.stderr)
  checkpoints = checkpoints_lib.Checkpoints(out.checkpoints, out.config['run_id'].encode())
  if resumed and checkpoints.empty():
    out.tables.resume_without_checkpoint(out.checkpoints)
  keep_data_digest(out.checkpoints, experiment.data)
  return checkpoints


def ledger(
    out: run_directory.RunDirectory, experiment: experiment_lib.Experiment, began: bool
) -> Optional[ledger_lib.Ledger]:
  """Returns the privacy ledger of a run; None without privacy.

  Args:
    out: The directory of the run.
    experiment: The run.
    began: Whether rounds may have begun, so that there must be one.
  """
  if not experiment.private:
    return None
  initial_weights = 'random'
  if experiment.settings.warm_start != settings_lib.NONE:
    digest = experiment.data.public_digest()
    initial_weights = f'pre-trained on public examples, digest {digest}'
  return out.ledger(
      experiment.spec, out.config['run_id'], experiment.seeds.process,
      _name_of_clients(out, experiment), initial_weights, began,
      epsilon_budget=experiment.settings.epsilon_budget,
  )


def _name_of_clients(
    out: run_directory.RunDirectory, experiment: experiment_lib.Experiment
) -> str:
  """Returns the name by which ledgers of the same clients, and of no others, know their data."""
  recorded = experiment.data.as_dict() if out.config is None else out.config
  # A task of one's own may have none.
  digest = recorded.get('split_digest')
  task = experiment.settings.task
  return task if digest is None else f'{task} divided as {digest}'


def _check_digest(
    path: Any, checkpoints: pathlib.Path, config: dict[str, Any], data: task_lib.TaskData
) -> None:
  remedy = 'name another directory, or start over with --overwrite.'
  kept = checkpoints / _DATA_DIGEST
  try:
    content = json.loads(kept.read_text(encoding='utf-8'))
    same = _digest(data, bytes.fromhex(content['key'])) == content['digest']
  except FileNotFoundError:
    if not has_checkpoint(checkpoints):
      return  # It ended before its first checkpoint.
    raise errors.InputError(
        f'{kept} is missing, so that the run\'s data can\'t be compared; restore it, {remedy}'
    ) from None
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise errors.InputError(
        f'{kept} can\'t be read ({type(error).__name__}: {error}); restore it, {remedy}'
    ) from None
  if not same:
    raise errors.InputError(
        f'--output_dir={path} has a run that began with other data'
        f' ({config["data_source"]}); restore that data, {remedy}'
    )


def has_checkpoint(checkpoints: pathlib.Path) -> bool:
  """Whether a whole checkpoint is there; a process killed while it writes leaves a part."""
  return any(path.name.removeprefix('round_').isdigit() for path in checkpoints.glob('round_*'))


def keep_data_digest(checkpoints: pathlib.Path, data: task_lib.TaskData) -> None:
  """Writes a digest of all data beside the checkpoints, if it is not there.

  Whoever has a digest without a key can test, exactly, whether someone's data are in. The key of
  this one is random, and stays where the run's other secrets are.
  """
  path = checkpoints / _DATA_DIGEST
  if path.exists():
    return
  key = secrets.token_bytes(32)
  unfinished = path.with_name(f'.{path.name}.unfinished')
  try:
    checkpoints.mkdir(parents=True, exist_ok=True)
    with open(unfinished, 'w', encoding='utf-8') as file:
      json.dump({'key': key.hex(), 'digest': _digest(data, key)}, file)
      file.flush()
      os.fsync(file.fileno())
    os.replace(unfinished, path)
  except OSError as error:
    raise errors.RunError(
        f'{path} can\'t be written ({error.strerror}); make room or give access there, and run'
        ' the same command again.'
    ) from None


def _digest(data: task_lib.TaskData, key: bytes) -> str:
  """A digest of all examples: of every client in order, of the test set and the public set."""
  digest = hashlib.blake2b(key=key, digest_size=32)
  for examples in (*data.clients, data.test, data.public or ()):
    for array in examples:
      digest.update(f'{array.dtype}{array.shape}'.encode())
      digest.update(np.ascontiguousarray(array))
  return digest.hexdigest()


def surroundings(place: place_lib.PlaceSettings) -> dict[str, Any]:
  """Returns what may change before a run resumes, and with it the last bits of floats."""
  return {
      'runtime': dataclasses.asdict(place),
      'versions': {p: importlib.metadata.version(p) for p in _PACKAGES},
  }


def config(
    experiment: experiment_lib.Experiment,
    place: place_lib.PlaceSettings,
) -> dict[str, Any]:
  """Returns the contents of config.json for a run that begins.

  Args:
    experiment: The run.
    place: Where it runs.
  """
  return {
      **dataclasses.asdict(experiment.settings),
      **experiment.as_dict(),
      **surroundings(place),
      'flags': settings_lib.identity(experiment.settings),
      'seeds': experiment.seeds.public(),
      'run_id': secrets.token_hex(8),
      'record': record(),
  }


def record() -> dict[str, Any]:
  """Returns by what, when and on what a run began, for config.json."""
  # An installed copy may lie within another project's clone, as in its .venv.
  in_clone = _git('ls-files', '--error-unmatch', pathlib.Path(__file__).name) is not None
  return {
      'fedsmp_tff': fedsmp_tff.__version__,
      # Both None outside a clone.
      'git_commit': _git('rev-parse', 'HEAD') if in_clone else None,
      'git_clean': (
          None
          if not in_clone or (changed := _git('status', '--porcelain')) is None
          else not changed
      ),
      'date': datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds'),
      'command': ['python', '-m', 'tasks.run', *sys.argv[1:]],
      'processors': len(os.sched_getaffinity(0)),
  }


def _git(*arguments: str) -> Optional[str]:
  """Returns what git prints in this package's directory; None without git or outside a clone."""
  try:
    done = subprocess.run(
        ['git', *arguments], cwd=pathlib.Path(__file__).parent, capture_output=True, text=True,
        check=False, timeout=10,
    )
  except (OSError, subprocess.TimeoutExpired):
    return None
  return done.stdout.strip() if done.returncode == 0 else None


def changes(config: dict[str, Any], now: dict[str, Any]) -> list[str]:
  """Lists the differences between two `surroundings`, a phrase each."""
  place_options = options.options_of(place_lib.PlaceSettings)
  return [
      f'{kind} {name}: {config[kind].get(name)} until now, {value} from here on'
      for kind, values in now.items()
      for name, value in values.items()
      if config[kind].get(name) != value
      and (name not in place_options or place_options[name].in_comparisons)
  ]


def _command_line(values: dict[str, Any], names: list[str]) -> str:
  def one(name):
    value = values.get(name)
    if value is None:
      return f'no --{name}'
    if isinstance(value, list):
      value = ','.join(map(str, value))
    return f'--{name}={value}'

  return ' '.join(map(one, names))
