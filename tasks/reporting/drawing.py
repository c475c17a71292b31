"""Draws figures of curves as PNG files."""

from collections.abc import Sequence
import dataclasses
import itertools
import os
import textwrap
from typing import Optional

from matplotlib import figure as mpl_figure
import numpy as np

from tasks import errors

# Okabe and Ito's, and Tol's wine and sand: readers with color blindness can distinguish them, and
# lightness distinguishes them in grey. One per system.
_COLORS = (
    '#0072B2', '#D55E00', '#009E73', '#000000', '#CC79A7', '#56B4E9', '#E69F00', '#8C8C8C',
    '#882255', '#DDCC77',
)
_MAX_COLUMNS = 2
_INCHES = (4.6, 3.4)
_INCHES_PER_LINE = 0.2
_DOTS_PER_INCH = 160
# Characters of a label that fit below one panel.
_CHARACTERS_PER_PANEL = 60
_STYLES = {
    'line': {},
    'points': dict(marker='o', markersize=4),
    'reference': dict(marker='o', markersize=5, markerfacecolor='none', linestyle=':', linewidth=1),
    'marks': dict(marker='o', markersize=5, linestyle=''),
}


@dataclasses.dataclass(frozen=True)
class Curve:
  """A curve through points.

  Attributes:
    label: Text in the legend; '' for none.
    x: float[n].
    y: float[n].
    spread: Standard deviation of y, drawn as a band, float[n]; None for none.
    color: Index of the color; related curves share it.
    style: 'line'; 'points', a line with marks; 'marks', without a line; 'reference', hollow
      marks on a dotted line, for results of others.
    x_spread: Standard deviation of x, drawn as bars, float[n]; None for none.
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
  """Curves in one pair of axes; `ticks` are texts at y = 0, -1, -2 and so on."""

  title: str
  x_label: str
  y_label: str
  curves: Sequence[Curve]
  log_x: bool = False
  bottom: Optional[float] = None
  ticks: Optional[Sequence[str]] = None


@dataclasses.dataclass(frozen=True)
class Figure:
  """Panels, two per row, under one title; `name` is the file's, without suffix."""

  name: str
  title: str
  panels: Sequence[Panel]
  note: str = ''


def save_png(figure: Figure, path: os.PathLike[str]) -> None:
  """Draws a figure.

  Raises:
    InputError: If the file can't be written.
  """
  columns = min(len(figure.panels), _MAX_COLUMNS)
  rows = -(-len(figure.panels) // columns)
  width = _CHARACTERS_PER_PANEL * columns
  note, title = textwrap.fill(figure.note, width), textwrap.fill(figure.title, 2 * width // 3)
  labels = {
      curve.label: textwrap.fill(curve.label, width)
      for panel in figure.panels for curve in panel.curves
  }
  num_lines = sum(text.count('\n') + 1 for text in (*labels.values(), note, title))
  drawn = mpl_figure.Figure(
      figsize=(_INCHES[0] * columns, _INCHES[1] * rows + _INCHES_PER_LINE * num_lines),
      layout='constrained',
  )
  handles = {}
  all_axes = drawn.subplots(rows, columns, squeeze=False).flat
  for panel, axes in itertools.zip_longest(figure.panels, all_axes):
    if panel is None:
      axes.set_visible(False)
      continue
    for curve in panel.curves:
      handle = _draw(curve, axes)
      if curve.label:
        handles.setdefault(labels[curve.label], handle)
    axes.set(
        title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label,
        xscale='log' if panel.log_x else 'linear',
    )
    if panel.ticks is not None:
      axes.set_yticks([-i for i in range(len(panel.ticks))], panel.ticks)
    axes.set_ylim(bottom=panel.bottom)
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
  # The note is the title of the legend, because two texts below the panels would overlap.
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
  """Draws a curve with its band or bars; returns its line."""
  color = _COLORS[curve.color % len(_COLORS)]
  (line,) = axes.plot(curve.x, curve.y, color=color, **_STYLES[curve.style])
  if curve.spread is not None:
    low, high = curve.y - curve.spread, curve.y + curve.spread
    axes.fill_between(curve.x, low, high, color=color, alpha=0.2, linewidth=0)
  if curve.x_spread is not None:
    axes.errorbar(
        curve.x, curve.y, xerr=curve.x_spread, fmt='none', ecolor=color, elinewidth=1, capsize=3
    )
  return line
