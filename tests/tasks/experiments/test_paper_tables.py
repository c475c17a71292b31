"""Tests of the paper's tables and of the runs that reproduce them."""

import collections
import pathlib

import pytest

from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import sampling
from fedsmp_tff.privacy import spec as spec_lib
from tasks import datasets
from tasks.experiments import grids
from tasks.experiments import paper_tables
from tasks.training import settings

_PAPER = pathlib.Path(settings.__file__).parents[1] / 'experiments' / 'paper'


def _flags(row):
  """The flags with which tasks.run reproduces a row."""
  flags = [f'--flagfile={_PAPER / row.task}.flags', f'--algorithm={row.algorithm}']
  if row.p < 1:
    flags.append(f'--p={row.p:g}')
  if row.noise_multiplier is not None:
    flags.append(f'--noise_multiplier={row.noise_multiplier:g}')
  return flags


class TestComputation:

  def test_tables_have_the_numbers_of_the_paper(self):
    counts = collections.Counter(row.table for row in paper_tables.rows())
    assert counts == {1: 16, 2: 16, 3: 16, **dict.fromkeys(range(4, 10), 20)}
    # Picked from the paper by hand, one a table.
    for table, algorithm, p, epsilon, accuracy in (
        (1, 'fedsmp_topk', 0.005, 1.01, 80.76), (2, 'fedsmp_randk', 0.4, 1.01, 77.07),
        (3, 'dp_fedavg', 1.0, 6.99, 51.03), (4, 'fedsmp_randk', 0.8, 0.44, 29.26),
        (5, 'fedsmp_topk', 0.1, 2.02, 82.04), (6, 'fedsmp_randk', 0.2, 0.58, 69.90),
        (8, 'fedsmp_randk', 0.4, 11.51, 55.34), (9, 'fedsmp_topk', 0.2, 3.39, 53.00),
    ):
      (row,) = (
          row for row in paper_tables.rows()
          if (row.table, row.algorithm, row.p, row.epsilon) == (table, algorithm, p, epsilon)
      )
      assert row.accuracy == accuracy

  @pytest.mark.parametrize('task', ['fashion_mnist', 'svhn', 'shakespeare'])
  def test_every_row_is_a_cell_of_the_grid(self, task):
    cells = [cell.identity for part in grids.read(f'paper/{task}') for cell in part]
    for row in paper_tables.rows():
      if row.task != task:
        continue
      assert grids.Cell.of(_flags(row)).identity in cells, row
      s = settings.parse(_flags(row))[0]
      assert (s.task, s.algorithm, s.p or 1.0) == (row.task, row.algorithm, row.p)
      assert s.noise_multiplier == row.noise_multiplier
      assert s.sampling == 'fixed_size' and s.initializer == 'torch'
      standard = paper_tables.settings_for(row.task)
      assert (s.rounds, s.clients_per_round) == (standard.rounds, standard.clients_per_round)

  def test_figure_2_has_the_best_p_of_each_mask(self):
    for task, target in paper_tables.TARGETS.items():
      rows = [
          row for row in paper_tables.rows()
          if row.task == task and row.table in paper_tables.SUMMARIES
      ]
      for algorithm, p in target.p.items():
        of_mask = [row for row in rows if row.algorithm == algorithm]
        assert max(of_mask, key=lambda row: row.accuracy).p == p
      # A target is one that every method of the figure reaches in the paper.
      assert target.savings.keys() == target.p.keys()
      drawn = [row for row in rows if target.p.get(row.algorithm, 1.0) == row.p]
      assert len(drawn) == 4 and min(row.accuracy for row in drawn) > target.accuracy

  def test_a_module_or_a_task_of_ones_own_has_no_setting_of_the_paper(self):
    assert paper_tables.identity('fashion_mnist', 'strangers.method') is None
    assert paper_tables.identity('strangers.task', 'dp_fedavg') is None
    for row in paper_tables.rows():
      identity = paper_tables.identity(row.task, row.algorithm)
      exact = grids.Cell.of(_flags(row)).identity
      assert {name for name in exact if exact[name] != identity[name]} <= {
          'p', 'noise_multiplier'
      }

  def test_sigma_of_each_row_gives_the_printed_epsilon(self):
    # Printed with three digits: half a unit of the last is at most 1.2 % (of 0.44).
    rows = {
        (row.task, row.noise_multiplier): row for row in paper_tables.rows() if row.epsilon
    }
    assert len(rows) == 12
    for (task, sigma), row in rows.items():
      standard = paper_tables.settings_for(task)
      n = datasets.TASKS[task].defaults.paper_population or 6000
      spec = spec_lib.PrivacySpec(
          population=n, clients_per_round=standard.clients_per_round,
          rounds=standard.rounds, noise_multiplier=sigma, clipping_norm=1.0,
          delta=spec_lib.default_delta(n), sampling=sampling.FIXED,
      )
      assert spec.epsilon(accountants.PAPER) == pytest.approx(row.epsilon, rel=0.012)

  def test_the_grids_have_figure_3_without_noise(self):
    for task in ('fashion_mnist', 'svhn', 'shakespeare'):
      cells = [cell.settings for part in grids.read(f'paper/{task}') for cell in part]
      without_noise = {(cell.algorithm, cell.p) for cell in cells}
      for row in paper_tables.rows():
        if row.task == task and row.table <= 3 and row.p < 1:
          assert (row.algorithm.replace('fedsmp', 'fedavg'), row.p) in without_noise

  def test_a_row_matches_by_task_p_and_sigma(self):
    row = next(row for row in paper_tables.rows() if row.task == 'shakespeare' and row.p == 0.05)
    assert row.is_of('shakespeare', row.algorithm, 41126 / 822570, 0.3)
    assert not row.is_of('shakespeare', row.algorithm, 0.05, 0.253)
    assert not row.is_of('shakespeare', row.algorithm, 0.05, None)
    assert not row.is_of('shakespeare', row.algorithm, 0.1, 0.316)
    assert not row.is_of('svhn', row.algorithm, 0.05, 0.316)
