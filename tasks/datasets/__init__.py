"""The tasks that `--task` names: data, models and defaults."""

from tasks.cli import plugins
from tasks.datasets import emnist
from tasks.datasets import fashion_mnist
from tasks.datasets import shakespeare
from tasks.datasets import svhn

TASKS = plugins.Registry(
    'task', 'TASK', (shakespeare.TASK, fashion_mnist.TASK, svhn.TASK, emnist.TASK)
)
