"""The data, model and paper's settings that `--task` names."""

import importlib

from tasks import errors
from tasks.datasets import emnist
from tasks.datasets import fashion_mnist
from tasks.datasets import shakespeare
from tasks.datasets import svhn
from tasks.datasets import task as task_lib


class _Tasks(dict):
  """Tasks by name; a name that is none is that of a module with one, which is imported."""

  def __missing__(self, name: str) -> task_lib.Task:
    known = ', '.join(name for name in self if '.' not in name)
    remedy = f'choose {known}, or name an importable module that has a TASK, as docs/own_task.py has'
    try:
      found = importlib.import_module(name).TASK
    except (ImportError, AttributeError, TypeError, ValueError) as error:
      raise errors.InputError(f'--task={name} is not a task ({error}); {remedy}.') from None
    if not isinstance(found, task_lib.Task):
      raise errors.InputError(f'--task={name} has a TASK that is no tasks.datasets.task.Task; {remedy}.')
    self[name] = found
    return found


TASKS = _Tasks(
    (module.TASK.name, module.TASK) for module in (shakespeare, fashion_mnist, svhn, emnist)
)
