"""Tests of grids: what a file of flags stands for, and in which order."""

import pytest

from tasks import errors
from tasks.experiments import grids

_LINES = """
# A comment.
all: --task=fashion_mnist --sampling=fixed_size
--algorithm=fedsmp_{topk,randk} --p={0.1,0.2}  # four
--algorithm=dp_fedavg

--p=0.1 --algorithm=fedsmp_topk
--algorithm=fedavg
"""


@pytest.fixture
def write(tmp_path):
  def make(text):
    path = tmp_path / 'my.grid'
    path.write_text(text)
    return str(path)

  return make


def _short(cells):
  return [' '.join(flag.split('=')[1] for flag in cell.flags[2:]) for cell in cells]


class TestComputation:

  def test_braces_expand_and_repeated_runs_are_dropped(self, write):
    first, second = grids.read(write(_LINES))
    assert _short(first) == [
        'fedsmp_topk 0.1', 'fedsmp_topk 0.2', 'fedsmp_randk 0.1', 'fedsmp_randk 0.2',
        'dp_fedavg',
    ]
    # A run that is listed already, in another order of flags, is not listed twice.
    assert _short(second) == ['fedavg']
    assert first[0].flags[:2] == ('--task=fashion_mnist', '--sampling=fixed_size')

  def test_seeds_go_through_a_paragraph_before_the_next(self, write):
    paragraphs = grids.read(write('--task=a\n--task=b\n\n--task=c --seed=7\n--task=d'))
    assert [cell.flags for cell in grids.with_seeds(paragraphs, [1, 2])] == [
        ('--task=a', '--seed=1'), ('--task=b', '--seed=1'),
        ('--task=a', '--seed=2'), ('--task=b', '--seed=2'),
        ('--task=c', '--seed=7'),
        ('--task=d', '--seed=1'), ('--task=d', '--seed=2'),
    ]

  def test_cells_have_merged_flags_and_short_names(self):
    cell = grids.Cell.of(['--rounds=3', '--task=svhn', '--algorithm=fedavg', '--rounds=1/4'])
    assert cell.flags == ('--rounds=1/4', '--task=svhn', '--algorithm=fedavg')
    assert cell.name == grids.Cell.of(reversed(cell.flags)).name == 'svhn-fedavg-rounds=1_4'
    free = ['--data_dir=/b', '--workers=1', '--runtime=ray', '--overwrite', '--epsilon_budget=2']
    assert grids.Cell.of(['--task=a', *free]).name == 'a'
    # Names fit file systems.
    flags = [f'--flag_number_{i}=1' for i in range(40)]
    long, other = grids.Cell.of(flags).name, grids.Cell.of([*flags[:-1], '--x=1']).name
    assert len(long) < 200 and long != other

  def test_settings_of_a_cell_follow_from_its_line(self):
    one = grids.Cell.of(['--task=fashion_mnist', '--algorithm=fedsmp_randk', '--clip=0.5'])
    other = grids.Cell.of(['--task=svhn', '--algorithm=dp_fedavg'])
    assert one.settings.clip == 0.5 and one.settings.p == 0.2
    assert other.settings.clip == 0.4 and other.settings.p is None
    with pytest.raises(errors.InputError, match='--p has no effect unless --algorithm='):
      grids.Cell.of(['--task=svhn', '--algorithm=fedavg', '--p=0.1']).settings  # noqa: B018

  @pytest.mark.parametrize('text, sentence', [
      ('# nothing\n\n', 'lists no run'),
      ('--task=a\nstray', "line 2: 'stray' is not a flag"),
      ('--task="a', 'line 1: No closing quotation'),
      ('--task=a --workers={1,2}', 'line 1: two runs would share the directory a, whose name has'),
      ('--flagfile={a/x.flags,b/x.flags}', 'line 1: two runs would share the directory x, whose'),
  ])
  def test_malformed_grids_are_refused(self, write, text, sentence):
    with pytest.raises(errors.InputError, match=sentence):
      grids.read(write(text))

  def test_a_missing_grid_is_refused(self):
    with pytest.raises(errors.InputError, match="--grid=none can't be read.*paper/svhn"):
      grids.read('none')
