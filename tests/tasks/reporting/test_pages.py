"""Tests of the page and of Markdown: parsed, as a browser would."""

import html.parser
import re

import numpy as np
import pytest

from tasks.reporting import drawing
from tasks.reporting import pages


class _Page(html.parser.HTMLParser):
  """Elements of a page, each with the elements that it is in."""

  def __init__(self, text):
    super().__init__()
    self.open, self.found, self.texts = [], [], []
    self.feed(text)

  def handle_starttag(self, tag, attrs):
    self.found.append((tag, dict(attrs), tuple(self.open)))
    if tag not in ('meta', 'br'):
      self.open.append(dict(attrs).get('class') or tag)

  def handle_endtag(self, tag):
    self.open.pop()

  def handle_data(self, data):
    if 'script' not in self.open:
      self.texts.append((data, tuple(self.open)))

  def of(self, tag):
    return [(attrs, path) for name, attrs, path in self.found if name == tag]


@pytest.fixture
def parts():
  curves = [
      drawing.Curve(f'system <{i}>', np.array([1.0, 2.0]), np.array([1.0, i]), color=i)
      for i in range(drawing.NUM_COLORS)
  ]
  panels = [drawing.Panel('', 'x', 'y', curves), drawing.Panel('', 'x', 'y', curves)]
  figure = drawing.Figure('name', 'A ends highest', panels, 'Seeds: 2.')
  table = pages.Table('T', ('name', 'n'), [['a', '1.00']], '1 of 3.', [['b', ''], ['c', '']])
  return [table], [figure]


def test_a_page_for_any_width(parts):
  page = _Page(pages.page(*parts))
  assert ('viewport', 'width=device-width, initial-scale=1') in [
      (attrs.get('name'), attrs.get('content')) for attrs, _ in page.of('meta')
  ]
  # Tables scroll in a box of their own, which the keyboard reaches.
  assert page.of('table') and all(path[-1] == 'wide' for _, path in page.of('table'))
  assert all(
      attrs['tabindex'] == '0' for attrs, _ in page.of('div') if attrs.get('class') == 'wide'
  )


def test_legends_are_text_below_plots_in_colors_of_their_own(parts):
  text = pages.page(*parts)
  page = _Page(text)
  labels = [data for data, path in page.texts if path[-2:] == ('legend', 'li')]
  assert labels == [f'system <{i}>' for i in range(drawing.NUM_COLORS)]  # Once for both panels.
  styles = [attrs['style'] for attrs, path in page.of('span') if 'legend' in path]
  assert len(set(styles)) == len(styles) == drawing.NUM_COLORS
  assert text.count('"showlegend":false') == 2
  places = [place for place, (tag, attrs, _) in enumerate(page.found)
            if attrs.get('class') in ('panels columns2', 'legend')]
  assert len(places) == 2 and page.found[places[0]][1]['class'] == 'panels columns2'


def test_cells_that_were_not_run_are_folded(parts):
  page = _Page(pages.page(*parts))
  cells = {data: 'details' in path for data, path in page.texts if path[-1:] == ('td',)}
  assert cells == {'a': False, '1.00': False, 'b': True, 'c': True}
  assert 'Cells that were not run: 2' in [data for data, _ in page.texts]
  text = pages.markdown(*parts)
  assert '| a | 1.00 |' in text and '| b |' not in text and '1 of 3.' in text


def test_headers_are_buttons_that_a_script_sorts_by(parts):
  text = pages.page(*parts)
  buttons = _Page(text).of('button')
  assert len(buttons) == 4 and all(path[-1] == 'th' for _, path in buttons)
  assert re.search(r"querySelectorAll\('th button'\)", text) and 'aria-sort' in text


def test_figures_come_before_tables(parts):
  tags = [tag for tag, _, _ in _Page(pages.page(*parts)).found]
  assert tags.index('figure') < tags.index('table')
