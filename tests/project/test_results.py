"""Tests that docs/results is what tasks.report makes of the runs that are there."""

import pathlib
import re

import pytest

from tasks import report

_ROOT = pathlib.Path(__file__).parents[2]
_RESULTS = pathlib.Path('docs', 'results')


def _commands():
  """The commands under the results, as docs/results/README.md has them."""
  text = (_ROOT / _RESULTS / 'README.md').read_text(encoding='utf-8')
  return re.findall(r'^python -m tasks\.report (.*)$', text, re.MULTILINE)


def test_there_are_some():
  assert _commands()


@pytest.mark.parametrize('command', _commands())
def test_tables_are_those_of_the_runs(command, tmp_path, monkeypatch):
  monkeypatch.chdir(_ROOT)
  arguments = command.split()
  (output,) = (a.removeprefix('--output=') for a in arguments if a.startswith('--output='))
  assert report.main(['report', *arguments, f'--output={tmp_path}']) == 0
  for name in ('report.md', 'cells.csv'):
    assert (tmp_path / name).read_text() == pathlib.Path(output, name).read_text(), name
  for picture in tmp_path.glob('*.png'):
    assert pathlib.Path(output, picture.name).exists()
