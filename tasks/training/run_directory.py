"""A run's directory: its lock, config.json, weights, summary and ledgers."""

from collections.abc import Callable, Iterator
import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import time
from typing import Any, BinaryIO, Optional

from fedsmp_tff import errors as library_errors
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.program import files
from tasks import errors
from tasks.cli import locks
from tasks.training import tables

CONFIG, SUMMARY, WEIGHTS = 'config.json', 'summary.json', 'weights.npz'
TUNING = 'tuning.json'  # Of tasks.tune.
LEDGER, CHECKPOINTS = 'privacy_ledger.jsonl', 'checkpoints'
OTHER_LEDGERS = 'privacy_ledger.*.jsonl'  # Of overwritten runs and of choices.
# Checkpoints lack the frozen body of --trainable=head.
BODY, DATA_DIGEST = f'{CHECKPOINTS}/body.npz', f'{CHECKPOINTS}/data_digest.json'
_OPTIONAL_INT = (int, type(None))
# Types of the fields of config.json that commands read.
_CONFIG_KINDS = {
    **dict.fromkeys(('task', 'algorithm'), (str,)), 'sampled': (bool,), 'flags': (dict,),
    **dict.fromkeys(('rounds', 'num_kept', 'dim'), (int,)), 'seed': _OPTIONAL_INT,
    'privacy': (dict, type(None)),
}
_RESUMED_KINDS = {
    'run_id': (str,), 'seeds': (dict,), 'versions': (dict,), 'data_source': (str,),
}
_SEEDS = ('partition', 'weights', 'evaluation')


