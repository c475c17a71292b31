"""`python -m tasks.run --task=TASK`: trains with Fed-SMP or a sibling, and prints what it spent."""

import functools
import os
import signal
import sys

if __name__ == '__main__':
  # While packages are imported, Ctrl-C ends without a traceback.
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
# TensorFlow's notes on its start have nothing about a run.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

from fedsmp_tff import _platform

if _platform.problem():
  sys.exit(f'tasks.run: {_platform.problem()}')

# pylint: disable=g-import-not-at-top
from tasks.config import command
from tasks.config import recipes
from tasks.config import runtime as runtime_lib
from tasks.config import settings as settings_lib
from tasks.config import task_flags
from tasks.training import finished


def _failures() -> tuple[type[BaseException], ...]:
  from tasks.training import session

  return session.FAILURES


_COMMAND = command.Command(
    'tasks.run',
    (
        'usage: python -m tasks.run --task=TASK [flags]',
        '',
        'Trains a model with Fed-SMP or a system to compare it with, prints the plan and',
        'the privacy spent, and writes the run to --output_dir. Flags that are not given are',
        "those of --recipe=best, where the task has it; --recipe=paper has the paper's. For instance:",
        '  python -m tasks.run --task=shakespeare --p=0.05',
        '  python -m tasks.run --task=fashion_mnist --algorithm=fedsmp_randk --p=0.4 --seed=1',
        '',
        'A flag that has no effect with the task or the algorithm is an error. The same command',
        'with the same --output_dir resumes a run, however it ended.',
    ),
    flag_help=settings_lib.help_lines,
    parse=functools.partial(settings_lib.parse, default_recipe=recipes.BEST),
    failures=_failures,
)


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status."""
  return _COMMAND.main(argv, _main)


def _main(
    settings: settings_lib.RunSettings,
    place: runtime_lib.RuntimeSettings,
    output: settings_lib.OutputSettings,
) -> int:
  result = finished.text(settings, output)
  if result is not None:
    print(result)
    return 0
  if 'tensorflow' not in sys.modules:  # Its import takes 10 s and more when files are not in memory.
    print('tasks.run: starting TensorFlow', file=sys.stderr, flush=True)
  task_flags.use(settings.task_flags)
  # TensorFlow, which takes seconds: only now that the flags are right and there is work to do.
  from tasks.training import session

  return session.run(settings, place, output)


if __name__ == '__main__':
  command.end(main(sys.argv))
