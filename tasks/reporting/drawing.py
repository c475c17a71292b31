"""Figures of curves, drawn as a PNG."""

from collections.abc import Sequence
import dataclasses
import itertools
import os
import textwrap
from typing import Optional

from matplotlib import figure as mpl_figure
import numpy as np

from tasks import errors

# Okabe and Ito's, and Tol's wine and sand: told apart by those who see few colors, and in grey by
# lightness. As many as there are systems.
_COLORS = (
    '#0072B2', '#D55E00', '#009E73', '#000000', '#CC79A7', '#56B4E9', '#E69F00', '#8C8C8C',
    '#882255', '#DDCC77',
)
_MOST_COLUMNS = 2
_INCHES = (4.6, 3.4)
_INCHES_PER_LINE = 0.2
_DOTS_PER_INCH = 160
# Characters of a label that fit below one panel.
_CHARACTERS_PER_PANEL = 60
_STYLES = {
    'line': {},
    'points': dict(marker='o', markersize=4),
    'reference': dict(
        marker='o', markersize=5, markerfacecolor='none', linestyle=':', linewidth=1
    ),
    'marks': dict(marker='o', markersize=5, linestyle=''),
}


@dataclasses.dataclass(frozen=True)
class Curve:
  """A line of points.

  Attributes:
    label: What the legend calls it; '' to leave it out there.
    x: float[n].
    y: float[n].
    spread: Half the height of a band around it, or of bars at points alone, float[n]; None for
      none.
    color: Number of its color; curves that belong together share one.
    style: 'line'; 'points', a line with a mark at each point; 'marks', points alone;
      'reference', hollow marks on a dashed line, for what somebody else has measured.
    x_spread: Half the length of a bar along x at each point, float[n]; None for none.
  """

  label: str
  x: np.ndarray
  y: np.ndarray
  spread: Optional[np.ndarray] = None
  color: int = 0
  style: str = 'line'
  x_spread: Optional[np.ndarray] = None


@dataclasses.dataclass(frozen=True)
class Panel:
  """Curves in one pair of axes.

  Attributes:
    title: A few words; '' for none.
    x_label: What x is, with its unit.
    y_label: What y is, with its unit.
    curves: The curves.
    log_x: Whether x is drawn on a logarithmic scale.
    log_y: The same of y.
    bottom: Where the y axis begins; None: where the curves do.
    ticks: Texts at y = 0, -1, -2 and so on, from the top down; None: numbers.
  """

  title: str
  x_label: str
  y_label: str
  curves: Sequence[Curve]
  log_x: bool = False
  bottom: Optional[float] = None
  log_y: bool = False
  ticks: Optional[Sequence[str]] = None


@dataclasses.dataclass(frozen=True)
class Figure:
  """Panels under one title.

  Attributes:
    name: Of its file, without a suffix.
    title: A noun phrase.
    panels: The panels, two in a row.
    note: What else to know: epsilon, seeds and what is left out; '' for nothing.
  """

  name: str
  title: str
  panels: Sequence[Panel]
  note: str = ''


def save_png(figure: Figure, path: os.PathLike[str]) -> None:
  """Draws a figure.

  Raises:
    InputError: If the file can't be written.
  """
  columns = min(len(figure.panels), _MOST_COLUMNS)
  rows = -(-len(figure.panels) // columns)
  width = _CHARACTERS_PER_PANEL * columns
  labels = {
      curve.label: textwrap.fill(curve.label, width)
      for panel in figure.panels for curve in panel.curves
  }
  note, title = textwrap.fill(figure.note, width), textwrap.fill(figure.title, 2 * width // 3)
  lines = sum(text.count('\n') + 1 for text in (*labels.values(), note, title))
  drawn = mpl_figure.Figure(
      figsize=(_INCHES[0] * columns, _INCHES[1] * rows + _INCHES_PER_LINE * lines),
      layout='constrained',
  )
  all_axes = drawn.subplots(rows, columns, squeeze=False).flat
  handles = {}
  for panel, axes in itertools.zip_longest(figure.panels, all_axes):
    if panel is None:
      axes.set_visible(False)
      continue
    for curve in panel.curves:
      line = _draw(curve, axes)
      if curve.label:
        handles.setdefault(labels[curve.label], line)
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axes.set_xscale('log' if panel.log_x else 'linear')
    axes.set_yscale('log' if panel.log_y else 'linear')
    if panel.ticks is not None:
      axes.set_yticks([-i for i in range(len(panel.ticks))], panel.ticks)
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
    axes.set_ylim(bottom=panel.bottom)
  # One legend, below: labels are long, and axes small. The note is its title: two texts below would
  # cover each other.
  drawn.legend(
      handles.values(), handles, loc='outside lower center', fontsize='small', frameon=False,
      title=note, title_fontsize='small',
  )
  drawn.suptitle(title, fontsize='medium', fontweight='bold')
  try:
    drawn.savefig(path, dpi=_DOTS_PER_INCH)
  except (OSError, ValueError) as error:
    raise errors.InputError(
        f'{path} can\'t be written ({error}); name a place where it can.'
    ) from None


def _draw(curve: Curve, axes):
  """Draws a curve with its bands or bars; returns its line."""
  color = _COLORS[curve.color % len(_COLORS)]
  (line,) = axes.plot(curve.x, curve.y, color=color, **_STYLES[curve.style])
  spread = curve.spread
  if spread is not None and curve.style != 'marks':
    axes.fill_between(
        curve.x, curve.y - spread, curve.y + spread, color=color, alpha=0.2, linewidth=0
    )
    spread = None
  axes.errorbar(
      curve.x, curve.y, spread, curve.x_spread, fmt='none', ecolor=color, elinewidth=1, capsize=3
  )
  return line
