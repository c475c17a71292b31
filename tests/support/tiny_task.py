"""A task of 600 parameters: images in the format of Fashion-MNIST, twelve clients, a small CNN."""

from tasks.datasets import fashion_mnist
from tasks.datasets import task

NUM_CLIENTS = 12


def _load(own, split):
  del own
  return fashion_mnist.load(NUM_CLIENTS, split)


TASK = task.Task(
    name='tiny',
    title='Small images, a small CNN',
    defaults=task.Defaults(
        noise_multiplier=1.4, rounds=3, clients_per_round=3, clip=1.0, learning_rate=0.125,
        learning_rate_decay=0.99, momentum=0.5, p=0.005,
    ),
    load=_load,
    build_model=task.cnn((28, 28, 1), (2, 2), (4,), 10),
)
