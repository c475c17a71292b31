"""Tests that help, plans, errors and documents are in the words of docs/contributing.md."""

import ast
import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_PAGE = _ROOT / 'docs' / 'contributing.md'


def _words():
  table = _PAGE.read_text(encoding='utf-8').split('| not | but |')[1]
  return [row.split('|')[1].strip() for row in table.strip().splitlines()[1:]]


def _texts(path):
  """The texts of a document, or those in a module's code: what it prints and raises."""
  text = path.read_text(encoding='utf-8')
  if path.suffix == '.md':
    return [text]
  return [
      node.value for node in ast.walk(ast.parse(text))
      if isinstance(node, ast.Constant) and isinstance(node.value, str)
  ]


def test_there_are_some():
  assert len(_words()) > 10 and 'goes on' in _words()


@pytest.mark.parametrize('word', _words())
def test_no_text_has_the_word(word):
  paths = [
      *(_ROOT / 'tasks').rglob('*.py'), *(_ROOT / 'fedsmp_tff').rglob('*.py'),
      _ROOT / 'README.md', *(_ROOT / 'docs').glob('*.md'), _ROOT / 'docs' / 'results' / 'README.md',
  ]
  pattern = re.compile(rf'\b{word}\b'.replace(' ', r'\s+'), re.IGNORECASE)
  found = [
      f'{path.relative_to(_ROOT)}: ...{text[max(m.start() - 40, 0) : m.end() + 20]!r}'
      for path in paths if path != _PAGE
      for text in _texts(path)
      for m in pattern.finditer(text)
  ]
  assert not found, '\n'.join(found)
