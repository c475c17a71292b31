"""`python -m tasks.benchmark`: Fed-SMP beside stock `tff.learning`, on this machine, in one run.

Parts (`--part=` selects parts; default: all):

  fashion_mnist  a round of 100 clients of real images, with RandK(0.005) in this
                 process and on TFF's worker, with TopK(0.005) by pseudo-clients (now, one
                 round ahead, kept for 5 rounds) and as in the paper, whose training on 1,000
                 public images is as much work again as all clients', and stock:
                 `build_unweighted_fed_avg`, TFF's own Keras model of the same CNN, and
                 `tff.learning.dp_aggregator`, on a worker with TFF's own settings
  shakespeare    the same for a round of 10 roles and the character LSTM
  aggregator     `FedSmpFactory` alone beside `tff.learning.dp_aggregator` and
                 `secure_aggregator`: 20 clients, d = 1,663,370
  large          `FedSmpFactory` alone at d = 50 million: seconds and memory
  clients        10, 100 and 1,000 Fashion-MNIST clients a round, each in a process of
                 its own: time a client, peak memory
  workers        1 and 2 workers, in this process and on Ray, whose own processes
                 would slow the other parts down
  one_processor  the part fashion_mnist on one processor alone, as by `taskset`
  start          seconds from a command, `--task=shakespeare --p=0.05`, to its help, its plan and
                 the end of its first round, in processes of their own

Contenders alternate, so that a busy machine slows all of them; the first round of
each, which builds graphs, is left out. Seconds are medians of `--repeats`. A busy machine still
distorts ratios: load and the speed of a matrix product are printed before and after.
"""

import os
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=g-import-not-at-top
from collections.abc import Sequence
import dataclasses
import json
from typing import Any, Optional

from tasks import datasets
from tasks.config import command
from tasks.config import options as options_lib
from tasks.config import task_flags

_PARTS = (
    'fashion_mnist', 'shakespeare', 'aggregator', 'large', 'clients', 'workers',
    'one_processor', 'start',
)


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command, besides those of the tasks."""

  part: list[str] = options_lib.option(
      list(_PARTS), 'What to measure; may be given several times.',
      values=[*_PARTS, 'one_size'], repeated=True,
  )
  repeats: int = options_lib.option(
      5, 'Measured rounds of each, after one that is left out.', at_least=1
  )
  json: Optional[str] = options_lib.option(None, 'JSON file for the measurements.')
  size: int = options_lib.option(
      100, 'For --part=one_size, which --part=clients starts: clients a round.', at_least=1
  )


def _parse(arguments: Sequence[str], *tables: type, program: str) -> list[Any]:
  """As `command.parse`, with the flags of the tasks, which are set."""
  parsed = options_lib.new_flags(*tables)
  task_flags.define(parsed)
  command.refuse(command.read(parsed, arguments, program), program)
  for task in datasets.TASKS:
    task_flags.use({name: parsed[name].value for name in task_flags.names(task)})
  return [options_lib.make(table, parsed) for table in tables]


_COMMAND = command.Command(
    'tasks.benchmark',
    ('usage: python -m tasks.benchmark [flags]', '', *__doc__.splitlines()[2:]),
    (Options,),
    parse=_parse,
)


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status."""
  return _COMMAND.main(argv, _main)


def _main(options: Options) -> None:
  # It imports TensorFlow, which --help and wrong flags need not wait for.
  from tasks.training import contests

  parts = contests.parts(options.repeats, options.size)
  chosen = list(dict.fromkeys(options.part))
  found = {'processors': len(os.sched_getaffinity(0))}
  of_one_size = chosen == ['one_size']  # Its parent reads its output.
  if not of_one_size:
    found['before'] = contests.busyness('before')
  for part in chosen:
    found[part] = parts[part]()
    _write(options.json, found)
  if not of_one_size:
    found['after'] = contests.busyness('after')
    _write(options.json, found)


def _write(path: Optional[str], found: dict[str, Any]) -> None:
  if path:
    with open(path, 'w', encoding='utf-8') as file:
      json.dump(found, file, indent=2)


if __name__ == '__main__':
  command.end(main(sys.argv))
