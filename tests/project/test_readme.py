"""Tests of the documents: snippets run and are private, flags and pages exist."""

import ast
import dataclasses
import importlib
import pathlib
import re
import shlex

import pytest

from docs.figures import draw
import fedsmp_tff
from tasks import datasets
from tasks.datasets import task as task_lib
from tasks.training import settings
from tests.support import leaks

_ROOT = pathlib.Path(__file__).parents[2]
_README = (_ROOT / 'README.md').read_text(encoding='utf-8')
_DOCUMENTS = (_ROOT / 'README.md', *sorted((_ROOT / 'docs').rglob('*.md')))


@pytest.mark.parametrize('name, num_processes, participants', [
    ('README.md', 1, 26), ('docs/running.md', 0, None),
    pytest.param('docs/aggregator.md', 2, 26, marks=pytest.mark.slow),
])
def test_snippets_run_and_release_no_client_metric(name, num_processes, participants):
  # They build upon one another, as a reader would run them.
  names, checked = {}, []
  for snippet in re.findall(
      r'```python\n(.*?)```', (_ROOT / name).read_text(encoding='utf-8'), re.DOTALL
  ):
    exec(snippet, names)
    if names.get('process') not in (None, *checked):
      leaks.check_nothing_else_leaves_clients(names['process'], names['output'].metrics)
      checked.append(names['process'])
  assert len(checked) == num_processes
  if num_processes:
    assert names['output'].metrics['aggregator']['participants'] == participants


def _help_flags(capsys, command):
  module = importlib.import_module(f'tasks.{command}')
  assert module.main([command, '--helpfull']) == 0
  names = re.findall(r'--(?:\[no\])?([a-z_]+)', capsys.readouterr().out)
  return {*names, 'help', 'helpfull', 'flagfile'}


def test_documented_flags_exist(capsys):
  of_run = _help_flags(capsys, 'run')
  # The flag of docs/own_task.py, and flags of every run.
  more = {'run': {'two_moons_people'}, 'sweep': of_run, 'audit': of_run}
  text = '\n'.join(path.read_text(encoding='utf-8') for path in _DOCUMENTS)
  lines = re.findall(r'tasks\.([a-z]+) ([^`\n]*--[^`\n]*)', text)
  commands = {command for command, _ in lines}
  assert {'run', 'sweep', 'report', 'account', 'benchmark'} <= commands
  flags = {name: _help_flags(capsys, name) | more.get(name, set()) for name in commands}
  for command, line in lines:
    assert set(re.findall(r'--([a-z_]+)', line)) <= flags[command], line


def test_documented_runs_have_valid_flags(monkeypatch):
  monkeypatch.chdir(_ROOT)
  lines = {
      line
      for path in _DOCUMENTS
      for line in re.findall(r'^python -m tasks\.run (.*)', path.read_text(encoding='utf-8'), re.M)
      # The plug-ins of docs/extending.md are a reader's.
      if not re.search('--help|two_moons|own_rows|block', line)
  }
  assert len(lines) > 12
  for line in lines:
    settings.parse(shlex.split(line, comments=True))


def test_documented_defaults_are_those_of_the_tasks():
  page = (_ROOT / 'docs/running.md').read_text(encoding='utf-8')
  table = page.split('## Defaults')[1].split('\n## ')[0]
  header, *rows = (
      [cell.strip(' `') for cell in line.strip('|').split('|')]
      for line in table.splitlines() if line.startswith('| ')
  )
  assert header == ['flag', *datasets.NAMES]
  fields = {field.name for field in dataclasses.fields(task_lib.Defaults)}
  documented = {
      flag.removeprefix('--'): dict(zip(datasets.NAMES, values)) for flag, *values in rows
  }
  # Not in the table: what no task, or one method alone, sets, and constants that are not flags.
  assert fields - {*documented} == {
      'noise_multiplier', 'max_client_examples', 'learning_rate_decay',
      'learning_rate_decay_rounds', 'paper_population', 'by_method',
  }
  for flag, values in documented.items():
    for task, value in values.items():
      defaults = datasets.TASKS[task].defaults
      default = getattr(defaults, flag)
      texts = [default if isinstance(default, str) else f'{default:g}']
      texts += [f'`{name}` {own[flag]:g}' for name, own in defaults.by_method.items() if flag in own]
      assert value == '; '.join(texts), (flag, task)
  decays = {
      task: (datasets.TASKS[task].defaults.learning_rate_decay,
             datasets.TASKS[task].defaults.learning_rate_decay_rounds) for task in datasets.NAMES
  }
  assert decays == {task: (0.99, 50 if task == 'shakespeare' else 1) for task in datasets.NAMES}
  cap = datasets.TASKS['shakespeare'].defaults.by_method['fedsmp_randk']['max_client_examples']
  assert f'at most {cap} of its examples in a round' in page


def test_the_citation_has_the_version():
  text = (_ROOT / 'CITATION.cff').read_text(encoding='utf-8')
  assert f'\nversion: {fedsmp_tff.__version__}\n' in text


def test_links_to_pictures_and_files_exist():
  for path in _DOCUMENTS:
    for target in re.findall(r'\]\(([^)#:]+)[^):]*\)', path.read_text(encoding='utf-8')):
      assert (path.parent / target).exists(), (path, target)


@pytest.mark.parametrize('name', draw.FIGURES)
def test_the_kept_figures_are_what_the_script_draws(name):
  kept = _ROOT / 'docs/figures' / f'{name}.svg'
  assert kept.read_text(encoding='utf-8') == draw.FIGURES[name]()


def test_the_messages_of_the_troubleshooting_page_exist():
  texts = [(_ROOT / 'Makefile').read_text(encoding='utf-8')]
  for package in ('fedsmp_tff', 'tasks'):
    for path in (_ROOT / package).rglob('*.py'):
      tree = ast.parse(path.read_text(encoding='utf-8'))
      docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
      texts += [
          ''.join(part.value for part in getattr(node, 'values', [node]) if hasattr(part, 'value')
                  and isinstance(part.value, str))
          for node in ast.walk(tree)
          if isinstance(node, (ast.Constant, ast.JoinedStr)) and id(node) not in docstrings
      ]
  code = '\n'.join(texts)
  page = (_ROOT / 'docs/troubleshooting.md').read_text(encoding='utf-8')
  titles = re.findall(r'^\*\*`.*', page, re.MULTILINE)
  messages = re.findall(r'\*\*`([^`]+)`\*\*', '\n'.join(titles))
  assert len(messages) >= 9
  for message in messages:
    assert all(part in code for part in message.split('. ')), message
