"""The tasks that `--task` names: data, models and defaults."""

from tasks.cli import plugins
from tasks.datasets import emnist
from tasks.datasets import fashion_mnist
from tasks.datasets import shakespeare
from tasks.datasets import svhn
from tasks.datasets import task as task_lib

# By name; `find` adds those of modules.
TASKS = {
    task.name: task for task in (shakespeare.TASK, fashion_mnist.TASK, svhn.TASK, emnist.TASK)
}
NAMES = tuple(TASKS)


def find(name: str) -> task_lib.Task:
  """Returns the task of a name, or of a module; see `plugins.find`."""
  return plugins.find('task', name, TASKS, 'TASK', task_lib.Task)
