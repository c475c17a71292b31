"""Tests that the documents' snippets run and are private, and that the commands exist."""

import ast
import importlib
import pathlib
import re
import shlex
import subprocess

import pytest

from tasks.cli import settings
from tests.support import leaks

_ROOT = pathlib.Path(__file__).parents[2]
_README = (_ROOT / 'README.md').read_text(encoding='utf-8')
_DOCUMENTS = (_ROOT / 'README.md', *sorted((_ROOT / 'docs').rglob('*.md')))


def _snippets(path):
  return re.findall(r'```python\n(.*?)```', path.read_text(encoding='utf-8'), re.DOTALL)


@pytest.mark.parametrize(
    'path',
    # tests/system/test_extending.py runs the files of that page.
    [path for path in _DOCUMENTS if _snippets(path) and path.name != 'extending.md'],
    ids=lambda path: str(path.relative_to(_ROOT)),
)
def test_the_snippets_run_and_release_no_client_metric(path):
  # They build upon one another, as a reader would run them.
  names, checked = {}, []
  for snippet in _snippets(path):
    exec(snippet, names)
    if names.get('process') not in (None, *checked):
      leaks.check_nothing_else_leaves_clients(names['process'], names['output'].metrics)
      checked.append(names['process'])
  expected = {'README.md': (1, 26), 'composing.md': (4, 10), 'running.md': (0, None)}
  num_processes, participants = expected[path.name]
  assert len(checked) == num_processes
  if num_processes:
    assert names['output'].metrics['aggregator']['participants'] == participants


def test_every_stock_process_of_the_documents_has_the_metrics_aggregator():
  for path in _DOCUMENTS:
    for snippet in _snippets(path):
      for call in ast.walk(ast.parse(snippet)):
        if isinstance(call, ast.Call) and 'tff.learning.algorithms.' in ast.unparse(call.func):
          arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
          assert arguments['metrics_aggregator'] == 'fedsmp_tff.no_client_metrics', path


def test_make_has_the_commands():
  for target in set(re.findall(r'^make ([a-z]+)', _README, re.MULTILINE)):
    done = subprocess.run(
        ['make', '--dry-run', target], cwd=_ROOT, capture_output=True, check=False
    )
    assert done.returncode == 0, target


def _help_flags(capsys, command):
  module = importlib.import_module(f'tasks.{command}')
  assert module.main([command, '--helpfull']) == 0
  return set(re.findall(r'--([a-z_]+)', capsys.readouterr().out)) | {'help', 'helpfull', 'flagfile'}


def test_its_flags_exist(capsys):
  of_run = _help_flags(capsys, 'run')
  # Flags of every run too; and the flag of docs/own_task.py.
  takes = {'run': {'two_moons_clients'}, 'sweep': of_run, 'tune': of_run}
  # Changes name flags that are gone.
  documents = [path for path in _DOCUMENTS if path.name != 'changelog.md']
  text = '\n'.join(path.read_text(encoding='utf-8') for path in documents)
  found = re.findall(r'tasks\.([a-z]+) ([^`\n]*--[^`\n]*)', text)
  assert {'run', 'sweep', 'report', 'tune', 'account', 'benchmark'} <= {c for c, _ in found}
  helps = {command: _help_flags(capsys, command) for command in {c for c, _ in found}}
  for command, line in found:
    known = helps[command] | takes.get(command, set())
    for flag in re.findall(r'--([a-z_]+)', line):
      assert flag in known, line


def test_its_runs_have_flags_that_go_together(monkeypatch):
  monkeypatch.chdir(_ROOT)
  found = {
      line
      for path in _DOCUMENTS
      for line in re.findall(r'^python -m tasks\.run (.*)', path.read_text(encoding='utf-8'), re.M)
      # The plug-ins of docs/extending.md are a reader's.
      if not re.search('--help|two_moons|block', line)
  }
  assert len(found) > 12
  for line in found:
    settings.parse(shlex.split(line, comments=True))


def test_its_pictures_and_files_exist():
  for path in _DOCUMENTS:
    for target in re.findall(r'\]\(([^)#:]+)[^):]*\)', path.read_text(encoding='utf-8')):
      assert (path.parent / target).exists(), (path, target)


def test_the_readme_fits_on_three_screens():
  assert len(_README.encode()) < 10_000
