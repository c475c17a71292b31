"""Tests of the curves in the figures."""

import dataclasses

from matplotlib import image
import pytest

from tasks import errors
from tasks import systems
from tasks.cli import grids
from tasks.reporting import drawing
from tasks.reporting import figures
from tasks.reporting import results
from tests.support import runs_on_disk


@pytest.fixture
def make(tmp_path):
  """Returns the figures of runs by name."""

  def make(*runs):
    runs = [
        results.read(runs_on_disk.write(tmp_path / str(i), **options))
        for i, options in enumerate(runs)
    ]
    drawn = figures.of_task(results.group(runs))
    return {figure.name.removeprefix('fashion_mnist_'): figure for figure in drawn}

  return make


def _run_of(cell, accuracy, seed=1):
  """Options of a run of a grid's cell."""
  flags = dict(flag.lstrip('-').split('=') for flag in cell.flags)
  return dict(
      flags, accuracies=[None] * cell.settings.rounds + [accuracy], p=cell.settings.p or 1, seed=seed
  )


def _labels(figure):
  return [curve.label for curve in figure.panels[0].curves]


class TestComputation:

  def test_every_system_has_a_color_and_a_name(self):
    titles = {systems.SYSTEMS[name].title for name in systems.SYSTEMS.names}
    assert len(titles) == len(systems.SYSTEMS.names) <= len(drawing._COLORS)

  def test_accuracy_over_rounds_and_uplink(self, make):
    drawn = make(
        dict(accuracies=[0.1, 0.6], seed=1), dict(accuracies=[0.1, 0.8], seed=2),
        dict(accuracies=[0.2, 0.5, 0.4], algorithm='fedavg'),
    )
    figure = drawn.pop('rounds')
    assert not drawn  # One p only: nothing to draw over it.
    assert _labels(figure) == ['Fed-SMP top-k: best 70.0 %', 'FedAvg: best 50.0 %']
    assert figure.title == 'Fashion-MNIST images, CNN: accuracy over rounds and uplink'
    assert figure.note == (
        'Epsilon (valid with fresh noise): 0.1; sigma: 1.4; seeds per setting: 1 to 2;'
        ' bands and bars are one standard deviation.'
    )
    by_round, by_uplink = figure.panels
    topk, fedavg = by_round.curves
    assert topk.x.tolist() == [0, 1] and topk.y == pytest.approx([10, 70])
    assert topk.spread == pytest.approx([0, 200**0.5])
    assert fedavg.y == pytest.approx([20, 50, 40]) and topk.color != fedavg.color
    # Without the round before which nothing was sent.
    assert by_uplink.log_x and by_uplink.curves[1].x == pytest.approx([0.01, 0.02])
    assert by_round.bottom == 15  # 25 points below the lowest final accuracy.

  def test_with_many_runs_the_most_accurate_of_each_system(self, make):
    runs = [dict(accuracies=[0.1, p], p=p) for p in (0.001, 0.005, 0.01, 0.1, 0.2, 0.4, 0.8)]
    runs += [dict(accuracies=[0.1, 0.5 - p], p=p, algorithm='fedsmp_randk') for p in (0.1, 0.4)]
    runs += [dict(accuracies=[0.1, 0.5], algorithm=name) for name in ('dp_fedavg', 'fedavg')]
    figure = make(*runs)['rounds']
    assert [label.split(':')[0] for label in _labels(figure)] == [
        'Fed-SMP top-k, p = 0.8', 'Fed-SMP rand-k, p = 0.1', 'DP-FedAvg', 'FedAvg',
    ]
    assert figure.note.startswith('The most accurate of each system among 11 settings; ')

  def test_with_many_runs_of_one_system_the_most_accurate(self, make):
    figure = make(*[dict(accuracies=[0.1, 0.01 * i], clip=0.1 * i) for i in range(1, 10)])['rounds']
    curves = figure.panels[0].curves
    assert sorted(curve.y[-1] for curve in curves) == pytest.approx([4, 5, 6, 7, 8, 9])
    assert figure.note.startswith('The most accurate 6 among 9 settings; ')
    assert len({curve.color for curve in curves}) == 6
    assert all(f', clip = {clip}: best' in ' '.join(_labels(figure)) for clip in (0.5, 0.8))

  def test_the_public_only_baseline_is_a_level(self, make):
    figure = make(
        dict(accuracies=[0.7, 0.8, 0.8], warm_start='public'),
        dict(accuracies=[0.75], algorithm='public_only'),
    )['rounds']
    by_round, by_uplink = figure.panels
    level = by_round.curves[-1]
    assert level.label == 'public-only baseline: 75.0 %' and level.style == 'reference'
    assert level.x.tolist() == [0, 2] and level.y.tolist() == [75, 75]
    assert len(by_uplink.curves) == 1  # The baseline has no uplink.
    # After a warm start the axis begins below the lowest accuracy.
    assert [panel.bottom for panel in figure.panels] == pytest.approx([69, 69])

  def test_an_ablation_has_its_steps_in_their_order(self, make):
    cells = [cell for part in grids.read('ablation/fashion_mnist') for cell in part]
    assert all(cell.title for cell in cells) and len({cell.title for cell in cells}) == len(cells)
    chosen = ((cells[3], 0.4), (cells[4], 0.2), (cells[0], 0.8))
    figure = make(*[_run_of(cell, accuracy) for cell, accuracy in chosen])['ablation']
    (panel,) = figure.panels
    assert list(panel.ticks) == [
        f'{cells[i].title}: {accuracy:.1f} %' for i, accuracy in ((0, 80), (3, 40), (4, 20))
    ]
    (curve,) = panel.curves
    assert curve.x == pytest.approx([80, 40, 20]) and curve.y.tolist() == [0, -1, -2]
    assert curve.x_spread == pytest.approx([0, 0, 0])  # One seed.
    assert figure.title.endswith(': ablation, one component more per row')

  def test_an_ablation_has_baselines_apart_and_shared_seeds(self, make):
    steps, baselines = grids.read('ablation/fashion_mnist')
    figure = make(*[
        # The accuracy depends on the seed.
        _run_of(cell, accuracy - 0.2 * (seed - 1), seed)
        for cell, accuracy, num_seeds in (
            (steps[0], 0.8, 1), (steps[1], 0.7, 2), (steps[2], 0.75, 1), (baselines[0], 0.1, 3),
        )
        for seed in range(1, num_seeds + 1)
    ])['ablation']
    joined, apart = figure.panels[0].curves
    assert joined.x == pytest.approx([80, 70, 75]) and joined.style == 'points'
    assert apart.x == pytest.approx([10]) and apart.style == 'marks'
    assert apart.y.tolist() == [-3] and apart.color != joined.color

  def test_over_p_with_and_without_noise(self, make):
    loss, accuracy = make(
        dict(accuracies=[0.1, 0.5], p=0.005), dict(accuracies=[0.1, 0.6], p=0.1),
        dict(accuracies=[0.1, 0.7, 0.65], algorithm='dp_fedavg'),
        dict(accuracies=[0.1, 0.2], p=0.1, algorithm='fedavg_topk'),
        dict(accuracies=[0.1, 0.3], p=0.005, noise_multiplier=2.5),
        dict(accuracies=[0.1, 0.8], algorithm='dp_fedavg', clip=0.4),
    )['ratio'].panels
    (measured,) = loss.curves  # Without noise, and with C = 0.4, there is a single p.
    assert measured.x == pytest.approx([0.005, 0.1, 1], rel=1e-4)
    assert measured.y == pytest.approx([0.5, 0.4, 0.35])
    measured, paper = accuracy.curves
    assert measured.y == pytest.approx([50, 60, 70])  # The best over rounds.
    assert paper.style == 'reference'
    assert paper.x.tolist() == [0.001, 0.005, 0.01, 0.1, 0.2, 0.4, 0.8, 1]
    # At 0.8 Table 5 has another figure than Table 1, which goes first.
    assert paper.y[1] == 80.76 and paper.y[-2:].tolist() == [79.77, 72.72]

  def test_two_settings_are_two_curves_over_p(self, make):
    _, accuracy = make(*[
        dict(accuracies=[0.1, clip], p=p, clip=clip) for clip in (0.4, 1.0) for p in (0.005, 0.1, 0.4)
    ])['ratio'].panels
    low, high = accuracy.curves[:2]
    assert [low.y.tolist(), high.y.tolist()] == [[40, 40, 40], [100, 100, 100]]
    assert [curve.label.split(', ')[-1] for curve in (low, high)] == [
        'clip = 0.4; 1 round', 'clip = 1.0; 1 round'
    ]
    assert low.color != high.color

  def test_curves_that_differ_in_their_masks_share_the_point_at_p_of_one(self, make):
    _, accuracy = make(
        *[
            dict(accuracies=[0.1, accuracy], p=p, **flags)
            for flags, accuracy in (({}, 0.5), ({'public_clients': 10}, 0.6)) for p in (0.005, 0.1)
        ],
        dict(accuracies=[0.1, 0.7], algorithm='dp_fedavg'),
    )['ratio'].panels
    plain, ten, _ = accuracy.curves
    assert [plain.y.tolist(), ten.y.tolist()] == [[50, 50, 70], [60, 60, 70]]
    assert 'public_clients = 10' in ten.label and 'public_clients = 0' in plain.label

  def test_unfinished_runs_are_no_points_over_p(self, make):
    drawn = make(
        dict(accuracies=[0.1, 0.5], p=0.005), dict(accuracies=[0.1, 0.5], p=0.2),
        dict(accuracies=[0.1, 0.6], p=0.1, rounds=5),
    )
    assert list(drawn) == ['rounds']


class TestExecution:

  def test_no_label_or_title_is_cut(self, make, tmp_path):
    flags = {'clip_schedule': 'learning_rate', 'released_weight': 0.5, 'mask_rounds': 7,
             'server_learning_rate_schedule': 'linear_decay', 'server_learning_rate': 2.5,
             'warm_start': 'public'}
    figure = make(
        dict(accuracies=[0.1, 0.6], **flags),
        *(dict(accuracies=[0.1, 0.5], **{k: v for k, v in flags.items() if k != left_out})
          for left_out in flags),
    )['rounds']
    assert max(map(len, _labels(figure))) > 120
    # With one panel it is half as wide.
    narrow = dataclasses.replace(figure, panels=figure.panels[:1])
    for i, drawn in enumerate((figure, narrow)):
      path = tmp_path / f'{i}.png'
      drawing.save_png(drawn, path)
      pixels = image.imread(path)
      assert pixels.min() == 0  # There is ink, but not at the edges.
      assert pixels[:, 0].min() == pixels[:, -1].min() == pixels[-1].min() == 1
    with pytest.raises(errors.InputError, match="/dev/null/a.png can't be written"):
      drawing.save_png(narrow, '/dev/null/a.png')
