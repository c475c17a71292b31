"""Tests that the documentation site has every page."""

import pathlib
import re

import fedsmp_tff

_ROOT = pathlib.Path(__file__).parents[2]
_DOCS = _ROOT / 'docs'


def test_navigation_has_every_document_and_package():
  navigation = re.findall(r': (\S+)\.md$', (_ROOT / 'mkdocs.yml').read_text(encoding='utf-8'), re.M)
  packages = ['fedsmp_tff', *(f'fedsmp_tff.{name}' for name in fedsmp_tff._PACKAGES)]
  assert sorted(navigation) == sorted([
      'index', 'reference/cli', *(f'reference/{package}' for package in packages),
      *(path.stem for path in _DOCS.glob('*.md')),
      *(f'tutorials/{path.stem}' for path in _DOCS.glob('tutorials/*.ipynb')),
  ])
