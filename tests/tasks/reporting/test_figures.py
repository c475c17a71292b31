"""Tests of the curves in the figures."""

import itertools

import numpy as np
import pytest

from tasks.experiments import grids
from tasks.reporting import canvas
from tasks.reporting import figures
from tasks.reporting import results
from tests.support import runs_on_disk


@pytest.fixture
def make(tmp_path):
  """Returns the figures of runs by name."""
  numbers = itertools.count()

  def make(*runs):
    paths = [runs_on_disk.write(tmp_path / str(next(numbers)), **options) for options in runs]
    drawn = figures.draw_task(results.group([*map(results.read, paths)]))
    return {name.removeprefix('fashion_mnist_'): figure for name, figure in drawn.items()}

  return make


def _run_of(cell, accuracy, seed=1):
  """Options of a run of a grid's cell."""
  flags = dict(flag.lstrip('-').split('=') for flag in cell.flags)
  accuracies = [None] * cell.settings.rounds + [accuracy]
  return dict(flags, accuracies=accuracies, p=cell.settings.p or 1, seed=seed)


def _labels(axes):
  """The texts beside the ends of lines, from the top."""
  texts = [text for text in axes.texts if ': ' in text.get_text()]
  return [text.get_text() for text in sorted(texts, key=lambda text: -text.xyann[1])]


def _legend(axes):
  return [text.get_text() for text in axes.get_legend().get_texts()]


def _note(figure):
  return figure.get_supxlabel().replace('\n', ' ')


def _curves(axes):
  """The points of each line of axes."""
  return [np.array(line.get_data(), float) for line in axes.lines if line.get_linestyle() != 'None']


