"""Tests of options: one field makes the flag, its help and its checks."""

import dataclasses
import math
import os
from typing import Optional

import pytest

from tasks import errors
from tasks.cli import options


@dataclasses.dataclass(frozen=True)
class _Oven:
  fuel: str = options.option('gas', 'Fuel.', group='Oven', values=['gas', 'wood'])
  degrees: float = options.option(180.0, 'Degrees.', group='Oven', above=20, at_most=300)
  minutes: Optional[int] = options.option(
      None, 'Minutes (default: by fuel).', group='Dish', at_least=1, excludes=('golden',),
      default_fn=lambda chosen: {'gas': 30, 'wood': 20}[chosen['fuel']],
  )
  golden: Optional[float] = options.option(
      None, 'How golden, instead of --minutes.', group='Dish', at_least=0, below=1
  )
  logs: Optional[int] = options.option(
      None, 'Logs.', group='Oven', at_least=1, requires=options.when('fuel', 'wood'),
      default_fn=lambda chosen: 4,
  )
  weight: Optional[float] = options.option(None, 'Kilograms.', above=0)
  timer: Optional[int] = options.option(
      None, 'Minutes until it rings; 0: never.', at_least=0, off=0, default_fn=lambda chosen: 25
  )
  crisp: bool = options.option(True, 'Crisp.', requires=options.when('fuel', 'gas', 'coal'))
  spices: list[str] = options.option(
      ['salt'], 'Spices', values=['salt', 'cumin'], repeated=True
  )
  guests: Optional[list[str]] = options.option(None, 'Names.')
  notes: list[str] = options.option([], 'Notes', repeated=True)
  book: Optional[str] = options.option('~/book', 'Recipes.', is_path=True)
  pages: list[str] = options.option([], 'Pages.', repeated=True, is_path=True)


def _oven(*arguments):
  parsed = options.new_flags(_Oven)
  assert parsed(['oven', *arguments]) == ['oven']
  return options.make(_Oven, parsed)


def test_help_states_values_defaults_and_repetition():
  text = options.help_text(options.new_flags(_Oven), full=True)
  assert text == '''
Oven:
  --fuel=gas|wood
      Fuel (default: gas).
  --degrees=NUMBER
      Degrees (default: 180).
  --logs=INTEGER
      Logs.

Dish:
  --minutes=INTEGER
      Minutes (default: by fuel).
  --golden=NUMBER
      How golden, instead of --minutes.

Flags:
  --weight=NUMBER
      Kilograms.
  --timer=INTEGER
      Minutes until it rings; 0: never.
  --[no]crisp
      Crisp (default: true).
  --spices=salt|cumin
      Spices. May be repeated (default: salt).
  --guests=A,B
      Names.
  --notes=NAME
      Notes. May be repeated.
  --book=PATH
      Recipes (default: ~/book).
  --pages=PATH
      Pages. May be repeated.'''


class TestMake:

  def test_flags_have_the_type_of_the_annotation(self):
    oven = _oven(
        '--fuel=wood', '--degrees=250', '--minutes=7', '--weight=1.5', '--spices=cumin',
        '--spices=salt', '--guests=ada,carl', '--notes=a,b', '--notes=c',
    )
    assert oven == _Oven(
        fuel='wood', degrees=250.0, minutes=7, golden=None, logs=4, weight=1.5, timer=25,
        crisp=True, spices=['cumin', 'salt'], guests=['ada', 'carl'], notes=['a,b', 'c'],
        book=os.path.expanduser('~/book'), pages=[],
    )
    assert _oven('--golden=0.5', '--nocrisp').crisp is False

  def test_a_tilde_in_a_path_is_the_home_directory(self, monkeypatch):
    monkeypatch.setenv('HOME', '/home/ada')
    oven = _oven('--pages=~/1', '--pages=2~/~', '--notes=~/1')
    assert oven.pages == ['/home/ada/1', '2~/~'] and oven.notes == ['~/1']
    assert _oven('--book=~/b').book == '/home/ada/b' and oven.book == '/home/ada/book'

  def test_missing_options_get_computed_defaults(self):
    assert (_oven().minutes, _oven('--fuel=wood').minutes) == (30, 20)
    assert _oven('--minutes=5').minutes == 5
    # Not what is excluded, nor what has no effect.
    assert _oven('--golden=0.5').minutes is None
    assert (_oven().logs, _oven('--fuel=wood').logs) == (None, 4)

  def test_a_computed_default_can_be_switched_off(self, tmp_path):
    (tmp_path / 'silent').write_text('--timer=0\n')
    file = f'--flagfile={tmp_path}/silent'
    given = [(), ('--timer=0',), (file,), (file, '--timer=3'), ('--timer=3',)]
    assert [_oven(*flags).timer for flags in given] == [25, None, None, 3, 3]

  @pytest.mark.parametrize('arguments, sentence', [
      (['--degrees=20'], '--degrees must be a number > 20 and <= 300; got 20.0.'),
      (['--degrees=301'], '--degrees must be a number > 20 and <= 300; got 301.0.'),
      (['--degrees=nan'], '--degrees must be a number > 20 and <= 300; got nan.'),
      (['--minutes=0'], '--minutes must be an integer >= 1; got 0.'),
      (['--golden=1'], '--golden must be a number >= 0 and < 1; got 1.0.'),
      (['--weight=inf'], '--weight must be a finite number > 0; got inf.'),
      (['--logs=3'], '--logs has no effect unless --fuel=wood. Set that, or remove --logs.'),
      (
          ['--fuel=wood', '--crisp'],
          '--crisp has no effect unless --fuel=gas or coal. Set that, or remove --crisp.',
      ),
      (
          ['--golden=0', '--minutes=3'],
          '--minutes=3 and --golden=0.0 exclude each other. Remove one of them.',
      ),
  ])
  def test_bad_options_are_refused_with_a_remedy(self, arguments, sentence):
    with pytest.raises(errors.InputError) as error:
      _oven(*arguments)
    assert str(error.value) == sentence

  def test_ranges_are_open_or_closed(self):
    for name, value in (('degrees', 300), ('degrees', 20.001), ('golden', 0), ('minutes', 1)):
      assert getattr(_oven(f'--{name}={value}'), name) == value

  def test_a_number_without_a_range_is_finite(self):
    free = options.Option(0.0, 'Any.')
    assert free.allows(-1e300) and not any(map(free.allows, (math.nan, math.inf, -math.inf)))

  def test_instances_share_no_default_list(self):
    first, second = _Oven(), _Oven()
    first.spices.append('cumin')
    assert second.spices == ['salt'] and _oven().spices == ['salt']
