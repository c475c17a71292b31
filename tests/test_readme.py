"""Tests that the README's snippet runs and its commands exist."""

import pathlib
import re
import subprocess

from tasks import run

_ROOT = pathlib.Path(__file__).parents[1]
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


def test_its_flags_exist(capsys):
  assert run.main(['run', '--help']) == 0
  known = {'help'} | set(re.findall(r'--([a-z_]+)', capsys.readouterr().out))
  lines = re.findall(r'tasks\.run .*', _README)
  assert lines
  for line in lines:
    for flag in re.findall(r'--([a-z_]+)', line):
      assert flag in known, line


def test_its_pictures_and_files_exist():
  for target in re.findall(r'\]\(([^)#:]+)\)', _README):
    assert (_ROOT / target).exists(), target
