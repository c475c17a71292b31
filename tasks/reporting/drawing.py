"""Figures of curves, drawn twice: as a PNG for a paper, and in HTML to hover over."""

from collections.abc import Sequence
import dataclasses
import html as html_lib
import os
import textwrap
from typing import Optional

from matplotlib import figure as mpl_figure
from matplotlib import ticker
import numpy as np
from plotly import graph_objects
from plotly import offline

from tasks import errors

# Okabe and Ito's, and Tol's wine and sand: told apart by those who see few colors, and in grey by
# lightness. As many as there are systems.
_COLORS = (
    '#0072B2', '#D55E00', '#009E73', '#000000', '#CC79A7', '#56B4E9', '#E69F00', '#8C8C8C',
    '#882255', '#DDCC77',
)
NUM_COLORS = len(_COLORS)
_MOST_COLUMNS = 2
_INCHES = (4.6, 3.4)
_INCHES_A_LABEL = 0.2
_DOTS_PER_INCH = 160
# Characters of a label that fit below one panel.
_CHARACTERS_A_PANEL = 60
_CHARACTERS_A_TITLE = 40
# Up to this ratio of x, ticks at 1, 2 and 5 have room for their labels.
_FEW_DECADES = 100
# Characters of a tick's text in a line, so that a phone has room for the plot beside it.
_CHARACTERS_A_TICK = 22
# Of a panel on the page, in pixels; its width is that of the screen or of a column.
_PANEL_PIXELS = 360
_PIXELS_A_TICK = 48


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
    names: What each point is, to read under the pointer; None for nothing.
  """

  label: str
  x: np.ndarray
  y: np.ndarray
  spread: Optional[np.ndarray] = None
  color: int = 0
  style: str = 'line'
  x_spread: Optional[np.ndarray] = None
  names: Optional[Sequence[str]] = None


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
    title: A sentence of what is seen.
    panels: The panels, two in a row.
    note: What else to know: epsilon, seeds and what is left out; '' for nothing.
  """

  name: str
  title: str
  panels: Sequence[Panel]
  note: str = ''

  @property
  def shape(self) -> tuple[int, int]:
    """Rows and columns of panels."""
    columns = min(len(self.panels), _MOST_COLUMNS)
    return -(-len(self.panels) // columns), columns


def save_png(figure: Figure, path: os.PathLike[str]) -> None:
  """Draws a figure.

  Raises:
    InputError: If the file can't be written.
  """
  rows, columns = figure.shape
  labels = {
      curve.label: textwrap.fill(curve.label, _CHARACTERS_A_PANEL * columns)
      for panel in figure.panels for curve in panel.curves
  }
  legend_columns = columns if max(map(len, labels)) <= _CHARACTERS_A_PANEL else 1
  lines = sum(label.count('\n') + 1 for label in labels.values())
  width, height = _INCHES
  lines = -(-lines // legend_columns) + len(figure.note) // (_CHARACTERS_A_PANEL * columns) + 1
  lines += len(figure.title) // (_CHARACTERS_A_TITLE * columns)
  height = height * rows + _INCHES_A_LABEL * lines
  drawn = mpl_figure.Figure(figsize=(width * columns, height), layout='constrained')
  all_axes = drawn.subplots(rows, columns, squeeze=False)
  for panel, axes in zip(figure.panels, all_axes.flat):
    for curve in panel.curves:
      color = _color(curve)
      style = {
          'line': {},
          'points': {'marker': 'o', 'markersize': 4},
          'reference': {'marker': 'o', 'markersize': 5, 'markerfacecolor': 'none',
                        'linestyle': ':', 'linewidth': 1},
          'marks': {'marker': 'o', 'markersize': 5, 'linestyle': ''},
      }[curve.style]
      axes.plot(curve.x, curve.y, color=color, label=labels[curve.label] or None, **style)
      bars = {'xerr': curve.x_spread}
      if curve.style == 'marks':
        bars['yerr'] = curve.spread
      bars = {name: bar for name, bar in bars.items() if bar is not None and np.any(bar)}
      if bars:
        axes.errorbar(
            curve.x, curve.y, fmt='none', ecolor=color, elinewidth=1, capsize=3, **bars
        )
      if curve.style != 'marks' and curve.spread is not None and np.any(curve.spread):
        axes.fill_between(
            curve.x, curve.y - curve.spread, curve.y + curve.spread, color=color,
            alpha=0.2, linewidth=0,
        )
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    if panel.log_x:
      axes.set_xscale('log')
      _label_few_decades(axes)
    if panel.log_y:
      axes.set_yscale('log')
    if panel.ticks is not None:
      axes.set_yticks([-i for i in range(len(panel.ticks))], panel.ticks)
    axes.grid(alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
    if panel.bottom is not None:
      axes.set_ylim(bottom=panel.bottom)
  for axes in all_axes.flat[len(figure.panels):]:
    axes.set_visible(False)
  # One legend, below: labels are long, and axes small.
  handles = {}
  for axes in all_axes.flat:
    for handle, label in zip(*axes.get_legend_handles_labels()):
      handles.setdefault(label, handle)
  # The note is its title: two texts below would cover each other.
  drawn.legend(
      handles.values(), handles, loc='outside lower center', ncols=legend_columns,
      fontsize='small', frameon=False, title_fontsize='small',
      title=textwrap.fill(figure.note, _CHARACTERS_A_PANEL * columns),
  )
  title = textwrap.fill(figure.title, _CHARACTERS_A_TITLE * columns)
  drawn.suptitle(title, fontsize='medium', fontweight='bold')
  try:
    drawn.savefig(path, dpi=_DOTS_PER_INCH)
  except (OSError, ValueError) as error:
    raise errors.InputError(
        f'{path} can\'t be written ({error}); name a place where it can.'
    ) from None


def html_script() -> str:
  """The library's code, as a script element: what `html` returns needs it once in a page."""
  return f'<script>{offline.get_plotlyjs()}</script>'


def html(figure: Figure) -> str:
  """A figure as an HTML element, whose values show under the pointer.

  Title and legend are text of the page, which breaks into lines where a plot's own would cover
  or squeeze it; panels are beside each other where the screen is wide enough.
  """
  panels = ''.join(f'<div>{_panel_html(panel)}</div>' for panel in figure.panels)
  shown = {
      curve.label: f'<li><span class="{curve.style}" style="color:{_color(curve)}"></span>'
                   f'{html_lib.escape(curve.label)}</li>'
      for panel in figure.panels for curve in panel.curves if curve.label
  }
  legend = f'<ul class="legend">{"".join(shown.values())}</ul>' if shown else ''
  note = f'<p>{html_lib.escape(figure.note)}</p>' if figure.note else ''
  return (
      f'<figure id="{figure.name}"><h2>{html_lib.escape(figure.title)}</h2>'
      f'<div class="panels columns{figure.shape[1]}">{panels}</div><figcaption>{legend}{note}</figcaption></figure>'
  )


def _panel_html(panel: Panel) -> str:
  """One panel, as wide as its place on the page."""
  drawn = graph_objects.Figure()
  for curve in panel.curves:
    color = _color(curve)
    has_spread = curve.spread is not None and np.any(curve.spread)
    if has_spread and curve.style != 'marks':
      around = np.concatenate([curve.y + curve.spread, (curve.y - curve.spread)[::-1]])
      drawn.add_trace(
          graph_objects.Scatter(
              x=np.concatenate([curve.x, curve.x[::-1]]), y=around, fill='toself',
              fillcolor=color, opacity=0.2, line_width=0, mode='lines', hoverinfo='skip',
          )
      )
    bars = {'error_x': curve.x_spread}
    if curve.style == 'marks':
      bars['error_y'] = curve.spread
    drawn.add_trace(
        graph_objects.Scatter(
            x=curve.x, y=curve.y, name=curve.label, text=curve.names,
            mode={'line': 'lines', 'marks': 'markers'}.get(curve.style, 'lines+markers'),
            line={'color': color, 'dash': 'dot' if curve.style == 'reference' else 'solid'},
            marker_symbol='circle-open' if curve.style == 'reference' else 'circle',
            hovertemplate='%{x:.4g}: %{y:.4g}' + ('<br>%{text}' if curve.names else ''),
            **{
                name: {'type': 'data', 'array': bar, 'thickness': 1}
                for name, bar in bars.items() if bar is not None and np.any(bar)
            },
        )
    )
  drawn.update_xaxes(
      title_text=panel.x_label, type='log' if panel.log_x else 'linear', automargin=True,
      nticks=6, **({'dtick': 'D2'} if panel.log_x and _is_few_decades(panel) else {}),
  )
  drawn.update_yaxes(
      title_text=panel.y_label, autorangeoptions_minallowed=panel.bottom, automargin=True,
      type='log' if panel.log_y else 'linear',
  )
  height = _PANEL_PIXELS
  if panel.ticks is not None:
    texts = [
        '<br>'.join(map(html_lib.escape, textwrap.wrap(text, _CHARACTERS_A_TICK)))
        for text in panel.ticks
    ]
    drawn.update_yaxes(tickvals=[-i for i in range(len(texts))], ticktext=texts)
    height = max(height, _PIXELS_A_TICK * (len(texts) + 2))
  drawn.update_layout(
      title={'text': panel.title, 'font_size': 14}, template='plotly_white',
      hovermode='closest', showlegend=False, height=height,
      margin={'l': 8, 'r': 8, 't': 36 if panel.title else 12, 'b': 8},
  )
  return drawn.to_html(
      full_html=False, include_plotlyjs=False,
      config={'responsive': True, 'displayModeBar': False},
  )


def _is_few_decades(panel: Panel) -> bool:
  values = [x for curve in panel.curves for x in curve.x]
  return max(values) / min(values) < _FEW_DECADES


def _label_few_decades(axes) -> None:
  """Labels a logarithmic x axis where a label a decade, the default, would be too few."""
  low, high = axes.get_xlim()
  if high / low < _FEW_DECADES:
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter('{x:g}')
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())


def _color(curve: Curve) -> str:
  return _COLORS[curve.color % len(_COLORS)]