class RunDirectory(contextlib.AbstractContextManager):
  """The files of one run, for one process at a time.

  metrics.csv, summary.json and weights.npz are equal in two runs of one seed, interrupted or not;
  times are in timings.csv. A row is on disk before the next round begins, and the other files
  appear only when they are complete.

  Attributes:
    path: The directory.
    config: The contents of config.json; None if there is no run to resume.
    metrics: The table metrics.csv, equal in all runs of one seed.
    timings: The table timings.csv.
    overwrites: Whether `begin` removes the run that is there.
  """

  def __init__(self, path: os.PathLike[str], overwrite: bool = False):
    """Makes the directory, and locks it against other processes until the end of the context.

    Args:
      path: The directory.
      overwrite: Whether `begin` removes the run that is there.

    Raises:
      InputError: If the directory can't be written or is in use, or if its run can't be read.
    """
    self.path = pathlib.Path(path)
    self.metrics = tables.Table(self.path / tables.METRICS)
    self.timings = tables.Table(self.path / tables.TIMINGS)
    self.overwrites = overwrite
    with errors.writing_to('output_dir', path):
      # A command that ends before its run begins removes them, innermost first.
      self._made = [path for path in (self.path, *self.path.parents) if not path.exists()]
      self.path.mkdir(parents=True, exist_ok=True)
      self._lock = locks.open_locked(self.path)
    if self._lock is None:
      owner = b''
      with contextlib.suppress(OSError):
        owner = (self.path / locks.LOCK).read_bytes()[:100].strip()
      owner = library_errors.printable(owner.decode(errors='replace')) or 'another process'
      raise errors.InputError(
          f'--output_dir={self.path} is in use by {owner}. Wait until that ends, or'
          ' name another directory.'
      )
    try:
      with tables.writing(self.path):
        self._lock.truncate(0)
        self._lock.write(f'process {os.getpid()} on {socket.gethostname()}\n')
        self._lock.flush()
      self.config = None if overwrite else self._read_config()
    except BaseException:
      self._lock.close()
      raise

  def __exit__(self, *unused_error) -> None:
    self.remove_if_new()
    self._lock.close()

  def remove_if_new(self) -> None:
    """Removes the directories that were made for a run that has not begun."""
    if self._made:
      with contextlib.suppress(OSError):  # Another process may use a parent.
        (self.path / locks.LOCK).unlink()
        for path in self._made:
          path.rmdir()

  def begin(self, config: dict[str, Any], data_digest: dict[str, Any]) -> None:
    """Begins a run; with `overwrite`, removes the files of the former run.

    Args:
      config: The contents of config.json.
      data_digest: The contents of `DATA_DIGEST`, which is there when config.json is.
    """
    self._made = []
    if self.overwrites:
      with tables.writing(self.path):
        # The configuration first: without it the other files are no run.
        for name in (CONFIG, TUNING, SUMMARY, WEIGHTS):
          (self.path / name).unlink(missing_ok=True)
        self.remove_rows()
        if (self.path / CHECKPOINTS).is_symlink():  # To another disk, say.
          (self.path / CHECKPOINTS).unlink()
        elif (self.path / CHECKPOINTS).exists():
          shutil.rmtree(self.path / CHECKPOINTS)
        # Releases can't be taken back.
        if (self.path / LEDGER).exists():
          (self.path / LEDGER).rename(self.new_ledger_path())
    self.write_json(DATA_DIGEST, data_digest)
    self.write_json(CONFIG, config)
    self.config = config

  def new_ledger_path(self) -> pathlib.Path:
    """Returns a path for a ledger of rounds that the directory's run does not include."""
    # A clock may be set back or be coarse: the time alone could replace another ledger.
    number = time.time_ns()
    while (path := self.path / f'privacy_ledger.{number}.jsonl').exists():
      number += 1
    return path

  def remove_rows(self) -> None:
    """Removes all rows of the tables, and the TensorBoard events of the same rounds."""
    with tables.writing(self.path):
      for pattern in (tables.METRICS, tables.TIMINGS, 'events.out.tfevents.*'):
        for path in self.path.glob(pattern):
          path.unlink()

  def write_json(self, name: str, content: dict[str, Any]) -> None:
    """Writes a JSON file."""
    # JSON has no infinity (epsilon without noise): it becomes the text 'inf'.
    content = json.loads(json.dumps(content), parse_constant=lambda name: str(float(name)))
    self._replace(name, lambda file: file.write((json.dumps(content, indent=2) + '\n').encode()))

  def write_weights(self, weights: Any, name: str = WEIGHTS) -> None:
    """Writes a `ModelWeights` for `weights.read`."""
    from tasks.models import weights as weights_lib  # pylint: disable=g-import-not-at-top

    self._replace(name, lambda file: weights_lib.write(file, weights))

  def _read_config(self) -> Optional[dict[str, Any]]:
    names = [CONFIG, tables.METRICS, tables.TIMINGS, LEDGER]
    if not os.path.lexists(self.path / TUNING):  # Without it a choice would count for nothing.
      names.append(OTHER_LEDGERS)
    if not any(True for name in names for _ in self.path.glob(name)):
      return None
    try:
      config = read_config(self.path)
      library_errors.check_fields(config, _RESUMED_KINDS)
      check_seeds(config['seeds'])
      if not re.fullmatch('[0-9a-f]+', config['run_id']):
        raise ValueError('`run_id` must be hexadecimal')
    except (OSError, ValueError) as error:
      reason = library_errors.reason(error)
      raise errors.InputError(
          f'--output_dir={self.path} has a run whose {CONFIG} is missing or can\'t be read'
          f' ({reason}), so that it can\'t be resumed. Restore it (or {TUNING}, if tasks.tune was'
          ' choosing) from a backup, name another directory, or start over with tasks.run --overwrite.'
      ) from None
    return config

  def _replace(self, name: str, write: Callable[[BinaryIO], Any]) -> None:
    path = self.path / name
    with tables.writing(path):
      path.parent.mkdir(exist_ok=True)
      files.replace(path, write)


def default_path(name: str) -> str:
  """Returns a new directory for a run without --output_dir."""
  # The process id separates batch jobs that start in the same second.
  return f'runs/{name}-{time.strftime("%Y%m%d-%H%M%S")}-{os.getpid()}'


def check_seeds(seeds: dict[str, Any]) -> None:
  """Raises ValueError if these are not the public seeds of a run."""
  library_errors.check_fields(seeds, dict.fromkeys(_SEEDS, (int,)))
  if seeds.keys() != {*_SEEDS} or min(seeds.values()) < 0:
    raise ValueError(f'`seeds` must be {", ".join(_SEEDS)}, and not negative')


def read_config(run_dir: pathlib.Path) -> dict[str, Any]:
  """Returns the contents of a run's config.json.

  Raises:
    OSError, ValueError: If it can't be read, or is not of a run.
  """
  config = parse(run_dir / CONFIG)
  check_config(config)
  return config


def check_config(config: Any) -> None:
  """Raises ValueError if the contents of a config.json, or what is kept of it, are not of a run."""
  library_errors.check_fields(config, _CONFIG_KINDS)
  if privacy := config['privacy']:
    library_errors.check_fields(privacy, {'noise_multiplier': (int, float)})
  for name in ('num_kept', 'dim'):
    library_errors.check_positive(name, config[name])
  for name in ('task', 'algorithm'):
    # A name is a part of the names of files that commands write.
    if not all(part.isidentifier() for part in config[name].split('.')):
      raise ValueError(f'`{name}` must be a name or a module. Found {config[name]!r:.60}')
  for name, value in config['flags'].items():
    for part in value if isinstance(value, list) else [value]:
      library_errors.check_fields({name: part}, {name: (bool, float, int, str, type(None))})


