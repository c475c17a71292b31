"""Describes an earlier run with the same flags, for a second `make run`."""

import pathlib
from typing import Optional

from tasks.config import settings as settings_lib
from tasks.training import run_directory
from tasks.training import run_tables
from tasks.training import tables


def text(settings: settings_lib.RunSettings, root: pathlib.Path) -> Optional[str]:
  """Returns a sentence on the newest run with the same flags; None if there is none.

  Args:
    settings: What the command asks for.
    root: Where run directories are.
  """
  asked = settings_lib.identity(settings)
  found = []
  for path in root.glob(f'*/{run_directory.CONFIG}'):
    config = run_directory.read_json(path)
    if config.get('flags') == asked:
      found.append((config.get('record', {}).get('date', ''), path.parent))
  if not found:
    return None
  _, path = max(found)
  summary = run_directory.read_json(path / run_directory.SUMMARY)
  if summary.get('rounds') == settings.rounds:
    return (
        f'{path} has a finished run with these flags, accuracy'
        f' {100 * summary["final_test_accuracy"]:.2f} %: python -m tasks.report {path} shows it.'
        ' This command starts a new run.'
    )
  rows = list(tables.Table(path / run_tables.METRICS).rows())
  done = rows[-1]['round'] if rows else 0
  if run_directory.in_use(path):
    return (
        f'{path} has a run with these flags in progress, {done} of {settings.rounds} rounds.'
        ' This command starts a new run.'
    )
  return (
      f'{path} has an unfinished run with these flags, {done} of {settings.rounds} rounds:'
      f' --output_dir={path} resumes it. This command starts a new run.'
  )
