"""What a task is: data cut into clients, a model, the paper's settings, its own flags."""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Optional

from absl import flags
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import errors
from tasks.models import initializers

# One client's, or a test set's, examples: x and y, first dimension the examples.
Examples = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class TaskData:
  """A task's data.

  Attributes:
    clients: The examples of each client; nobody else's.
    test: Examples to measure accuracy on.
    public: Examples on the server, in no client's data; None if none were asked.
    source: One sentence on where the data are from, real or synthetic.
  """

  clients: Sequence[Examples]
  test: Examples
  public: Optional[Examples]
  source: str

  def held_out(self, num: int) -> 'TaskData':
    """The same with the last `num` public examples in place of the test set."""
    x, y = self.public
    return dataclasses.replace(
        self,
        test=(x[-num:], y[-num:]),
        public=(x[:-num], y[:-num]) if num < len(x) else None,
        source=f'{self.source}; {num:,} of them HELD OUT in place of the test set',
    )


@dataclasses.dataclass(frozen=True)
class PaperSettings:
  """A task's settings in section 5 of the paper, or ours where it has none.

  Attributes:
    rounds: T.
    clients_per_round: r.
    noise_multiplier: sigma.
    clipping_norm: C.
    population: n of the privacy accounting; None: the number of clients in the
      data. A number here is hypothetical.
    learning_rate: Of clients, in round 0.
    learning_rate_decay: Factor on it every `learning_rate_decay_rounds` rounds.
    learning_rate_decay_rounds: See `learning_rate_decay`.
    momentum: Of clients.
    batch_size: Of clients.
    local_epochs: Passes of a client over its data in a round.
    public_examples: Size of the public set (top-k only).
    topk_ratio: p at which the paper's top-k is best.
    randk_ratio: p at which the paper's rand-k is best.
    rounds_per_evaluation: How often accuracy is measured.
    eval_examples: Test examples used for that; None: all. The last evaluation
      uses all in any case.
  """

  rounds: int
  clients_per_round: int
  noise_multiplier: float
  clipping_norm: float
  population: Optional[int]
  learning_rate: float
  learning_rate_decay: float
  learning_rate_decay_rounds: int
  momentum: float
  batch_size: int
  local_epochs: int
  public_examples: int
  topk_ratio: float
  randk_ratio: float
  rounds_per_evaluation: int
  eval_examples: Optional[int]


@dataclasses.dataclass(frozen=True)
class Task:
  """A task.

  Attributes:
    name: The value of `--task`; its own flags start with it.
    title: A few words for people.
    settings: The paper's settings.
    build_model: Makes the model; takes what draws its initial weights.
    num_clients: The number of clients, where it is known before the data are
      loaded; else None.
    load: Loads the data; takes the seed of the partition and the size of the
      public set (0: none). Raises `InputError` where data are missing.
    is_scored: Maps a tensor of labels to which of them count for accuracy, bool of
      the same shape.
  """

  name: str
  title: str
  settings: PaperSettings
  build_model: Callable[[initializers.Initializer], tff.learning.models.FunctionalModel]
  load: Callable[[int, int], TaskData]
  num_clients: Callable[[], Optional[int]] = lambda: None
  is_scored: Callable[[tf.Tensor], tf.Tensor] = lambda labels: tf.ones_like(
      labels, tf.bool
  )


def take_public(
    x: np.ndarray, y: np.ndarray, num_public: int, rng: np.random.Generator
) -> tuple[Examples, Optional[Examples]]:
  """Shuffled examples without the public ones, and the public ones (or None).

  Raises:
    InputError: If there are not that many.
  """
  check_num_public(num_public, len(x))
  order = rng.permutation(len(x))
  public, rest = order[:num_public], order[num_public:]
  return (x[rest], y[rest]), (x[public], y[public]) if num_public else None


def check_num_public(num_public: int, num_examples: int) -> None:
  """Raises `InputError` if the public set would leave clients without examples."""
  if num_public >= num_examples:
    raise errors.InputError(
        f'--public_examples={num_public} would take all of the {num_examples}'
        ' training examples; set a smaller one.'
    )


def check_labels(labels: np.ndarray, lowest: int, highest: int) -> None:
  """Raises `ValueError` if a label is not an integer from `lowest` to `highest`."""
  # Written so that NaN, which compares false, is refused.
  right = (lowest <= labels) & (labels <= highest) & (labels == np.floor(labels))
  if not np.all(right):
    raise ValueError(
        f'label {labels[~right][0]} is not one of {lowest} to {highest}'
    )


def split_evenly(x: np.ndarray, y: np.ndarray, num_clients: int) -> list[Examples]:
  """Cuts examples, in the order given, into parts of sizes that differ by one at most."""
  return list(
      zip(np.array_split(x, num_clients), np.array_split(y, num_clients))
  )


def sizes(flag: flags.FlagHolder) -> tuple[int, ...]:
  """A list flag as positive integers.

  Raises:
    InputError: If it is something else.
  """
  try:
    values = tuple(map(int, flag.value))
  except ValueError:
    values = ()
  if not values or min(values) < 1:
    raise errors.InputError(
        f'--{flag.name}={",".join(flag.value)} is not a list of positive integers'
        ' with commas between.'
    )
  return values
