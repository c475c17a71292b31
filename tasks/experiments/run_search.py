"""Finds the directories of runs, and runs whose ledgers are missing."""

from collections.abc import Iterable, Iterator, Sequence
import errno
import fnmatch
import glob
import os
import pathlib

from tasks import errors
from tasks.training import run_directory
from tasks.training import tables

LOGS = 'logs'  # Subdirectory of a sweep, with a file per run.
# What a run leaves behind once its rounds have begun, besides its ledger.
_LEFT_BY_ROUNDS = (
    run_directory.SUMMARY, run_directory.WEIGHTS, tables.METRICS, tables.TIMINGS,
)
_ROUND_CHECKPOINTS = f'{run_directory.CHECKPOINTS}/round_[1-9]*'
_SIGNS = (run_directory.CONFIG, run_directory.TUNING, *_LEFT_BY_ROUNDS, 'privacy_ledger*.jsonl')


def expand(pattern: str) -> list[str]:
  """Returns the paths that match a pattern, which a shell does not expand in --ledger=PATTERN."""
  if os.path.exists(pattern) or pattern == glob.escape(pattern):
    return [pattern]
  # A sweep's directory has its logs next to its runs.
  paths = [path for path in sorted(glob.glob(pattern)) if os.path.basename(path) != LOGS]
  if not paths:
    raise errors.InputError(
        f'--ledger={pattern} matches no directory. Correct the pattern, or name the --output_dir of'
        ' each run.'
    )
  return paths


def run_dirs(paths: Iterable[str], signs: Sequence[str] = _SIGNS) -> list[str]:
  """Returns the directories of all runs in and below directories, each once.

  Args:
    paths: The directories; one without a run counts as the directory of a run.
    signs: Patterns of files, any of which shows that a directory is of a run; by default all files
      of a run, so that a run that lost its ledger is not left out.

  Raises:
    InputError: If a directory can't be read, or a link leads nowhere.
  """
  found = {}
  for path in paths:
    below = sorted(_run_dirs_below(path, signs)) if os.path.isdir(path) else []
    for run_dir in below or [path]:
      found.setdefault(os.path.realpath(run_dir), run_dir)
  return [*found.values()]


def _run_dirs_below(path: str, signs: Sequence[str]) -> Iterator[str]:
  """Yields the directories of runs in and below a directory; refuses what it cannot look into."""
  def refuse(error):
    raise errors.InputError(
        f'{error.filename} can\'t be read ({error.strerror}), and a run in it would not be counted.'
        ' Make it readable, or name the directory of each run.'
    )

  seen = set()
  for directory, subdirectories, files in os.walk(path, onerror=refuse, followlinks=True):
    if (real := os.path.realpath(directory)) in seen:
      subdirectories.clear()
      continue
    seen.add(real)
    for file in files:
      name = os.path.join(directory, file)
      if os.path.islink(name) and not os.path.exists(name):
        refuse(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name))
    if any(fnmatch.filter(files, sign) for sign in signs):
      yield directory


def find_runs_with_logs_alone(path: str) -> list[str]:
  """Returns the directories of sweeps' runs, in and below a directory, of which only logs are left."""
  run_dirs = [
      os.path.join(directory, os.path.basename(log).removesuffix('.log'))
      for directory, subdirectories, _ in os.walk(path) if LOGS in subdirectories
      for log in sorted(glob.glob(f'{glob.escape(directory)}/{LOGS}/*.log'))
  ]
  return [
      run_dir for run_dir in run_dirs
      if not any(any(pathlib.Path(run_dir).glob(sign)) for sign in _SIGNS)
  ]


def is_without_rounds(run_dir: str) -> bool:
  """Returns whether a run needs no ledger: no round has begun, or the run has no rounds.

  A run of `tasks.tune` has no configuration until the choice is made.
  """
  path = pathlib.Path(run_dir)
  left = (path / name for name in _LEFT_BY_ROUNDS)
  begun = any(file.exists() for file in left) or any(path.glob(_ROUND_CHECKPOINTS))
  if not begun and not (path / run_directory.CONFIG).exists():
    return (path / run_directory.TUNING).exists()
  try:
    config = run_directory.read_config(path)
  except (OSError, ValueError):
    return False
  return not config['rounds'] or not begun
