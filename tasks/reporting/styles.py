"""One color, dash pattern and marker per method, the same in every figure."""

from collections.abc import Iterable
import dataclasses
import itertools
from typing import Any

from tasks.reporting import results

_SOLID, _DASHED, _DOTTED, _DASH_DOT = '-', '--', ':', '-.'
_LONG_DASHES, _DASH_DOT_DOT = (0, (8, 2)), (0, (4, 1.5, 1, 1.5, 1, 1.5))


@dataclasses.dataclass(frozen=True)
class Style:
  """How to draw a method.

  Attributes:
    color: A color of Okabe and Ito's palette, which readers with color blindness can distinguish.
    dashes: Dash pattern, with which lines differ in grey print too.
    marker: Marker.
  """

  color: str
  dashes: Any
  marker: str

  def line(self, **changes: Any) -> dict[str, Any]:
    """Returns the arguments of `Axes.plot`."""
    return dict(color=self.color, linestyle=self.dashes, marker=self.marker, markersize=3.5) | changes


# By mask, whether with noise or not, which are never in one panel; (algorithm, `Group.unscaled`).
_STYLES = {
    (('fedsmp_topk', False), ('fedavg_topk', False)): Style('#0072B2', _SOLID, 'o'),
    (('fedsmp_randk', False), ('fedavg_randk', False)): Style('#D55E00', _DASHED, 's'),
    (('fedsmp_randk', True), ('fedavg_randk', True)): Style('#E69F00', _DASH_DOT, '^'),
    (('dp_fedavg', False),): Style('#000000', _DOTTED, 'D'),
    (('fedavg', False),): Style('#7F7F7F', _LONG_DASHES, 'v'),
    (('fedsmp_released', False),): Style('#009E73', _DASH_DOT_DOT, 'P'),
    (('public_only', False),): Style('#CC79A7', _LONG_DASHES, ''),
}
_BY_METHOD = {method: style for named, style in _STYLES.items() for method in named}
_OTHERS = (
    Style('#56B4E9', _SOLID, 'X'), Style('#B8A900', _DASHED, '*'), Style('#56B4E9', _DASH_DOT, 'h'),
)


def by_method(groups: Iterable[results.Group]) -> dict[Style, list[results.Group]]:
  """Returns groups by their style, in the order of styles; methods of modules come last."""
  found: dict[Style, list[results.Group]] = {style: [] for style in _STYLES.values()}
  styles, spare = dict(_BY_METHOD), itertools.cycle(_OTHERS)
  for group in groups:
    method = group.config['algorithm'], group.unscaled
    if method not in styles:
      styles[method] = next(spare)
    found.setdefault(styles[method], []).append(group)
  return {style: members for style, members in found.items() if members}


def style_of(algorithm: str, unscaled: bool = False) -> Style:
  """Returns the style of a built-in method."""
  return _BY_METHOD[algorithm, unscaled]
