"""Tests of `python -m tasks.report`: the paper's cells next to measured ones, and figures."""

import csv
import json
import math
import sys

import pytest

from tasks import datasets
from tasks import methods
from tasks import report
from tests.support import commands
from tests.support import runs_on_disk

_TABLE_1 = 'Table 1: Fashion-MNIST'
_CONFIGURATIONS = 'Configurations, best first'
_OTHERS = f'Other c{_CONFIGURATIONS[1:]}'


@pytest.fixture
def runs(tmp_path):
  """Writes a run by its name."""
  return lambda name, accuracies, **options: runs_on_disk.write(
      tmp_path / 'runs' / name, accuracies, **options
  )


def _report(tmp_path, *flags):
  """Runs the command; returns the rows of cells.csv by the title of their table, and report.md."""
  output = tmp_path / 'out'
  assert report.main(['report', str(tmp_path / 'runs'), f'--output={output}', *flags]) == 0
  cells = {}
  for table, *texts in csv.reader((output / 'cells.csv').read_text().splitlines()):
    if table == 'table':
      header = texts
    else:
      cells.setdefault(table, []).append(dict(zip(header, texts)))
  return cells, (output / 'report.md').read_text()


class TestExecution:

  def test_measured_cells_stand_beside_the_paper(self, tmp_path, runs, capsys):
    # 180 rounds, of which only the last but one and the last are measured.
    for seed, best in ((1, 0.81), (2, 0.83)):
      runs(str(seed), [0.1, *[None] * 178, best, 0.8], seed=seed)
    cells, text = _report(tmp_path)
    assert str(tmp_path / 'out' / 'report.md') in capsys.readouterr().out
    assert cells[_TABLE_1] == [{
        'algorithm': 'fedsmp_topk', 'p': '0.005', 'sigma': '1.4', "epsilon, paper's table": '1.01',
        'uplink, paper (MB)': '0.1', 'paper (best, %)': '80.76 ± 0.27',
        'best (%)': '82.00 ± 1.41',
        'final (%)': '80.00 ± 0.00', 'seeds': '2', "epsilon, paper's accounting": '36',
        'epsilon, sound accountant': '18', 'uplink (MB)': '0.009', 'difference': '+1.24',
        'differs from the paper in': 'nothing',
    }]
    assert cells['Table 5: Fashion-MNIST, top-k, over epsilon'][0]['best (%)'] == '82.00 ± 1.41'
    assert '1 of 16 cells were run.' in text and '82.00 ± 1.41' in text and _OTHERS[1:] not in text
    assert '(fashion_mnist_rounds.png)' in text
    assert [path.name for path in (tmp_path / 'out').glob('*.png')] == ['fashion_mnist_rounds.png']

  def test_differences_and_accuracy_on_clients_are_marked(self, tmp_path, runs):
    for name, accuracy, flags in (
        ('others', 0.7, dict(noise_multiplier=1.45)),
        ('own', 0.8, dict(clip=0.5, sampling='poisson', mask_rounds=5)),
        ('not_private', 0.9, dict(algorithm='fedavg_topk', clients_per_round=50)),
    ):
      path = runs(name, [0.1, accuracy], rounds='all', **flags) / 'config.json'
      config = json.loads(path.read_text())
      path.write_text(json.dumps(config | {'test_outside_guarantee': name != 'others'}))
    cells, text = _report(tmp_path)
    assert [row['differs from the paper in'] for row in cells[_TABLE_1]] == [
        'sigma = 1.45', 'mask_rounds = 5, clip = 0.5, sampling = poisson',
    ]
    for column in ('final (%)', 'best (%)'):
      assert [row[column] for row in cells[_TABLE_1]] == ['70.00', '80.00 †']
    assert [row['difference'].endswith(' †') for row in cells[_TABLE_1]] == [False, True]
    assert cells[_OTHERS][0]['final (%)'] == '90.00'  # It has no guarantee.
    assert {row['run']: row['accuracy (%)'] for row in cells['List of runs']} == {
        'others': '70.00', 'own': '80.00 †', 'not_private': '90.00',
    }
    assert 'with † are exact functions of clients\' own examples, OUTSIDE (epsilon, delta)' in text

  def test_both_readings_of_randk_stand_beside_the_paper(self, tmp_path, runs):
    for name, p, best, flags in (
        ('a', 0.005, 0.7604, {}), ('b', 0.005, 0.5, dict(unbiased=False)),
        ('c', 0.1, 0.8159, {}), ('d', 0.005, 0.9, dict(unbiased=False, clip=0.5)),
        ('e', 0.1, 0.1, dict(unbiased=False, noise_multiplier=2.5)),
    ):
      runs(name, [0.1, best, 0.1], rounds='all', algorithm='fedsmp_randk', p=p, **flags)
    runs('f', [0.1, 0.5], rounds='all', p=0.1)
    cells, text = _report(tmp_path)
    scaled, unscaled = 'scaled, as in Algorithm 1', 'unscaled, as in Definition 6'
    assert [
        (row['p'], row['reading'], row['differs from the paper in']) for row in cells[_TABLE_1]
    ] == [
        ('0.005', scaled, 'nothing'), ('0.005', unscaled, 'nothing'),
        ('0.005', unscaled, 'clip = 0.5'), ('0.1', '', 'nothing'), ('0.1', scaled, 'nothing'),
    ]
    assert cells['Table 1, rand-k in both readings'] == [
        {
            'p': '0.005', 'paper (best, %)': '56.04 ± 5.22', 'scaled (best, %)': '76.04',
            'seeds, scaled': '1', 'unscaled (best, %)': '50.00', 'seeds, unscaled': '1',
            'difference, scaled': '+20.00', 'difference, unscaled': '-6.04',
        },
        {
            'p': '0.1', 'paper (best, %)': '77.59 ± 0.53', 'scaled (best, %)': '81.59',
            'seeds, scaled': '1', 'unscaled (best, %)': '', 'seeds, unscaled': '',
            'difference, scaled': '+4.00', 'difference, unscaled': '',
        },
    ]
    assert (
        'from the paper: scaled 20.00 points over the 1 values of p that both have; unscaled 6.04'
        ' points over the 1 values of p that both have; scaled 12.00 points over its own 2; unscaled'
        ' 6.04 points over its own 1.'
    ) in text

  def test_a_single_reading_has_no_table_of_both(self, tmp_path, runs):
    runs('a', [0.1, 0.7], rounds='all', algorithm='fedsmp_randk')
    cells, _ = _report(tmp_path)
    assert [row['reading'] for row in cells[_TABLE_1]] == ['scaled, as in Algorithm 1']
    assert 'Table 1, rand-k in both readings' not in cells

  def test_uplink_to_the_target_and_saving_are_listed(self, tmp_path, runs):
    dense = dict(algorithm='dp_fedavg')
    for name, accuracies, flags in (
        ('a', [0.1, 0.5, None, None, 0.72], dense), ('b', [0.1, 0.9], dense | dict(clip=0.5)),
        # DP-FedAvg with another sigma is compared only where there is none with this one.
        ('c', [0.1, 0.72], dense | dict(noise_multiplier=2.5)),
        ('d', [0.1, None, 0.8], dict(seed=1)), ('e', [0.1, None, None, None, 0.8], dict(seed=2)),
        ('f', [0.1, None, None, 0.7199], dict(seed=3)),
        ('g', [0.1, None, 0.8], dict(algorithm='fedsmp_randk', p=0.4, unbiased=False)),
        ('h', [0.1, 0.7], dict(algorithm='fedsmp_randk', p=0.1)),
        ('i', [0.1, 0.8], dict(p=0.1, clip=0.5)), ('j', [0.1, 0.8], dict(algorithm='fedavg')),
        # Initial weights that reach the target, a validation set, and a run without end.
        ('k', [0.8, 0.8], dict(p=0.2)), ('l', [0.1, 0.8], dict(p=0.2, validation_examples=50)),
    ):
      runs(name, [*accuracies, accuracies[-1]], rounds='all', **flags)
    runs('m', [0.1, 0.8], p=0.2, rounds=180)
    sampled = runs('n', [0.1, 0.8], p=0.4, rounds='all') / 'config.json'
    sampled.write_text(json.dumps(json.loads(sampled.read_text()) | {'sampled': True}))
    cells, text = _report(tmp_path)
    columns = (
        'method', 'p', 'first round', 'seeds', 'uplink to target (MB)', 'saving (%)',
        'saving, paper (%)', 'differs from the paper in',
    )
    # The uplink of round t is 0.01 p t MB; saving: 1 minus its ratio to 0.04 MB, or 0.01 MB.
    assert [tuple(row[name] for name in columns) for row in cells['Uplink to a target accuracy']] == [
        ('Fed-SMP top-k', '0.005', '3', '2 of 3', '0.00015', '99.6', '99', 'nothing'),
        ('Fed-SMP top-k', '0.1', '1', '1 of 1', '0.001', '90.0', '', 'clip = 0.5'),
        ('Fed-SMP rand-k', '0.1', 'not reached', '0 of 1', 'not reached', '', '', 'nothing'),
        ('Fed-SMP rand-k', '0.4', '2', '1 of 1', '0.008', '80.0', '70', 'nothing'),
        ('DP-FedAvg', '1', '4', '1 of 1', '0.04', '', '', 'nothing'),
        ('DP-FedAvg', '1', '1', '1 of 1', '0.01', '', '', 'clip = 0.5'),
        ('DP-FedAvg', '1', '1', '1 of 1', '0.01', '', '', 'nothing'),
        ('FedAvg', '1', '1', '1 of 1', '0.01', '75.0', '', 'nothing'),
    ]
    assert 'may have been reached up to one interval earlier' in text

  def test_saving_needs_a_run_of_dp_fedavg(self, tmp_path, runs):
    runs('a', [0.1, 0.8, 0.8], rounds='all')
    runs('b', [0.1, 0.5], rounds='all', algorithm='dp_fedavg')  # Not reached.
    config = runs('c', [0.1, 0.8, 0.8], rounds='all', p=0.1) / 'config.json'
    outside = json.loads(config.read_text()) | {'test_outside_guarantee': True}
    config.write_text(json.dumps(outside))
    cells, _ = _report(tmp_path)
    rows = cells['Uplink to a target accuracy']
    assert [row['first round'] for row in rows] == ['1', '1 †', 'not reached']
    assert 'saving (%)' not in rows[0] and rows[0]['saving, paper (%)'] == '99'

  def test_incomplete_and_other_runs_are_listed(self, tmp_path, runs):
    runs('a', [0.1, 0.8], rounds=7)
    runs('b', [0.1, 0.4], algorithm='fedavg_topk', clients_per_round=50)
    runs('c', [])
    runs('d', [0.3], algorithm='public_only')
    cells, text = _report(tmp_path)
    columns = ('rounds', 'final (%)', 'epsilon, sound accountant')
    assert [tuple(row[column] for column in columns) for row in cells[_CONFIGURATIONS]] == [
        ('1 of 7', '80.00', '0.1'), ('1', '40.00', ''), ('0', '30.00', '')
    ]
    assert 'clients_per_round = 50' in cells[_CONFIGURATIONS][1]['with'] and _TABLE_1 not in cells
    assert [(row['run'], row['rounds'], row['accuracy (%)']) for row in cells['List of runs']] == [
        ('a', '1 of 7', '80.00'), ('b', '1', '40.00'), ('d', '0', '30.00')
    ]
    assert text.startswith(
        '# Results\n\nThis report shows 3 runs on Fashion-MNIST images, CNN (`fashion_mnist`) with seed'
        ' 1. The methods are Fed-SMP top-k, FedAvg top-k and public-only baseline. Only 2 of 3 have done'
        ' all their rounds.\n\nA private run with a seed is simulated: anyone who knows the seed can'
    )
    assert 'and its epsilon is what fresh noise would give' in text

  def test_the_opening_says_what_no_guarantee_covers_where_it_applies(self, tmp_path, runs):
    simulated, validated = 'is simulated: anyone', 'are on the validation set, not on the test set'
    for seed in (1, 2, 3):
      runs(f'a{seed}', [0.1, 0.5], algorithm='fedavg', seed=seed)
    _, text = _report(tmp_path)
    assert 'with seeds 1 to 3. The method is FedAvg. Every run is complete.' in text
    assert not [said for said in (simulated, validated, 'OUTSIDE (epsilon') if said in text]
    path = runs('b', [0.1, 0.5]) / 'config.json'
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {'seed': None, 'test_outside_guarantee': True}))
    _, text = _report(tmp_path)
    assert 'with seeds 1 to 3 or none.' in text and simulated not in text
    assert 'OUTSIDE (epsilon' in text and validated not in text
    runs('c', [0.1, 0.5], seed=5, validation_examples=50)
    _, text = _report(tmp_path)
    assert 'with seeds 1, 2, 3 and 5 or none.' in text and simulated in text and validated in text

  def test_columns_are_explained_where_tables_have_them(self, tmp_path, runs):
    runs('a', [0.1, 0.5], seed=1)
    cells, text = _report(tmp_path)
    meanings = text.split('## What the columns mean\n\n')[1].split('\n\n')[0]
    assert [line.split('**')[1] for line in meanings.split('\n')] == [
        'p', 'sigma', 'best (%)', 'final (%)', "epsilon, paper's accounting",
        'epsilon, sound accountant', 'uplink (MB)', 'with', 'minutes',
    ]
    assert meanings.count('\n- **') == text.count('\n- **') - 1
    runs('b', [0.1, 0.6], seed=2)
    runs('c', [0.1, 0.6], rounds='all')
    _, text = _report(tmp_path)
    assert '\n- **±** is one standard deviation' in text and '\n- **difference** is' in text

  def test_names_in_a_run_import_nothing_without_a_flag(self, tmp_path, runs, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'strangers.py').write_text(
        'import dataclasses\nimport pathlib\nfrom tasks import datasets\nfrom tasks import methods\n'
        'pathlib.Path("ran").touch()\n'
        'TASK = dataclasses.replace(datasets.TASKS["svhn"], name="own", title="The own task")\n'
        'METHOD = dataclasses.replace(methods.METHODS["fedavg"], name="own", title="The method")\n'
    )
    path = runs('a', [0.1, 0.2], algorithm='fedavg', clients_per_round=50) / 'config.json'
    config = json.loads(path.read_text())
    names = dict(task='strangers', algorithm='strangers')
    path.write_text(json.dumps(config | names | {'flags': config['flags'] | names}))
    cells, text = _report(tmp_path)
    assert not (tmp_path / 'ran').exists() and 'strangers' not in sys.modules
    (row,) = cells[_CONFIGURATIONS]
    assert (row['task'], row['algorithm'], row['final (%)']) == ('strangers', 'strangers', '20.00')
    assert 'clients_per_round = 50' in row['with'] and 'batch_size = ' in row['with']
    assert cells['List of runs'][0]['method'] == 'strangers'
    assert '![strangers: accuracy over rounds and uplink](strangers_rounds.png)' in text
    for registry, item in ((datasets.TASKS, 'svhn'), (methods.METHODS, 'fedavg')):
      monkeypatch.setitem(registry, 'strangers', registry[item])  # Removed at the end.
      monkeypatch.delitem(registry, 'strangers')
    cells, text = _report(tmp_path, '--task=strangers', '--algorithm=strangers')
    assert (tmp_path / 'ran').exists() and '![The own task: accuracy over rounds' in text
    assert cells['List of runs'][0]['method'] == 'The method'
    assert 'clients_per_round = 50' in cells[_CONFIGURATIONS][0]['with']
    assert cells[_CONFIGURATIONS][0]['with'].count(',') < row['with'].count(',')  # But for the defaults.

  def test_terminal_controls_in_a_run_are_escaped(self, tmp_path, runs):
    path = runs('a\x1b[2J', [0.1, 0.2], algorithm='fedavg', clients_per_round=50) / 'config.json'
    config = json.loads(path.read_text())
    flags = config['flags'] | {'initializer': '\x1b]0;\u202eforged\n| a | row |'}
    path.write_text(json.dumps(config | {'flags': flags}))
    cells, text = _report(tmp_path)
    assert text.replace('\n', '').isprintable() and '\n| a | row' not in text
    assert cells['List of runs'][0]['run'] == r'a\x1b[2J'
    assert r'initializer = \x1b]0;\u202eforged\n| a' in cells[_CONFIGURATIONS][0]['with']

  @pytest.mark.parametrize('name, fields', [
      *(('config.json', {name: value}) for name, value in (
          ('rounds', '3'), ('rounds', 10**30), ('num_kept', True), ('dim', 0), ('dim', None),
          ('flags', []), ('flags', {'clip': {}}), ('flags', {'clip': [[1]]}), ('privacy', 'no'),
          ('flags', {'clip': math.nan}), ('privacy', {'noise_multiplier': '1'}), ('seed', 'x'),
          ('privacy', {'noise_multiplier': math.inf}), ('task', '../../outside'), ('task', 3),
          ('task', '/tmp/outside'), ('task', 'a b'), ('algorithm', ['fedavg']), ('sampled', 'no'),
      )),
      *(('summary.json', {name: value, 'rounds': 1}) for name, value in (
          ('epsilon', []), ('epsilon', 10**400), ('uplink_megabytes', 'x'),
      )),
      *(('metrics.csv', text) for text in (
          'round,test_accuracy\n0,0.1\n', 'round,test_loss,test_accuracy,uplink_megabytes\n0,1,2,0\n',
          'round,test_loss,test_accuracy,uplink_megabytes\n0,1,nan,0\n', '\0', 'x\n0\n',
          'round,test_accuracy\n0,x\n', f'round,test_accuracy\n0,{"1" * 200_000}\n',
      )),
      *(('config.json', text) for text in ('[' * 100_000, '3', '{', '{"rounds": 3}')),
      ('timings.csv', 'round\n0\n'),
  ])
  def test_a_run_of_wrong_types_is_refused(self, runs, capsys, name, fields):
    path = runs('a', [0.1, 0.2]) / name
    if isinstance(fields, dict):
      fields = json.dumps((json.loads(path.read_text()) if path.exists() else {}) | fields)
    path.write_text(fields)
    said = commands.refused(capsys, report, str(path.parent), f'--output={path.parent / "out"}')
    assert "can't be read as a run" in said and not (path.parent / 'out').exists()
    assert said.strip().isprintable() and len(said) < 600

  def test_bad_paths_get_one_sentence_and_status_2(self, runs, capsys):
    arguments = [str(runs('a', [0.1, 0.2])), '--output=/dev/null/a']
    assert 'No run directory is named' in commands.refused(capsys, report)
    assert "--output=/dev/null/a can't be written" in commands.refused(capsys, report, *arguments)
