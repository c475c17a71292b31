"""Tests that the README's snippet runs and its commands exist."""

import importlib
import pathlib
import re
import subprocess

_ROOT = pathlib.Path(__file__).parents[2]
_README = (_ROOT / 'README.md').read_text(encoding='utf-8')


def test_the_snippets_run():
  snippets = re.findall(r'```python\n(.*?)```', _README, re.DOTALL)
  assert snippets
  # They build upon one another, as a reader would run them.
  names = {}
  for snippet in snippets:
    exec(snippet, names)
  assert names['output'].metrics['aggregator']['participants'] == 10


def test_make_has_the_commands():
  for target in set(re.findall(r'^make ([a-z]+)', _README, re.MULTILINE)):
    done = subprocess.run(
        ['make', '--dry-run', target], cwd=_ROOT, capture_output=True, check=False
    )
    assert done.returncode == 0, target


def _help_flags(capsys, command):
  module = importlib.import_module(f'tasks.{command}')
  assert module.main([command, '--help']) == 0
  return set(re.findall(r'--([a-z_]+)', capsys.readouterr().out)) | {'help', 'flagfile'}


def test_its_flags_exist(capsys):
  of_run = _help_flags(capsys, 'run')
  # Of these, what every run takes, too.
  takes = {'sweep': of_run, 'tune': of_run}
  found = re.findall(r'tasks\.([a-z]+) ([^`\n]*--[^`\n]*)', _README)
  assert {'run', 'sweep', 'report', 'tune', 'account', 'benchmark'} <= {c for c, _ in found}
  for command, line in found:
    known = _help_flags(capsys, command) | takes.get(command, set())
    for flag in re.findall(r'--([a-z_]+)', line):
      assert flag in known, line


def test_its_pictures_and_files_exist():
  for target in re.findall(r'\]\(([^)#:]+)\)', _README):
    assert (_ROOT / target).exists(), target
