"""Tests of which curves the figures hold."""

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
def groups(tmp_path):

  def make(*runs):
    made = [
        results.read(runs_on_disk.write(tmp_path / str(i), **options))
        for i, options in enumerate(runs)
    ]
    return results.group(made)

  return make


def _figure(found, name):
  return next(figure for figure in found if figure.name == f'fashion_mnist_{name}')


class TestComputation:

  def test_every_system_has_a_color_and_a_name(self):
    titles = {systems.SYSTEMS[name].title for name in systems.SYSTEMS.names}
    assert len(titles) == len(systems.SYSTEMS.names) <= len(drawing._COLORS)

  def test_accuracy_over_rounds_and_uplink(self, groups):
    found = figures.of_task(groups(
        dict(accuracies=[0.1, 0.6], seed=1), dict(accuracies=[0.1, 0.8], seed=2),
        dict(accuracies=[0.2, 0.5, 0.4], algorithm='fedavg'),
    ))
    (figure,) = found  # One p only: nothing to draw over it.
    by_round, by_uplink = figure.panels
    assert [curve.label for curve in by_round.curves] == [
        'Fed-SMP top-k: best 70.0 %', 'FedAvg: best 50.0 %'
    ]
    assert figure.title == 'Fashion-MNIST images, CNN: accuracy over rounds and uplink'
    assert figure.note == (
        'Epsilon (valid with fresh noise): 0.1; sigma: 1.4; seeds per setting: 1 to 2;'
        ' bands and bars are one standard deviation.'
    )
    one, other = by_round.curves
    assert one.x.tolist() == [0, 1] and one.y == pytest.approx([10, 70])
    assert one.spread == pytest.approx([0, 200**0.5])
    assert other.y == pytest.approx([20, 50, 40]) and one.color != other.color
    # Without the round before which nothing was sent.
    assert by_uplink.log_x and by_uplink.curves[1].x == pytest.approx([0.01, 0.02])
    assert by_round.bottom == 15  # 25 points below the worst of the last.

  def test_with_many_runs_the_most_accurate_of_each_system(self, groups):
    many = [dict(accuracies=[0.1, p], p=p) for p in (0.001, 0.005, 0.01, 0.1, 0.2, 0.4, 0.8)]
    many += [dict(accuracies=[0.1, 0.5 - p], p=p, algorithm='fedsmp_randk') for p in (0.1, 0.4)]
    many += [dict(accuracies=[0.1, 0.5], algorithm=name) for name in ('dp_fedavg', 'fedavg')]
    figure = _figure(figures.of_task(groups(*many)), 'rounds')
    assert [curve.label.split(':')[0] for curve in figure.panels[0].curves] == [
        'Fed-SMP top-k, p = 0.8', 'Fed-SMP rand-k, p = 0.1', 'DP-FedAvg', 'FedAvg',
    ]
    assert figure.note.startswith('The most accurate of each system among 11 settings; ')

  def test_with_many_runs_of_one_system_the_most_accurate(self, groups):
    many = [dict(accuracies=[0.1, 0.01 * i], clip=0.1 * i) for i in range(1, 10)]
    figure = _figure(figures.of_task(groups(*many)), 'rounds')
    assert sorted(curve.y[-1] for curve in figure.panels[0].curves) == pytest.approx(
        [4, 5, 6, 7, 8, 9]
    )
    assert figure.note.startswith('The most accurate 6 among 9 settings; ')
    # No color is another curve's.
    assert len({curve.color for curve in figure.panels[0].curves}) == 6

  def test_public_data_alone_is_a_level(self, groups):
    found = figures.of_task(groups(
        dict(accuracies=[0.84], algorithm='public_only'), dict(accuracies=[0.1, 0.5, 0.6]),
    ))
    by_round, by_uplink = found[0].panels
    level = by_round.curves[-1]
    assert level.label == 'public-only baseline: 84.0 %' and level.style == 'reference'
    assert level.x.tolist() == [0, 2] and level.y.tolist() == [84, 84]
    assert len(by_uplink.curves) == 1  # It sends nothing.

  def test_the_ladder_has_the_steps_that_were_run_in_their_order(self, groups):
    cells = [cell for part in grids.read('ablation/fashion_mnist') for cell in part]
    assert all(cell.title for cell in cells) and len({cell.title for cell in cells}) == len(cells)
    runs = []
    for accuracy, cell in ((0.4, cells[3]), (0.2, cells[4]), (0.8, cells[0])):
      flags = dict(flag.lstrip('-').split('=') for flag in cell.flags)
      rounds = cell.settings.rounds
      accuracies = [None] * rounds + [accuracy]
      runs.append(dict(flags, accuracies=accuracies, p=cell.settings.p or 1))
    figure = _figure(figures.of_task(groups(*runs)), 'ladder')
    (panel,) = figure.panels
    assert list(panel.ticks) == [
        f'{cells[i].title}: {accuracy:.1f} %' for i, accuracy in ((0, 80), (3, 40), (4, 20))
    ]
    assert panel.curves[0].x == pytest.approx([80, 40, 20])
    assert panel.curves[0].y.tolist() == [0, -1, -2]
    assert panel.curves[0].x_spread == pytest.approx([0, 0, 0])  # One seed.
    assert figure.title.endswith(': ablation, one component more per row')

  def test_rivals_of_the_ladder_are_no_steps_and_all_have_the_same_seeds(self, groups):
    steps, rivals = grids.read('ablation/fashion_mnist')
    runs = []
    for cell, accuracy, seeds in (
        (steps[0], 0.8, (1,)), (steps[1], 0.7, (1, 2)), (steps[2], 0.75, (1,)),
        (rivals[0], 0.1, (1, 2, 3)),
    ):
      for seed in seeds:
        flags = dict(flag.lstrip('-').split('=') for flag in cell.flags)
        rounds = cell.settings.rounds
        # Another seed's accuracy is another.
        accuracies = [None] * rounds + [accuracy - 0.2 * (seed - 1)]
        runs.append(dict(
            flags, accuracies=accuracies, p=cell.settings.p or 1, seed=seed
        ))
    figure = _figure(figures.of_task(groups(*runs)), 'ladder')
    joined, beside = figure.panels[0].curves
    assert joined.x == pytest.approx([80, 70, 75]) and joined.style == 'points'
    assert beside.x == pytest.approx([10]) and beside.style == 'marks'
    assert beside.y.tolist() == [-3] and beside.color != joined.color

  def test_the_axis_begins_below_the_lowest_after_a_warm_start(self, groups):
    found = figures.of_task(groups(
        dict(accuracies=[0.7, 0.8], warm_start='public'), dict(accuracies=[0.75], algorithm='public_only'),
    ))
    assert [panel.bottom for panel in _figure(found, 'rounds').panels] == pytest.approx([69, 69])

  def test_runs_that_differ_in_a_flag_are_told_apart(self, groups):
    found = figures.of_task(groups(
        dict(accuracies=[0.1, 0.5]), dict(accuracies=[0.1, 0.5], clip=0.5),
    ))
    labels = [curve.label for curve in found[0].panels[0].curves]
    assert [label.split(', ')[-1] for label in labels] == [
        'clip = 1.0: best 50.0 %', 'clip = 0.5: best 50.0 %'
    ]
    assert len({curve.color for curve in found[0].panels[0].curves}) == 2

  def test_over_p_with_and_without_noise(self, groups):
    found = figures.of_task(groups(
        dict(accuracies=[0.1, 0.5], p=0.005), dict(accuracies=[0.1, 0.6], p=0.1),
        dict(accuracies=[0.1, 0.7, 0.65], algorithm='dp_fedavg'),
        dict(accuracies=[0.1, 0.2], p=0.1, algorithm='fedavg_topk'),
        dict(accuracies=[0.1, 0.3], p=0.005, noise_multiplier=2.5),
    ))
    loss, accuracy = _figure(found, 'ratio').panels
    (ours,) = loss.curves  # Without noise there is a single p.
    assert ours.x == pytest.approx([0.005, 0.1, 1], rel=1e-4)
    assert ours.y == pytest.approx([0.5, 0.4, 0.35])
    ours, papers = accuracy.curves
    assert ours.y == pytest.approx([50, 60, 70])  # The best over rounds.
    assert papers.style == 'reference' and papers.x.tolist() == [
        0.001, 0.005, 0.01, 0.1, 0.2, 0.4, 0.8, 1
    ]
    # At 0.8 Table 5 has another figure than Table 1, which goes first.
    assert papers.y[1] == 80.76 and papers.y[-2:].tolist() == [79.77, 72.72]

  def test_a_curve_over_p_is_of_one_setting(self, groups):
    found = figures.of_task(groups(
        dict(accuracies=[0.1, 0.5], p=0.005), dict(accuracies=[0.1, 0.6], p=0.1),
        dict(accuracies=[0.1, 0.7], algorithm='dp_fedavg'),
        dict(accuracies=[0.1, 0.8], algorithm='dp_fedavg', clip=0.4),
    ))
    _, accuracy = _figure(found, 'ratio').panels
    ours, _ = accuracy.curves  # Of C = 0.4 there is a single p.
    assert ours.y == pytest.approx([50, 60, 70])

  def test_two_settings_are_two_curves_over_p(self, groups):
    found = figures.of_task(groups(*[
        dict(accuracies=[0.1, clip], p=p, clip=clip) for clip in (0.4, 1.0) for p in (0.005, 0.1, 0.4)
    ]))
    _, accuracy = _figure(found, 'ratio').panels
    assert [curve.y.tolist() for curve in accuracy.curves[:2]] == [[40, 40, 40], [100, 100, 100]]
    assert [curve.label.split(', ')[-1] for curve in accuracy.curves[:2]] == [
        'clip = 0.4; 1 round', 'clip = 1.0; 1 round'
    ]
    assert accuracy.curves[0].color != accuracy.curves[1].color

  def test_pseudo_clients_make_two_curves_that_end_at_the_same_p_of_one(self, groups):
    found = figures.of_task(groups(
        *[
            dict(accuracies=[0.1, accuracy], p=p, **flags)
            for flags, accuracy in (({}, 0.5), ({'public_clients': 10}, 0.6)) for p in (0.005, 0.1)
        ],
        dict(accuracies=[0.1, 0.7], algorithm='dp_fedavg'),
    ))
    _, accuracy = _figure(found, 'ratio').panels
    plain, ten, _ = accuracy.curves
    assert [plain.y.tolist(), ten.y.tolist()] == [[50, 50, 70], [60, 60, 70]]
    assert 'public_clients = 10' in ten.label and 'public_clients = 0' in plain.label

  def test_unfinished_runs_are_no_points_over_p(self, groups):
    found = figures.of_task(groups(
        dict(accuracies=[0.1, 0.5], p=0.005), dict(accuracies=[0.1, 0.6], p=0.1, rounds=5)
    ))
    assert [figure.name for figure in found] == ['fashion_mnist_rounds']