def read_json(path: pathlib.Path) -> dict[str, Any]:
  """Returns the contents of a run's JSON file; {} if it is missing or can't be read."""
  with contextlib.suppress(OSError, ValueError):
    if isinstance(content := parse(path), dict):
      return content
  return {}


def parse(path: pathlib.Path) -> Any:
  """Returns what a JSON file has; raises OSError or ValueError if it can't be read."""
  try:
    return json.loads(path.read_text(encoding='utf-8'))
  except RecursionError:
    raise ValueError('it is nested too deeply') from None


def ledgers(run_dir: os.PathLike[str]) -> list[tuple[pathlib.Path, ledger_lib.Record]]:
  """Reads the ledgers of a run's directory: of overwritten runs and of choices, then its own.

  Raises:
    LedgerError: If one is damaged, or its own lacks rounds of metrics.csv or summary.json, or one
      of these is damaged.
  """
  own, rows = pathlib.Path(run_dir) / LEDGER, {}
  # Before the ledger, which a run writes first. A round that an interrupt ended has no row of
  # metrics: only the summary counts it.
  for name, read in ((tables.METRICS, lambda path: tables.Table(path).rows()), (SUMMARY, _results)):
    with _counting(own.with_name(name)) as path:
      rows[path] = read(path)
  # The file of a choice too comes before the ledgers. Once the run begins, config.json has them.
  with _counting(own.with_name(CONFIG)) as path:
    promised = _promised(read_json(path).get('choice', {}))
  with _counting(own.with_name(TUNING)) as path:
    if not promised and os.path.lexists(path):
      promised = _promised(parse(path)['ledgers'])
  paths = [*sorted(own.parent.glob(OTHER_LEDGERS)), *([own] if own.exists() else [])]
  found = [(path, ledger_lib.read(path)) for path in paths]
  charged = {path.name: record.rounds_charged for path, record in found}
  if missing := {name for name, num in promised.items() if charged.get(name, -1) < num}:
    raise ledger_lib.LedgerError(
        f'{own.parent} lacks ledgers of its choice of settings, or rounds of them'
        f' ({library_errors.printable(", ".join(missing), 200)}). {ledger_lib.REMEDY}.'
    )
  record = dict(found).get(own)
  default = 'missing' if record and record.spec.noise_multiplier else '0'
  for path in rows:
    with _counting(path):
      num_rounds = max((_count(row, default) for row in rows[path]), default=0)
    if num_rounds > (record.rounds_charged if record else 0):
      raise ledger_lib.LedgerError(
          f'{own} is truncated or missing: {path} has {num_rounds} rounds. {ledger_lib.REMEDY}.'
      )
  return found


def _promised(ledgers: dict[str, int]) -> dict[str, int]:
  """Returns the rounds of ledgers by name; raises ValueError if no choice writes that."""
  library_errors.check_fields(ledgers, dict.fromkeys(ledgers, (int,)))
  return ledgers


def _results(path: pathlib.Path) -> list[dict[str, str]]:
  """Returns summary.json as a row of JSON's texts; no row if it is missing."""
  return [{k: json.dumps(v) for k, v in parse(path).items()}] if path.exists() else []


def _count(row: dict[str, str], default: str) -> int:
  """Returns how many rounds a row counts; raises ValueError if no run writes that."""
  count = row.get('rounds_charged', default)  # Of every run with noise.
  if not re.fullmatch('[0-9]{1,18}', count):
    raise ValueError(f'rounds_charged: {library_errors.printable(count, 20)}')
  return int(count)


@contextlib.contextmanager
def _counting(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """Raises `LedgerError` if a file that counts the rounds can't be read in the block."""
  try:
    yield path
  except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
    ledger = OTHER_LEDGERS if path.name == TUNING else LEDGER
    message = f'{path} is damaged ({error}), and cannot show whether {ledger} is complete.'
    message += f' Restore {path.name} from a backup.'
    if path.name not in (TUNING, CONFIG):  # Without them the ledgers of a choice would count for nothing.
      consequence = '; tasks.run then needs --overwrite' if path.name == tables.METRICS else ''
      message += (
          ' If you know that the ledger is complete, or that the run had none, remove'
          f' {path.name}{consequence}.'
      )
    raise ledger_lib.LedgerError(message) from None
