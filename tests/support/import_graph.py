"""`python -m tests.support.import_graph PACKAGE`: its rooms, its arrows and its circles.

A room is a module or sub-package; an arrow is a room that imports another, a circle a set of
rooms that import one another.
"""

import ast
import collections
import pathlib
import sys


def arrows(package, root=pathlib.Path()):
  """Maps each room of a package, such as 'tasks' or 'tasks.training', to those it imports."""
  base = root / package.replace('.', '/')
  found = collections.defaultdict(set)
  for path in sorted(base.rglob('*.py')):
    room = path.relative_to(base).parts[0].removesuffix('.py')
    if room == '__init__':
      continue
    found[room] |= set()
    for module in _imports(ast.parse(path.read_text(encoding='utf-8'))):
      other = module.removeprefix(f'{package}.').split('.')[0]
      if module.startswith(f'{package}.') and other != room and (
          (base / other).is_dir() or (base / f'{other}.py').exists()
      ):
        found[room].add(other)
  return dict(found)


def circles(graph):
  """The sets of rooms that import one another."""
  def reach(room):
    seen, todo = set(), [room]
    while todo:
      for other in graph.get(todo.pop(), ()):
        if other not in seen:
          seen.add(other)
          todo.append(other)
    return seen

  reached = {room: reach(room) for room in graph}
  return {
      frozenset(other for other in graph if room in reached[other] and other in reached[room])
      for room in graph
      if room in reached[room]
  }


def _imports(tree):
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


if __name__ == '__main__':
  for name in sys.argv[1:] or ['fedsmp_tff', 'tasks']:
    rooms = arrows(name)
    print(
        f'{name}: {len(rooms)} rooms, {sum(map(len, rooms.values()))} arrows,'
        f' {len(circles(rooms))} circles {[sorted(c) for c in circles(rooms)] or ""}'
    )
    for room, others in rooms.items():
      print(f'  {room}: {", ".join(sorted(others)) or "-"}')
