"""Builds the documentation site into site/ and checks its links: `make docs`."""

import html
import importlib
import inspect
import json
import pathlib
import re
import shutil
import subprocess
import sys

import griffe

import fedsmp_tff
from fedsmp_tff import runtime

_FIRST = (
    'privacy.spec.PrivacySpec', 'aggregator.FedSmpFactory', 'sparsifiers.RandK', 'sparsifiers.TopK',
    'sparsifiers.Dense', 'cohorts.cohort', 'learning_process.build_fed_smp',
    'local_training.LocalTraining',
)
_COMMANDS = ('run', 'sweep', 'report', 'account')
_DOCS, _STAGED, _SITE = (pathlib.Path(path).resolve() for path in ('docs', 'build/docs', 'site'))


class Doctests(griffe.Extension):
  """Fences the doctests of docstrings, which Markdown would take for quotations."""

  def on_object(self, *, obj, **_):
    if obj.docstring:
      obj.docstring.value = self.fence(obj.docstring.value)

  @staticmethod
  def fence(text: str) -> str:
    return re.sub(r'^>>> .*(?:\n.+)*', r'```pycon\n\g<0>\n```', text, flags=re.M)


def _notebook(path: pathlib.Path) -> str:
  parts = []
  for cell in json.loads(path.read_text(encoding='utf-8'))['cells']:
    source = ''.join(cell['source'])
    parts.append(source if cell['cell_type'] == 'markdown' else f'```python\n{source}\n```')
    for output in cell.get('outputs', ()):
      image = ''.join(output.get('data', {}).get('image/png', '')).replace('\n', '')
      text = '```text\n' + ''.join(output.get('text', '')) + '```'
      parts.append(f'![Figure](data:image/png;base64,{image})' if image else text)
  return '\n\n'.join(parts)


def _command(name: str) -> str:
  command = [sys.executable, '-m', f'tasks.{name}', '--helpfull']
  text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
  usage, *groups = re.split(r'^(\S.*):\n(?=  --)', text, flags=re.M)
  parts = [f'## tasks.{name}', f'```text\n{usage.strip()}\n```']
  for title, flags in zip(groups[::2], groups[1::2]):
    parts.append(f'### {title}')
    form = r'^  (--(?:\[no\])?(\w+)\S*)\n((?:      .*\n?)+)'
    for flag, key, meaning in re.findall(form, flags, re.M):
      meaning = html.escape(' '.join(meaning.split()), quote=False)
      parts.append(f'`{flag}`{{#{name}-{key}}}\n:   ' + re.sub(r'[\\`*_\[\]]', r'\\\g<0>', meaning))
  return '\n\n'.join(parts)


def _stage() -> None:
  """Writes the Markdown of all pages; imports no TensorFlow."""
  shutil.rmtree(_STAGED, ignore_errors=True)
  shutil.copytree(_DOCS, _STAGED, ignore=shutil.ignore_patterns('build_site.py', 'draw.py', '__pycache__'))
  shutil.copy('CITATION.cff', _STAGED)  # A link of the home page.
  pages = {f'tutorials/{path.stem}': _notebook(path) for path in _DOCS.glob('tutorials/*.ipynb')}
  pages['index'] = pathlib.Path('README.md').read_text(encoding='utf-8').replace('](docs/', '](')
  files = pathlib.Path('tasks').glob('*.py')
  names = [file.stem for file in files if '__main__' in file.read_text(encoding='utf-8')]
  # In the order in which a user needs them.
  names = [*_COMMANDS, *sorted({*names} - {*_COMMANDS})]
  pages['reference/cli'] = '\n\n'.join(['# Commands', *map(_command, names)])
  public = [f'{module}.{n}' for module, names in fedsmp_tff._NAMES.items() for n in names]
  # What a reader looks for first; the others in alphabetical order.
  public.sort(key=lambda name: (_FIRST.index(name) if name in _FIRST else len(_FIRST), name))
  api = {
      'fedsmp_tff': public,
      'fedsmp_tff.runtime': [f'runtime.{module}.{n}' for n, module in runtime._MODULES.items()],
  }
  for package in ('privacy', 'program', 'theory'):
    modules = sorted(pathlib.Path('fedsmp_tff', package).glob('[!_]*.py'))
    api[f'fedsmp_tff.{package}'] = [f'{package}.{path.stem}' for path in modules]
  for title, names in api.items():
    objects = (f'::: fedsmp_tff.{name}' for name in names)
    about = inspect.getdoc(importlib.import_module(title)) or ''
    about = Doctests.fence(about)
    pages[f'reference/{title}'] = '\n\n'.join([f'# {title}', about, *objects])
  (_STAGED / 'reference').mkdir()
  for path in _DOCS.rglob('*.md'):
    name, text = path.relative_to(_DOCS).with_suffix(''), path.read_text(encoding='utf-8')
    if name.name == 'report':  # Many have the same words, so a search would find nothing else.
      text = re.sub('^# .*', f'# {name.parent.relative_to("results")}', text, count=1)
      text = f'---\nsearch:\n  exclude: true\n---\n{text}'
    pages[name] = text
  for name, text in pages.items():
    text = text.replace('](../README.md', '](index.md').replace('.ipynb)', '.md)')
    # A number stays on the line of its spread and its unit.
    text = re.sub(r'(?<=\d) (?=±|MB\b)|(?<=±) (?=\d)', '\u00a0', text)
    (_STAGED / f'{name}.md').write_text(text, encoding='utf-8')


def _broken_links() -> list[str]:
  texts = {path: path.read_text(encoding='utf-8') for path in sorted(_SITE.rglob('*.html'))}
  anchors = {path: {'', *re.findall(r'\bid="([^"]*)"', text)} for path, text in texts.items()}
  broken = []
  for path, text in texts.items():
    for link in re.findall(r'\b(?:href|src)="(?!\w+:|/)([^"]*)"', text):
      name, _, anchor = html.unescape(link).partition('#')
      target = (path.parent / name).resolve() if name else path
      if not target.exists() or anchor not in anchors.get(target, {anchor}):
        broken.append(f'{path.relative_to(_SITE)}: {link}')
  return broken


if __name__ == '__main__':
  _stage()
  shutil.rmtree(_SITE, ignore_errors=True)
  # Without --clean, Zensical reuses pages whose docstrings have changed.
  subprocess.run([sys.executable, '-m', 'zensical', 'build', '--clean'], check=True)
  if broken := _broken_links():
    sys.exit('\n  '.join(['Broken links:', *broken]))
