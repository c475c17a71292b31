"""`python -m tasks.report RUN_DIR...`: accuracy of runs over rounds and uplink, as a picture."""

import csv
import json
import pathlib
import sys

from absl import flags
import matplotlib

matplotlib.use('Agg')
# pylint: disable=g-import-not-at-top
from matplotlib import pyplot
import numpy as np

from tasks import errors

_OUTPUT = flags.DEFINE_string('output', 'report.png', 'The picture to write (PNG).')


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status."""
  try:
    directories = flags.FLAGS(argv)[1:]
    if not directories:
      raise errors.InputError('no run directory is named; name one or more.')
    runs = [_read(pathlib.Path(directory)) for directory in directories]
    _draw(runs, _OUTPUT.value)
  except (flags.Error, errors.InputError) as error:
    print(f'tasks.report: {error}', file=sys.stderr)
    return 2
  print(f'wrote {_OUTPUT.value}')
  return 0


def _read(directory: pathlib.Path) -> tuple[dict, dict[str, np.ndarray]]:
  """A run's configuration, and the rows of metrics.csv that have an accuracy."""
  try:
    config = json.loads((directory / 'config.json').read_text(encoding='utf-8'))
    with open(directory / 'metrics.csv', encoding='utf-8', newline='') as file:
      rows = [row for row in csv.DictReader(file) if row['test_accuracy']]
    columns = {
        name: np.array([float(row[name]) for row in rows])
        for name in ('round', 'test_accuracy', 'uplink_megabytes')
    }
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise errors.InputError(
        f'{directory} can\'t be read as a run ({type(error).__name__}: {error});'
        ' name the --output_dir of a run.'
    ) from None
  return config, columns


def _label(config: dict) -> str:
  label = config['algorithm']
  if config['num_kept'] < config['dim']:
    label += f', p = {config["num_kept"] / config["dim"]:.3g}'
  if config['privacy']:
    label += f', sigma = {config["privacy"]["noise_multiplier"]:g}'
  return label


def _draw(runs: list, path: str) -> None:
  figure, (by_round, by_uplink) = pyplot.subplots(
      1, 2, figsize=(10, 4), sharey=True, layout='constrained'
  )
  for config, columns in runs:
    accuracy = 100 * columns['test_accuracy']
    label = f'{_label(config)}: best {accuracy.max():.2f} %'
    by_round.plot(columns['round'], accuracy, label=label)
    # Before the first round nothing is sent, and a logarithm has no zero.
    sent = columns['uplink_megabytes'] > 0
    by_uplink.plot(columns['uplink_megabytes'][sent], accuracy[sent])
  by_round.set(xlabel='round', ylabel='test accuracy (%)')
  by_uplink.set(xlabel='uplink a client (MB, average)', xscale='log')
  for axes in (by_round, by_uplink):
    axes.grid(alpha=0.3)
  by_round.legend(loc='lower right')
  figure.suptitle(', '.join(dict.fromkeys(config['task'] for config, _ in runs)))
  try:
    figure.savefig(path, dpi=120)
  except (OSError, ValueError) as error:
    raise errors.InputError(
        f'--output={path} can\'t be written ({error}); name a .png file that can.'
    ) from None


if __name__ == '__main__':
  sys.exit(main(sys.argv))
