"""`python -m tests.support.same_numbers BASE`: compares a commit's runs with this tree's.

Both trees make the same tiny seeded runs. Of each run, the arrays of weights.npz and the columns of
metrics.csv that both trees write must be equal, byte for byte.
"""

import csv
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

_CLIPPED = ('--noise_multiplier=1', '--clip=0.5')
_PAPER_MASKS = ('--public_clients=0', '--mask_rounds=1')
# A run's name and its flags, in addition to the flags that `commands.tiny` of its tree gives.
_RUNS = {
    'topk': ('--algorithm=fedsmp_topk', '--p=0.1', *_PAPER_MASKS, *_CLIPPED),
    'topk_pseudo_clients': (
        '--algorithm=fedsmp_topk', '--p=0.1', '--public_clients=2', '--mask_rounds=2', *_CLIPPED
    ),
    'randk': ('--algorithm=fedsmp_randk', '--p=0.1', *_CLIPPED),
    'randk_all': ('--algorithm=fedsmp_randk', '--p=1', *_CLIPPED),
    'dp_fedavg': ('--algorithm=dp_fedavg', '--clip_schedule=learning_rate', *_CLIPPED),
    'fedavg': ('--algorithm=fedavg',),
    'fedavg_topk': (
        '--algorithm=fedavg_topk', '--p=0.1', '--public_examples=8', *_PAPER_MASKS
    ),
    'released': ('--algorithm=fedsmp_released', '--p=0.1', *_CLIPPED),
    'discrete': (
        '--algorithm=fedsmp_randk', '--p=0.5', '--noise=discrete_gaussian', *_CLIPPED
    ),
    'fixed': ('--algorithm=fedsmp_randk', '--p=0.1', '--sampling=fixed_size', *_CLIPPED),
    'adaptive': ('--algorithm=fedsmp_randk', '--p=0.1', '--clip_quantile=0.5', *_CLIPPED),
    'warm_start': (
        '--algorithm=fedsmp_topk', '--p=0.1', '--warm_start=public', *_PAPER_MASKS, *_CLIPPED
    ),
}


def _make(out: pathlib.Path) -> None:
  """Makes the runs of the tree that this process imports."""
  from tests.support import commands
  from tests.support import small_data

  small_data.write_fashion_mnist(out / 'data')
  for name, flags in _RUNS.items():
    arguments = commands.tiny(out / 'data', out / name, '--seed=5', *flags)
    if commands.main(arguments):
      sys.exit(f'{name}: {" ".join(arguments[1:])}: this run failed')


def _differences(base: pathlib.Path, new: pathlib.Path) -> list[str]:
  """Returns the names of what differs between two directories of one run."""
  differences = []
  with np.load(base / 'weights.npz') as before, np.load(new / 'weights.npz') as after:
    if [before[n].tobytes() for n in before] != [after[n].tobytes() for n in after]:
      differences.append('weights.npz')
  tables = []
  for directory in (base, new):
    with open(directory / 'metrics.csv', encoding='utf-8', newline='') as file:
      header, *rows = csv.reader(file)
    tables.append({name: column for name, *column in zip(header, *rows)})
  before, after = tables
  return differences + [name for name in before if name in after and before[name] != after[name]]


def compare(base: str) -> int:
  """Compares this tree with a commit; returns the number of runs that differ."""
  failures = 0
  with tempfile.TemporaryDirectory() as directory:
    place = pathlib.Path(directory)
    add = ['git', 'worktree', 'add', '--quiet', '--detach']
    subprocess.run([*add, place / 'tree', base], check=True)
    try:
      for tree, out in ((place / 'tree', place / 'base'), (pathlib.Path.cwd(), place / 'new')):
        subprocess.run(
            [sys.executable, __file__, '--make', out], check=True, stdout=subprocess.DEVNULL,
            cwd=tree, env={**os.environ, 'PYTHONPATH': str(tree), 'TF_ENABLE_ONEDNN_OPTS': '0'},
        )
      for name in _RUNS:
        differences = _differences(place / 'base' / name, place / 'new' / name)
        print(f'{name:20} {", ".join(differences) + " differ" if differences else "equal"}')
        failures += bool(differences)
    finally:
      subprocess.run(['git', 'worktree', 'remove', '--force', place / 'tree'], check=True)
  return failures


if __name__ == '__main__':
  if sys.argv[1:2] == ['--make']:
    sys.path.remove(str(pathlib.Path(__file__).parent))
    os.makedirs(sys.argv[2])
    _make(pathlib.Path(sys.argv[2]))
  elif len(sys.argv) == 2:
    sys.exit(min(compare(sys.argv[1]), 1))
  else:
    sys.exit('usage: python -m tests.support.same_numbers BASE')
