"""Draws the figures of the README and of the results from kept cells: `python docs/figures/draw.py`.

They are SVG files without a font or a script of their own. Colors follow the reader's choice of a
light or a dark page.
"""

import csv
import dataclasses
import math
import pathlib

_HERE = pathlib.Path(__file__).parent
_RESULTS = _HERE.parent / 'results'

# The colors of the same methods in the figures of `tasks.report`, lighter on a dark page.
_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .small { font-size: 11.5px; fill: #59636e; }
  .strong { font-weight: 600; }
  .line { stroke: #59636e; fill: none; }
  .grid { stroke: #d1d9e0; }
  .box { fill: #f6f8fa; stroke: #8c959f; }
  .fedsmp_topk { fill: #0072b2; stroke: #0072b2; }
  .fedsmp_randk { fill: #d55e00; stroke: #d55e00; }
  .dp_fedavg { fill: #1f2328; stroke: #1f2328; }
  .fedavg { fill: #7f7f7f; stroke: #7f7f7f; }
  .on { fill: #0072b2; }
  .off { fill: #d1d9e0; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .small { fill: #9198a1; }
    .line { stroke: #9198a1; }
    .grid { stroke: #3d444d; }
    .box { fill: #151b23; stroke: #656c76; }
    .fedsmp_topk { fill: #56b4e9; stroke: #56b4e9; }
    .fedsmp_randk { fill: #f0883e; stroke: #f0883e; }
    .dp_fedavg { fill: #e6edf3; stroke: #e6edf3; }
    .fedavg { fill: #9198a1; stroke: #9198a1; }
    .on { fill: #56b4e9; }
    .off { fill: #3d444d; }
  }
"""
_TITLES = {
    'fedsmp_topk': 'Fed-SMP top-k', 'fedsmp_randk': 'Fed-SMP rand-k', 'dp_fedavg': 'DP-FedAvg',
    'fedavg': 'FedAvg, no privacy',
}
_MARKS = {  # Around (0, 0).
    'fedsmp_topk': '<circle r="5"/>', 'fedsmp_randk': '<rect x="-4.5" y="-4.5" width="9" height="9"/>',
    'dp_fedavg': '<path d="M0-6.5 6.5 0 0 6.5-6.5 0z"/>', 'fedavg': '<path d="M-6-5 6-5 0 6z"/>',
}


def _svg(width: int, height: int, title: str, parts: list[str]) -> str:
  return '\n'.join([
      f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
      f'<title>{title}</title>', f'<style>{_STYLE}</style>', *parts, '</svg>', '',
  ])


def _text(x: float, y: float, text: str, anchor: str = 'start', kind: str = '') -> str:
  return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{text}</text>'


def _line(x0: float, y0: float, x1: float, y1: float, kind: str, more: str = '') -> str:
  return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" class="{kind}" {more}/>'


def _cells(name: str) -> list[dict[str, str]]:
  """Returns the rows of a kept cells.csv, which has several tables, with plain column names."""
  rows = []
  with open(_RESULTS / name / 'cells.csv', encoding='utf-8', newline='') as file:
    for row in csv.reader(file):
      if row[0] == 'table':
        header = row
      else:
        rows.append(dict(zip(header, row)))
  # The row with an adaptive clip is a variant of the one that is drawn.
  return [row for row in rows if 'algorithm' in row and 'clip_quantile' not in row.get('with', '')]


def _mark(kind: str, x: float, y: float, more: str = '') -> str:
  return f'<g class="{kind}" transform="translate({x:.1f} {y:.1f})" {more}>{_MARKS[kind]}</g>'


@dataclasses.dataclass(frozen=True)
class _Axes:
  """A plot of percentages over a logarithmic scale; methods return SVG, or places in it."""

  width: float
  height: float
  x_range: tuple[float, float]
  y_range: tuple[float, float]
  left: float = 56
  top: float = 16

  def x_of(self, value: float) -> float:
    first, last = map(math.log, self.x_range)
    return self.left + self.width * (math.log(value) - first) / (last - first)

  def y_of(self, value: float) -> float:
    low, high = self.y_range
    return self.top + self.height * (high - value) / (high - low)

  @property
  def right(self) -> float:
    return self.left + self.width

  @property
  def bottom(self) -> float:
    return self.top + self.height

  def grid(self, percents: range) -> list[str]:
    parts = []
    for percent in percents:
      parts += [
          _line(self.left, self.y_of(percent), self.right, self.y_of(percent), 'grid'),
          _text(self.left - 8, self.y_of(percent) + 4, str(percent), 'end', 'small'),
      ]
    return parts

  def tick(self, value: float) -> str:
    return _text(self.x_of(value), self.bottom + 20, f'{value:g}', 'middle', 'small')

  def y_label(self, text: str) -> str:
    return (
        f'<g transform="translate(14 {self.top + self.height / 2}) rotate(-90)">'
        f'{_text(0, 0, text, "middle")}</g>'
    )


def headline() -> str:
  """Returns accuracy over the uplink on the last layer of Fashion-MNIST, over five seeds."""
  rows = _cells('main/fashion_mnist_head')
  axes = _Axes(560, 270, (0.0015, 0.06), (82.5, 88.0))
  left, right, x_of, y_of = axes.left, axes.right, axes.x_of, axes.y_of
  parts = axes.grid(range(83, 89))
  for value in (0.002, 0.005, 0.01, 0.02, 0.05):
    x = x_of(value)
    parts += [_line(x, axes.bottom, x, axes.bottom + 5, 'line'), axes.tick(value)]
  label = 'uplink per client over the run (MB)'
  parts += [
      _line(left, axes.bottom, right, axes.bottom, 'line'),
      _text(left + axes.width / 2, axes.bottom + 40, label, 'middle'),
      axes.y_label('test accuracy (%)'),
  ]
  for row in rows:
    mean, spread = map(float, row['final (%)'].split(' ± '))
    if row['algorithm'] == 'public_only':
      parts += [
          _line(left, y_of(mean), right, y_of(mean), 'line', 'stroke-dasharray="6 4"'),
          _text(left + 8, y_of(mean) - 7, f'public images alone: {mean:.1f} %', kind='small'),
      ]
      continue
    x, p = x_of(float(row['uplink (MB)'])), float(row['p'])
    label = _TITLES[row['algorithm']] + (f', p = {p:.1g}' if p < 1 else '')
    kind = row['algorithm']
    parts += [
        _line(x, y_of(mean - spread), x, y_of(mean + spread), kind, 'stroke-width="1.5"'),
        _mark(kind, x, y_of(mean)), _text(x + 12, y_of(mean) + 4, label),
    ]
  title = 'Test accuracy over the uplink at epsilon = 1.01 on Fashion-MNIST, by method'
  return _svg(760, 335, title, parts)


# The settings of `gains`: a label, and the grids with its rows.
_SETTINGS = (
    ('Fashion-MNIST, last layer', 'epsilon = 1.01', ('main/fashion_mnist_head',)),
    ('Fashion-MNIST, scattering', 'epsilon = 1.01', ('main/scattering_components',)),
    ('Fashion-MNIST, all layers', 'epsilon = 1.01', ('main/fashion_mnist',)),
    ('Shakespeare, last layer', 'epsilon = 8', ('main/shakespeare_head', 'main/shakespeare_randk')),
    ('Shakespeare, all layers', 'epsilon = 8', ('main/shakespeare_all_layers',)),
)


def gains() -> str:
  """Returns what five seeds gain over pre-training, by setting and method; masks have p >= 0.05."""
  left, top, width, row_height, high = 190, 44, 520, 44, 6.0
  height = row_height * len(_SETTINGS)

  def x_of(points: float) -> float:
    return left + width * points / high

  parts = []
  for points in range(7):
    parts += [
        _line(x_of(points), top, x_of(points), top + height, 'line' if points == 0 else 'grid'),
        _text(x_of(points), top + height + 20, str(points), 'middle', 'small'),
    ]
  label = 'points of test accuracy over pre-training on public data alone'
  parts.append(_text(left + width / 2, top + height + 42, label, 'middle'))
  for i, kind in enumerate(('fedsmp_topk', 'fedsmp_randk', 'dp_fedavg', 'fedavg')):
    x = left + (0, 140, 290, 410)[i]
    parts += [_mark(kind, x, 18), _text(x + 12, 22, _TITLES[kind])]
  for i, (name, epsilon, grids) in enumerate(_SETTINGS):
    y = top + row_height * (i + 0.5)
    rows = [row for grid in grids for row in _cells(grid) if row['seeds'] == '5']
    finals = [(row['algorithm'], float(row['final (%)'].split()[0])) for row in rows]
    (start,) = (final for kind, final in finals if kind == 'public_only')
    parts += [
        _text(left - 14, y - 1, name, 'end'), _text(left - 14, y + 14, epsilon, 'end', 'small'),
    ]
    # One above the other, since some have the same gain.
    for offset, kind in ((-12, 'fedavg'), (-4, 'dp_fedavg'), (4, 'fedsmp_randk'), (12, 'fedsmp_topk')):
      if of_kind := [final - start for name, final in finals if name == kind]:
        parts.append(_mark(kind, x_of(max(of_kind)), y + offset))  # The best p of a mask.
  title = 'Gain over pre-training alone, by setting and method, means over five seeds'
  return _svg(760, top + height + 56, title, parts)


def table_1() -> str:
  """Returns Table 1 of the paper beside ours: best accuracy over p, and that of DP-FedAvg at p = 1.

  A and B are the readings of docs/results.md.
  """
  axes = _Axes(500, 330, (0.001, 1.0), (10.0, 90.0))
  x_of, y_of = axes.x_of, axes.y_of
  parts = axes.grid(range(10, 91, 10))
  parts += map(axes.tick, (0.001, 0.005, 0.01, 0.1, 0.2, 0.4, 0.8))
  parts += [
      _text(axes.left + axes.width / 2, axes.bottom + 42, 'compression ratio p', 'middle'),
      axes.y_label('best accuracy (%)'),
  ]
  rows, three_seeds, unscaled, standardized = (
      [row for row in _cells(name) if row['table'].startswith('Table 1:') and row['best (%)']]
      for name in ('paper/table1', 'paper/three_seeds', 'paper/unscaled', 'paper/standardized')
  )
  paper, ours = 'paper (best, %)', 'best (%)'
  for name, kind, dash, chosen, column, label_y in (
      ('rand-k, the paper', 'fedsmp_randk', '2 4', rows, paper, 85.5),
      ('rand-k, B', 'fedsmp_randk', '9 3 2 3', standardized, ours, 80.5),
      ('rand-k, A', 'fedsmp_randk', '', rows, ours, 75.5),
      ('rand-k, A without d/k', 'fedsmp_randk', '9 4', unscaled, ours, 70.5),
      ('top-k, the paper', 'fedsmp_topk', '2 4', rows, paper, 62.5),
      ('top-k, A', 'fedsmp_topk', '', rows, ours, 57.5),
      ('DP-FedAvg, the paper', 'dp_fedavg', '2 4', three_seeds, paper, 49.5),
      ('DP-FedAvg, B', 'dp_fedavg', '9 3 2 3', standardized, ours, 44.5),
      ('DP-FedAvg, A', 'dp_fedavg', '', three_seeds, ours, 39.5),
  ):
    points = sorted(
        (float(row['p']), float(row[column].split()[0])) for row in chosen
        if row['algorithm'] == kind
    )
    path = ' '.join(f'{x_of(p):.1f},{y_of(value):.1f}' for p, value in points)
    parts.append(
        f'<polyline points="{path}" class="{kind}" style="fill: none" stroke-width="2"'
        f' stroke-dasharray="{dash}"/>'
    )
    opacity = 0 if 'paper' in name else 0.4 if name.endswith('B') else 1
    hollow = f'fill-opacity="{opacity}"'
    parts += [_mark(kind, x_of(p), y_of(value), hollow) for p, value in points]
    key = axes.right + 18
    if len(points) > 1:
      parts.append(_line(key, y_of(label_y), key + 34, y_of(label_y), kind,
                         f'stroke-width="2" stroke-dasharray="{dash}"'))
    parts += [
        _mark(kind, key + 17, y_of(label_y), hollow),
        _text(key + 42, y_of(label_y) + 4, name),
    ]
  return _svg(760, axes.bottom + 56, 'Best accuracy over p, ours and the paper\'s', parts)


def one_round() -> str:
  """Returns a drawing of one round: three clients and a dummy, one mask, one secure sum."""
  parts = [
      '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
      ' orient="auto"><path d="M0 0 8 4 0 8z" class="line" style="fill: #8c959f"/></marker></defs>'
  ]

  def box(x: float, y: float, width: float, height: float) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" class="box"/>'

  def arrow(x0: float, y0: float, x1: float, y1: float) -> str:
    return _line(x0, y0, x1, y1, 'line', 'marker-end="url(#tip)"')

  def cells(x: float, y: float, selected: tuple[int, ...], count: int = 12) -> list[str]:
    return [
        f'<rect x="{x + 9 * i}" y="{y}" width="8" height="8"'
        f' class="{"on" if i in selected else "off"}"/>'
        for i in range(count)
    ]

  mask = (1, 4, 5, 9)
  parts += [
      box(10, 96, 150, 120), _text(85, 120, 'Server', 'middle', 'strong'),
      _text(85, 142, 'weights: d coordinates', 'middle', 'small'), *cells(31, 152, ()),
      _text(85, 182, 'mask: k of them', 'middle', 'small'), *cells(31, 192, mask),
  ]
  for row, name in enumerate(('Client', 'Client', 'Client', 'Dummy')):
    y = 20 + 74 * row
    text = 'has no data, sends its share of the noise'
    if row < 3:
      text = 'trains, selects k, clips to C, adds noise'
    parts += [
        arrow(162, 156, 226, y + 30), box(230, y, 250, 60),
        _text(242, y + 22, name, kind='strong'), *cells(360, y + 13, mask if row < 3 else ()),
        _text(242, y + 46, text, kind='small'), arrow(482, y + 30, 554, 156),
    ]
  parts += [
      box(558, 96, 190, 120), _text(653, 120, 'Secure sum', 'middle', 'strong'),
      _text(653, 144, 'k integers, all that the', 'middle', 'small'),
      _text(653, 160, 'server sees of the clients', 'middle', 'small'),
      _text(653, 186, 'noise in the sum: sigma C', 'middle', 'small'),
      '<path d="M653 218 V330 H85 V220" class="line" marker-end="url(#tip)"/>',
      _text(370, 348, 'The server decodes the sum, divides by r, and updates the k coordinates.', 'middle'),
  ]
  return _svg(760, 360, 'One round of Fed-SMP', parts)


FIGURES = {'headline': headline, 'round': one_round, 'gains': gains, 'table_1': table_1}

if __name__ == '__main__':
  for name, draw in FIGURES.items():
    (_HERE / f'{name}.svg').write_text(draw(), encoding='utf-8')