class TestExecution:

  def test_nowhere_to_write(self, groups):
    (figure,) = figures.of_task(groups(dict(accuracies=[0.1, 0.5])))
    with pytest.raises(errors.InputError, match="/dev/null/a.png can't be written"):
      drawing.save_png(figure, '/dev/null/a.png')

  def test_no_label_or_title_is_cut(self, groups, tmp_path):
    flags = {'clip_schedule': 'learning_rate', 'released_weight': 0.5, 'mask_rounds': 7,
             'server_learning_rate_schedule': 'linear_decay', 'server_learning_rate': 2.5, 'warm_start': 'public'}
    # Without any of them two settings would have the same label.
    (figure,) = [figure for figure in figures.of_task(groups(
        dict(accuracies=[0.1, 0.6], **flags),
        *(dict(accuracies=[0.1, 0.5], **{k: v for k, v in flags.items() if k != left_out})
          for left_out in flags),
    )) if figure.name.endswith('rounds')]
    assert max(len(curve.label) for curve in figure.panels[0].curves) > 120
    # With one panel it is half as wide.
    narrow = dataclasses.replace(figure, panels=figure.panels[:1])
    for i, one in enumerate((figure, narrow)):
      path = tmp_path / f'{i}.png'
      drawing.save_png(one, path)
      pixels = image.imread(path)
      assert pixels.min() == 0  # There is ink, none of it at the edges.
      assert pixels[:, 0].min() == pixels[:, -1].min() == pixels[-1].min() == 1