class TestComputation:

  def test_curves_show_accuracy_over_rounds_and_uplink(self, make):
    drawn = make(
        dict(accuracies=[0.1, 0.6], seed=0), dict(accuracies=[0.1, 0.8], seed=2),
        dict(accuracies=[0.2, 0.5, 0.4], algorithm='fedavg'),
        dict(accuracies=[0.4], algorithm='public_only'),
    )
    figure = drawn.pop('rounds')
    assert not drawn  # One p only: nothing to draw over it.
    assert _labels(figure.axes[0]) == [
        'Fed-SMP top-k, p = 0.005: 70.0 %', 'public-only baseline: 40.0 %', 'FedAvg: 40.0 %',
        "the paper's target: 72 %",
    ]
    assert figure.get_suptitle() == 'Fashion-MNIST images, CNN: accuracy over rounds and uplink'
    assert _note(figure) == (
        'Each curve or point has 1 to 2 rounds and 1 to 2 seeds, with accuracy on the test set. Noise'
        ' has sigma = 1.4 and epsilon = 0.1 (simulated). Bands show one standard deviation over seeds.'
    )
    validated = make(dict(accuracies=[0.1, 0.6], validation_examples=50))['rounds']
    assert '1 round and 1 seed, with accuracy on the validation set' in _note(validated)
    by_round, by_uplink = figure.axes
    topk, fedavg, level, target = _curves(by_round)
    assert topk == pytest.approx(np.array([[0, 1], [10, 70]]))
    assert fedavg == pytest.approx(np.array([[0, 1, 2], [20, 50, 40]]))
    assert level[1].tolist() == [40, 40]  # The baseline has no rounds.
    assert target[1].tolist() == [72, 72] and len(_curves(by_uplink)) == 4
    band = by_round.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(70 + 200**0.5)
    # Without the round before which nothing was sent.
    assert by_uplink.get_xscale() == 'log'
    assert _curves(by_uplink)[1][0] == pytest.approx([np.nan, 0.01, 0.02], nan_ok=True)
    assert by_round.get_ylim()[0] == pytest.approx(15)  # 25 points below the lowest final accuracy.

  def test_ablation_has_ordered_steps_and_separate_baselines(self, make):
    steps, baselines = grids.read('ablation/fashion_mnist')
    titles = [cell.title for cell in (*steps, *baselines)]
    assert all(titles) and len({*titles}) == len(titles)
    figure = make(
        _run_of(steps[3], 0.75), _run_of(steps[0], 0.8), _run_of(steps[1], 0.7),
        _run_of(baselines[0], 0.1),
        # All rows share the first seed alone.
        _run_of(steps[1], 0.3, seed=2), _run_of(baselines[0], 0.3, seed=2),
    )['ablation']
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        f'{titles[i]}: {x} %' for i, x in ((0, 80.0), (1, 70.0), (3, 75.0), (len(steps), 10.0))
    ]
    assert _curves(axes) == [pytest.approx(np.array([[80, 70, 75], [0, -1, -2]]))]
    figure = make(
        *(_run_of(step, x, seed) for step in steps[:3] for seed, x in ((1, 0.70), (2, 0.72)))
    )['ablation']
    # Values one below and one above their mean have a stddev of sqrt(2), an error of 1.
    bars = figure.axes[0].containers[0].lines[2][0].get_segments()
    assert [np.ptp(bar[:, 0]) for bar in bars] == pytest.approx([2, 2, 2])
    assert _note(figure).endswith('Bars show one standard error over seeds.')

  def test_rounds_figure_has_one_curve_per_system(self, make):
    runs = [
        dict(accuracies=[0.1, 0.9], p=0.1), dict(accuracies=[0.1, 0.5]),
        dict(accuracies=[0.1, 0.8], p=0.005, clip=0.5),
        dict(accuracies=[0.1, 0.9], p=0.1, algorithm='fedavg_topk'),
        dict(accuracies=[0.1, 0.3], p=0.2, algorithm='fedsmp_randk'),
        dict(accuracies=[0.1, 0.2], p=0.1, algorithm='fedsmp_randk'),
        dict(accuracies=[0.1, 0.1], p=0.4, algorithm='fedsmp_randk', unbiased=False),
        dict(accuracies=[0.1, 0.6], p=0.8, algorithm='fedsmp_randk', unbiased=False),
    ]
    figure = make(*runs)['rounds']
    axes = figure.axes[0]
    assert _note(figure).startswith("Of 8 configurations, the paper's or the best of each method is")
    assert _labels(axes)[:3] == [
        'Fed-SMP top-k, p = 0.005: 50.0 %', 'Fed-SMP rand-k, p = 0.2: 30.0 %',
        'Fed-SMP rand-k, unscaled, p = 0.4: 10.0 %',
    ]
    methods = [line for line in axes.lines if line.get_marker() != 'None']
    assert len({line.get_color() for line in methods}) == len(methods) == 3
    assert len({line.get_linestyle() for line in methods}) == 3  # In grey print too.
    validated = make(*(run | dict(validation_examples=50) for run in runs))['rounds'].axes[0]
    assert "the paper's target: 72 %" not in _labels(validated)

  def test_labels_at_the_ends_of_lines_do_not_overlap(self, make):
    axes = make(*[
        dict(accuracies=[0.1, accuracy], algorithm=algorithm, **options)
        for algorithm, accuracy, options in (
            ('fedsmp_topk', 0.8, {}), ('fedsmp_randk', 0.8, {}), ('dp_fedavg', 0.801, {}),
            ('fedsmp_randk', 0.802, dict(unbiased=False)), ('fedavg', 0.799, {}),
        )
    ])['rounds'].axes[0]
    heights = sorted(text.xyann[1] for text in axes.texts if ' %' in text.get_text())[-5:]
    assert min(np.diff(heights)) == pytest.approx(canvas.LABEL_HEIGHT)
    assert 0 <= heights[0] and heights[-1] <= 1

  def test_over_epsilon_a_line_joins_runs_that_differ_in_epsilon_alone(self, make):
    drawn = make(
        dict(accuracies=[0.1, 0.7], noise_multiplier=0.7, seed=1),
        dict(accuracies=[0.1, 0.5], noise_multiplier=0.7, seed=2),
        dict(accuracies=[0.1, 0.4], noise_multiplier=1.4),
        # Alone at its epsilon, since its clip differs; without noise; of zero rounds.
        dict(accuracies=[0.1, 0.9], noise_multiplier=2.8, clip=0.5),
        dict(accuracies=[0.1, 0.9], algorithm='fedavg'),
        dict(accuracies=[0.4], algorithm='public_only'),
    )
    (axes,) = drawn['epsilon'].axes
    assert _curves(axes) == [pytest.approx(np.array([[0.1, 0.2], [40, 60]]))]
    assert _labels(axes) == ['Fed-SMP top-k, p = 0.005: 60.0 %']

  def test_ratio_figure_shows_noisy_and_noiseless_runs(self, make):
    figure = make(
        dict(accuracies=[0.1, 0.5], p=0.005), dict(accuracies=[0.1, 0.6], p=0.1, seed=1),
        dict(accuracies=[0.1, 0.8], p=0.1, seed=2),
        dict(accuracies=[0.1, 0.7, 0.65], algorithm='dp_fedavg'),
        *[dict(accuracies=[0.1, p], p=p, algorithm='fedavg_randk') for p in (0.1, 0.2, 0.4)],
        # An unfinished run, other settings than the paper's, and too few points.
        dict(accuracies=[0.1, 0.9], p=0.4, rounds=5),
        dict(accuracies=[0.1, 0.3], p=0.005, noise_multiplier=2.5),
        dict(accuracies=[0.1, 0.8], algorithm='dp_fedavg', clip=0.4),
        dict(accuracies=[0.1, 0.2], p=0.1, algorithm='fedavg_topk'),
    )['ratio']
    noisy_loss, noisy, loss, noiseless = figure.axes
    assert [_curves(axes)[0][0].tolist() for axes in (noisy_loss, loss)] == [
        [0.005, 0.1, 1], [0.1, 0.2, 0.4]
    ]
    assert _curves(noisy_loss)[0][1] == pytest.approx([0.5, 0.3, 0.35])
    assert _curves(loss)[0][1] == pytest.approx([0.9, 0.8, 0.6])
    topk, paper = _curves(noisy)
    assert topk[1] == pytest.approx([50, 70, 70])  # The best over rounds.
    bar = noisy.collections[0].get_segments()[1]
    assert bar[:, 1] == pytest.approx([70 - 200**0.5, 70 + 200**0.5])
    assert paper[0].tolist() == [0.001, 0.005, 0.01, 0.1, 0.2, 0.4, 0.8, 1]
    # At 0.8 Table 5 has another figure than Table 1, which goes first.
    assert paper[1, 1] == 80.76 and paper[1, -2:].tolist() == [79.77, 72.72]
    (dense,) = [line for line in noisy_loss.lines if line.get_marker() == 'D']
    assert dense.get_xydata().tolist() == [[1, pytest.approx(0.35)]]
    (of_fedavg,) = [line for line in noiseless.lines if line.get_marker() == 'v']
    assert of_fedavg.get_xydata().tolist() == [[1, 86.98]]
    assert _legend(noisy) == [
        'Fed-SMP top-k', 'the paper: Fed-SMP top-k', 'DP-FedAvg: p = 1',
    ]
    assert _legend(noiseless) == ['FedAvg rand-k', 'the paper: FedAvg']  # FedAvg was not run.
    ticks = [text.get_text() for text in noiseless.get_xticklabels()]
    assert ticks == ['1', '0.4', '0.2', '0.1', '0.01', '0.005', '0.001']
    assert 'a function of their data that no epsilon covers' in _note(figure)
    assert 'has 1 to 2 rounds' in _note(figure)

  def test_unscaled_randk_has_a_separate_curve(self, make):
    figure = make(*[
        dict(accuracies=[0.1, p + unbiased / 10], p=p, algorithm='fedsmp_randk', unbiased=unbiased)
        for p in (0.1, 0.2, 0.4) for unbiased in (True, False)
    ])['ratio']
    scaled, paper, unscaled = _curves(figure.axes[1])
    assert scaled[1] - unscaled[1] == pytest.approx([10, 10, 10]) and paper[1, 0] == 27.16
    assert _legend(figure.axes[1])[::2] == ['Fed-SMP rand-k', 'Fed-SMP rand-k, unscaled']

  def test_the_number_of_rounds_is_exact(self, make):
    figure = make(dict(accuracies=[0.1, *[None] * 1233, 0.2]))['rounds']
    assert 'has 1,234 rounds' in _note(figure)
