"""Tests that docs/privacy.md marks every file and column of real runs, and no others."""

import contextlib
import dataclasses
import fnmatch
import io
import pathlib
import re

import pytest

from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import spec as spec_lib
from tasks import tune
from tasks.training import finished
from tasks.training import reporters
from tests.support import commands
from tests.support import small_data
from tests.support import tiny_task

_PAGE = (pathlib.Path(__file__).parents[2] / 'docs' / 'privacy.md').read_text(encoding='utf-8')
_MARKS = {'inside', 'outside', 'secret'}
# Seconds, a duration or the time left, in what a run prints.
_TIME = re.compile(r'\d (s|min|h)\b|\d\d:\d\d')
_OUTSIDE_OR_SECRET = {
    **dict.fromkeys((
        'timings.csv', 'events.out.tfevents.*', 'checkpoints/round_*.npz', 'participants', 'released',
        'round_seconds',
    ), 'outside'),
    'checkpoints/data_digest.json': 'secret',
}
# Padding has columns of its own.
TASK = dataclasses.replace(tiny_task.TASK, padding=0)
_FLAGS = (f'--task={__name__}', '--rounds=2')


def _rows(title):
  """Maps each artifact of a table to its mark."""
  lines = _PAGE.split(f'| {title} | mark | why |\n')[1].split('\n\n')[0].splitlines()[1:]
  cells = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]
  assert all(len(line) == 3 and line[1] in _MARKS and line[2] for line in cells), cells
  marks = {name: mark for name, mark, _ in cells}
  assert len(marks) == len(cells)
  return marks


def _table(title):
  """Maps each artifact that has a name in code to its mark."""
  rows = _rows(title).items()
  return {match[1]: mark for name, mark in rows if (match := re.match('`(.*)`$', name))}


@pytest.fixture(scope='module')
def runs_and_texts(tmp_path_factory):
  """Runs with every kind of file and column, and stdout and stderr of each command."""
  data_dir = tmp_path_factory.mktemp('data')
  small_data.write_fashion_mnist(data_dir)
  head, sampled = (tmp_path_factory.mktemp(name) for name in ('head', 'sampled'))
  texts = []
  for out, *flags in (
      (head, *_FLAGS),
      (head, '--algorithm=fedsmp_topk', '--clip_quantile=0.5', '--rounds=2', '--trainable=head',
       '--warm_start=public', '--server_optimizer=fedexp', '--seed=1', '--overwrite'),
      (sampled, *_FLAGS, '--seed=1', '--eval_examples=5'),
  ):
    texts.append((io.StringIO(), io.StringIO()))
    with contextlib.redirect_stdout(texts[-1][0]), contextlib.redirect_stderr(texts[-1][1]):
      assert commands.main(commands.tiny(data_dir, out, *flags)) == 0
  finished.clean(sampled)
  tuned = tmp_path_factory.mktemp('tuned')
  flags = [*_FLAGS, '--algorithm=dp_fedavg', '--server_learning_rate={1,2}', f'--data_dir={data_dir}']
  assert tune.main(['tune', *flags, f'--output_dir={tuned}']) == 0
  return (head, sampled, tuned), texts


@pytest.fixture
def runs(runs_and_texts):
  return runs_and_texts[0]


def test_table_marks_exactly_the_files_of_runs(runs):
  table, seen = _table('artifact'), set()
  for run in runs:
    for path in run.rglob('*'):
      name = str(path.relative_to(run))
      if path.is_file():
        (pattern,) = (pattern for pattern in table if fnmatch.fnmatchcase(name, pattern))
        seen.add(pattern)
  assert seen == set(table)


@pytest.mark.parametrize('file', ['metrics.csv', 'timings.csv'])
def test_table_marks_exactly_the_columns_of_runs(runs, file):
  table = _table(f'column of `{file}`')
  assert {name for run in runs for name in commands.rows(run / file)[0]} == set(table)


def test_events_have_the_columns_of_metrics_and_times(runs):
  for run in runs:
    events = commands.events(run)
    tags = {*reporters.tagged(commands.rows(run / 'metrics.csv')[0])}
    assert {tag for _, tag, _ in events} <= tags
    times = {step: time for step, _, time in events}
    assert len({*times.values()}) == len(times) > 1  # Their differences are seconds a round.
  marks = _table('artifact')
  assert marks['events.out.tfevents.*'] == marks['timings.csv'] == 'outside'


def test_printed_texts_with_times_are_marked_outside(runs_and_texts):
  out, err = (text.getvalue() for text in runs_and_texts[1][0])
  plan, results = out.split('\noutput: ', 1)
  marks = _rows('artifact')
  for name, text in (
      ('the plan on standard output', plan),
      ('the results on standard output', results),
      ('lines of progress on standard error', err),
  ):
    assert text and marks[name] == ('outside' if _TIME.search(text) else 'inside'), name
  assert marks["`logs/*` of a sweep's directory"] == 'outside'


def test_only_listed_artifacts_are_outside_or_secret():
  tables = [_table('artifact'), *(_table(f'column of `{f}.csv`') for f in ('metrics', 'timings'))]
  marks = {name: mark for table in tables for name, mark in table.items()}
  assert {name: mark for name, mark in marks.items() if mark != 'inside'} == _OUTSIDE_OR_SECRET


def test_the_documented_repair_makes_a_ledger_whole(tmp_path):
  (snippet,) = re.findall(r'```python\n(.*?)```', _PAGE, re.DOTALL)
  path = tmp_path / 'privacy_ledger.jsonl'
  spec = spec_lib.PrivacySpec(6000, 100, 180, 1.4, 1.0, 6000**-1.1)
  with ledger_lib.Ledger(path, spec, 'run', data='people', initial_weights='random') as ledger:
    ledger.begin(0)
  backup = ledger_lib.read(path)
  exec(snippet, {'path': path, 'missing_rounds': [1, 1, 2]})
  repaired = ledger_lib.read(path)
  assert repaired.rounds == [0, 1, 1, 2]
  assert (repaired.spec, repaired.data, repaired.id) == (spec, 'people', backup.id)


def test_epsilons_of_colluding_slots_are_exact():
  spec = spec_lib.PrivacySpec(6000, 100, 180, 1.4, 1.0, 6000**-1.1)
  rows = re.findall(r'(\d+) % of slots[^|]*\| ([\d.]+) \|', _PAGE)
  assert [share for share, _ in rows] == ['1', '10', '30', '50', '90']
  for share, epsilon in rows:
    left = dataclasses.replace(spec, noise_multiplier=1.4 * (1 - int(share) / 100) ** 0.5)
    assert f'{left.epsilon():.3g}' == epsilon


def test_epsilons_against_known_cohorts_are_exact():
  spec = spec_lib.PrivacySpec(6000, 100, 180, 1.4, 1.0, 6000**-1.1)

  def known(rounds, sigma):  # A client that takes part for sure: n = r.
    everyone = spec_lib.PrivacySpec(100, 100, rounds, sigma, 1.0, spec.delta)
    return f'{everyone.epsilon():.3g}'

  without_dummies = 1.4 * (spec.clients_per_round / spec.num_slots) ** 0.5
  for rounds, text in (
      (1, 'a client of one round'), (3, 'a client of three rounds (the expected number)'),
  ):
    assert f'{text} | {known(rounds, 1.4)} |' in _PAGE
  server = _PAGE.split('a server that also makes the dummies')[1]
  for rounds, text in ((1, 'of one round'), (3, 'a client of three rounds')):
    assert f'{text} | {known(rounds, without_dummies)} |' in server
