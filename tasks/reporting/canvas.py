"""Makes figures, labels the ends of their lines, and writes the note below them."""

from collections.abc import Sequence
import textwrap

from matplotlib import axes as mpl_axes
from matplotlib import figure as mpl_figure
import numpy as np

from tasks import datasets
from tasks.cli import plugins
from tasks.reporting import results

_WIDTH, _HEIGHT, _HEIGHT_PER_LINE = 9.2, 3.4, 0.22
_CHARACTERS_PER_LINE = 150
# Least distance of labels, as a fraction of the height of the axes.
LABEL_HEIGHT = 0.072


def new_figure(task: str, title: str, rows: int = 1) -> mpl_figure.Figure:
  """Returns an empty figure of a task, as high as its rows of panels need."""
  figure = mpl_figure.Figure(figsize=(_WIDTH, _HEIGHT * rows), dpi=160, layout='constrained')
  title = f'{plugins.title(task, datasets.TASKS)}: {title}'
  figure.suptitle(title, fontsize='medium', fontweight='bold')
  return figure


def finish(
    figure: mpl_figure.Figure, groups: Sequence[results.Group], note: str = '',
    spread: str = 'Bars show one standard deviation',
) -> mpl_figure.Figure:
  """Adds a note on rounds, seeds, sigma, epsilon and spread below the panels; returns the figure."""
  measured = 'validation' if any(group.uses_validation_set for group in groups) else 'test'
  note += (
      f'Each curve or point has {_count([n for g in groups if (n := g.rounds_done)], "round")} and'
      f' {_count([len(group.runs) for group in groups], "seed")}, with accuracy on the {measured} set. '
  )
  private = [group for group in groups if group.noise_multiplier]
  if sigmas := [group.noise_multiplier for group in private]:
    note += f'Noise has sigma = {_range(sigmas)}'
    if epsilons := [epsilon for g in private if not np.isnan(epsilon := g.mean('epsilon'))]:
      is_seeded = any(group.config['seed'] is not None for group in private)
      note += f' and epsilon = {_range(epsilons)} ({"simulated" if is_seeded else "valid"})'
    note += '. '
  if any(group.config['sampled'] for group in groups):
    note += 'Between the first and the last round, accuracy is the initial one plus the gain on a sample. '
  if any(len(group.runs) > 1 for group in groups):
    note += f'{spread} over seeds. '
  note = textwrap.fill(note, _CHARACTERS_PER_LINE)
  for axes in figure.axes:
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
  figure.supxlabel(note, x=0.01, ha='left', fontsize='small', linespacing=1.3)
  figure.set_figheight(figure.get_figheight() + _HEIGHT_PER_LINE * (note.count('\n') + 1))
  return figure


def label_ends(axes: mpl_axes.Axes, ends: Sequence[tuple[float, str, str]]) -> None:
  """Writes (height, text, color) to the right of axes, at the ends of lines but not overlapping."""
  low, high = axes.get_ylim()
  ends, blocks = sorted(ends), []
  # Labels that would overlap become a block, around the mean of the heights that they want.
  for i, (height, *_) in enumerate(ends):
    blocks.append([np.clip((height - low) / (high - low), 0, 1) - i * LABEL_HEIGHT])
    while len(blocks) > 1 and np.mean(blocks[-2]) >= np.mean(blocks[-1]):
      blocks[-2:] = [blocks[-2] + blocks[-1]]
  steps = LABEL_HEIGHT * np.arange(len(ends))
  placed = np.concatenate([[np.mean(block)] * len(block) for block in blocks]) + steps
  placed = np.clip(placed, steps, 1 - steps[::-1])
  for (height, text, color), y in zip(ends, placed):
    axes.annotate(
        text, (1, np.clip(height, low, high)), (1.05, y), axes.get_yaxis_transform(),
        axes.transAxes, va='center', fontsize='small', color=color,
        arrowprops=dict(arrowstyle='-', color=color, linewidth=0.6, relpos=(0, 0.5), shrinkB=0),
    )


def means_and_stds(groups: Sequence[results.Group], value: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns means and standard deviations of one of `results.Run.values`; 0 for one seed."""
  pairs = [group.mean_and_std(value) for group in groups]
  return np.array([mean for mean, _ in pairs]), np.array([std or 0.0 for _, std in pairs])


def _count(values: Sequence[int], noun: str) -> str:
  return f'{_range(values)} {noun}{"s" * (max(values) > 1)}'


def _range(values: Sequence[float]) -> str:
  low, high = (
      f'{value:,}' if isinstance(value, int) else f'{value:.3g}'
      for value in (min(values), max(values))
  )
  return low if low == high else f'{low} to {high}'
