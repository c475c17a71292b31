"""The data, model and paper's settings that `--task` names."""

from tasks.datasets import emnist
from tasks.datasets import fashion_mnist
from tasks.datasets import shakespeare
from tasks.datasets import svhn

TASKS = {
    module.TASK.name: module.TASK
    for module in (shakespeare, fashion_mnist, svhn, emnist)
}
