"""Tests that help, plans, errors and documents are in the words of docs/contributing.md."""

import ast
import json
import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_PAGE = _ROOT / 'docs' / 'contributing.md'


# Words that are right in other senses.
_PATTERNS = {
    # Not 'had finished'.
    'had': r'\bbe had\b|\bhad (?:an?|another|the|its|their|no|more|fewer|\d[\d.,]*)\b',
    # Not 'hold out', 'hold back' and locks.
    'hold': r'\bhold\b(?! (?:out|back|the lock|a lock)\b)',
    'holds': r'\bholds\b(?! (?:out|back|the lock|a lock)\b)',
}


def _words():
  table = _PAGE.read_text(encoding='utf-8').split('| not | but |')[1]
  cells = [row.split('|')[1].strip() for row in table.strip().splitlines()[1:]]
  return [word for cell in cells for word in cell.split(', ')]


def _pattern(word):
  text = _PATTERNS.get(word, rf'\b{word}\b')
  return re.compile(text.replace(' ', r'\s+'), re.IGNORECASE)


def _texts(path):
  """The prose of a document, notebook or grid, or the strings of a module."""
  text = path.read_text(encoding='utf-8')
  if path.suffix == '.md':
    return [text]
  if path.suffix == '.ipynb':
    cells = json.loads(text)['cells']
    return [''.join(cell['source']) for cell in cells if cell['cell_type'] == 'markdown']
  if path.suffix in ('.grid', '.flags'):
    return [' '.join(re.findall(r'#+\s*(.*)', text))]
  return [
      node.value for node in ast.walk(ast.parse(text))
      if isinstance(node, ast.Constant) and isinstance(node.value, str)
  ]


def test_there_are_some():
  assert len(_words()) > 10 and {'goes on', *_PATTERNS} <= set(_words())


@pytest.mark.parametrize('text, word', [
    ('the file could not be had', 'had'),
    ('top-k had 80.84 % at best', 'had'),
    ('a round had\nanother number of clients', 'had'),
    ('config.json holds a run', 'holds'),
    ('epsilon = 3.743 by what\nholds', 'holds'),
    ('both bounds hold', 'hold'),
])
def test_a_word_is_found(text, word):
  assert _pattern(word).search(text)


@pytest.mark.parametrize('text', [
    'as if it had finished', 'it had never counted fewer', 'had been', 'held-out examples',
    'how many examples to hold out', 'a process that holds the lock', 'the threshold',
])
def test_other_senses_are_not_found(text):
  assert not any(_pattern(word).search(text) for word in _PATTERNS)


@pytest.mark.parametrize('word', _words())
def test_no_text_has_the_word(word):
  paths = [
      *(_ROOT / 'tasks').rglob('*.py'), *(_ROOT / 'fedsmp_tff').rglob('*.py'),
      *(_ROOT / 'tasks' / 'experiments').rglob('*.grid'),
      *(_ROOT / 'tasks' / 'experiments').rglob('*.flags'),
      _ROOT / 'README.md', *(_ROOT / 'docs').glob('*.md'), _ROOT / 'docs' / 'results' / 'README.md',
      *(_ROOT / 'docs' / 'tutorials').glob('*.ipynb'),
  ]
  found = [
      f'{path.relative_to(_ROOT)}: ...{text[max(m.start() - 40, 0) : m.end() + 20]!r}'
      for path in paths if path != _PAGE
      for text in _texts(path)
      for m in _pattern(word).finditer(text)
  ]
  assert not found, '\n'.join(found)
