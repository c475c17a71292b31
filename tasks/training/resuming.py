"""Whether a run that is found in --output_dir is the one that the flags ask for."""

import dataclasses
import hashlib
import importlib.metadata
import secrets
from typing import Any

import numpy as np

from tasks import errors
from tasks.config import options
from tasks.config import runtime as runtime_lib
from tasks.config import settings as settings_lib
from tasks.datasets import task as task_lib
from tasks.training import experiment as experiment_lib

_PACKAGES = ('tensorflow', 'tensorflow-federated', 'dp-accounting', 'numpy')


def check_identity(path: Any, config: dict[str, Any], flags: dict[str, Any]) -> None:
  """Raises `InputError` if a run has other flags than these.

  Args:
    path: The run's directory.
    config: What its config.json holds.
    flags: What `settings.identity` returns for this command.
  """
  theirs = config['flags']
  differ = differing(theirs, flags)
  if differ:
    raise errors.InputError(
        f'--output_dir={path} holds a run with {_command_line(theirs, differ)}, not'
        f' {_command_line(flags, differ)}; give it the same flags to go on, name'
        ' another directory, or begin anew with --overwrite.'
    )


def differing(theirs: dict[str, Any], flags: dict[str, Any]) -> list[str]:
  """The flags in which two identities differ; one that is not set may be missing, too."""
  return sorted(n for n in {*theirs, *flags} if theirs.get(n) != flags.get(n))


def check_data(path: Any, config: dict[str, Any], fingerprint_now: str) -> None:
  """Raises `InputError` if a run began with other data."""
  if config['data_fingerprint'] != fingerprint_now:
    raise errors.InputError(
        f'--output_dir={path} holds a run that began with other data'
        f' ({config["data_source"]}); put those back, name another directory, or'
        ' begin anew with --overwrite.'
    )


def fingerprint(data: task_lib.TaskData) -> str:
  """Of all examples: of every client in order, of the test set and the public set."""
  digest = hashlib.blake2b(digest_size=16)
  for examples in (*data.clients, data.test, data.public or ()):
    for array in examples:
      digest.update(f'{array.dtype}{array.shape}'.encode())
      digest.update(np.ascontiguousarray(array))
  return digest.hexdigest()


def surroundings(place: runtime_lib.RuntimeSettings) -> dict[str, Any]:
  """What may change while a run goes on, and with it the last bits of floats."""
  return {
      'runtime': dataclasses.asdict(place),
      'versions': {p: importlib.metadata.version(p) for p in _PACKAGES},
  }


def config(
    experiment: experiment_lib.Experiment, place: runtime_lib.RuntimeSettings
) -> dict[str, Any]:
  """Returns what config.json of a run that begins has."""
  return {
      **dataclasses.asdict(experiment.settings),
      **experiment.as_dict(),
      **surroundings(place),
      'flags': settings_lib.identity(experiment.settings),
      'seeds': experiment.seeds.public(),
      'data_fingerprint': fingerprint(experiment.data),
      'run_id': secrets.token_hex(8),
  }


def changes(config: dict[str, Any], now: dict[str, Any]) -> list[str]:
  """What differs between two `surroundings`, a phrase each."""
  runtime_options = options.options_of(runtime_lib.RuntimeSettings)
  return [
      f'{kind} {name}: {config[kind].get(name)} until now, {value} from here on'
      for kind, values in now.items()
      for name, value in values.items()
      if config[kind].get(name) != value
      and (name not in runtime_options or runtime_options[name].compared)
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
