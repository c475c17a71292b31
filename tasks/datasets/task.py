"""Defines a task: data cut into clients, a model, its defaults and its own options.

Every command's help names tasks and their flags: so this module and those of the tasks import
TensorFlow where they use it, when a model is built or TFF's data are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import hashlib
import typing
from typing import Any, NamedTuple, Optional

import numpy as np

from tasks import errors
from tasks.models import initializers

if typing.TYPE_CHECKING:
  import tensorflow as tf
  import tensorflow_federated as tff

# One client's, or a test set's, examples: x and y, first dimension the examples.
Examples = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Owners:
  """The owners of a set of data.

  Attributes:
    text: Who they are, as a phrase.
    ids: One for each person; equal ids are one person. Empty if the examples are nobody's.
  """

  text: str
  ids: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class TaskData:
  """A task's data, and whose they are.

  Attributes:
    clients: The examples of each client; nobody else's.
    test: Examples to measure accuracy on: a test set, or validation examples in place of it.
    public: Examples on the server, in no client's data; None if none were asked for.
    source: One sentence on where the data are from, real or synthetic.
    client_ids: Who the clients are, in the order of `clients`.
    test_owners: Whose data `test` are; None: unknown, which counts as the clients'.
    public_owners: Whose data `public` are; None without them.
    has_validation: Whether `test` is a validation set.
    even: Whether clients are an even cut of a pool of images, so that their sizes follow from
      public numbers. If not, sizes are exact functions of people's data.
    split_digest: A digest of who is set aside and of how a pool is cut, of no client's data: two
      runs on one data set have the same clients if their digests are equal. None: not known.
  """

  clients: Sequence[Examples]
  test: Examples
  public: Optional[Examples]
  source: str
  client_ids: Sequence[str] = ()
  test_owners: Optional[Owners] = None
  public_owners: Optional[Owners] = None
  has_validation: bool = False
  even: bool = False
  split_digest: Optional[str] = None

  @property
  def test_outside_guarantee(self) -> bool:
    """Whether `test` is data of clients.

    Accuracy on it is then an exact function of their data, OUTSIDE (epsilon, delta).
    """
    return self.test_owners is None or not self.test_owners.ids.isdisjoint(self.client_ids)

  def rows(self) -> list[tuple[str, str]]:
    """Describes the data and their owners, a name and a line per set.

    It includes no number that follows from people's data, but for the number of clients.
    """
    clients = f'{self.source}; {len(self.clients):,} clients'
    if self.even:
      sizes = np.array([len(x) for x, _ in self.clients])
      clients += f' with {sizes.min()} to {sizes.max()} examples each'
    name = 'validation set' if self.has_validation else 'test set'
    num_test = '' if self.test_outside_guarantee else f'{len(self.test[0]):,} examples '
    rows = [('data', clients), (name, num_test + self._test_text())]
    if self.public is not None:
      rows.append(('public set', f'{len(self.public[0]):,} examples {self._public_text()}'))
    return rows

  def as_dict(self) -> dict[str, Any]:
    """For config.json: where the data are from and whose they are."""
    return {
        'data_source': self.source,
        'test_owners': self._test_text(),
        'test_outside_guarantee': self.test_outside_guarantee,
        'public_owners': self._public_text() or None,
        'public_digest': self.public_digest(),
        'split_digest': self.split_digest,
    }

  def public_digest(self) -> Optional[str]:
    """Returns a digest of the public examples, which protects nobody; None without them."""
    if self.public is None:
      return None
    digest = hashlib.blake2b(digest_size=16)
    for array in self.public:
      digest.update(f'{array.dtype}{array.shape}'.encode())
      digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()

  def _test_text(self) -> str:
    owners = self.test_owners
    text = 'of people unknown' if owners is None else owners.text
    return text + (', OUTSIDE (epsilon, delta)' if self.test_outside_guarantee else '')

  def _public_text(self) -> str:
    if self.public is None:
      return ''
    return 'of people unknown' if self.public_owners is None else self.public_owners.text


@dataclasses.dataclass(frozen=True)
class Defaults:
  """A task's values of the flags of `tasks.run` that are not given, and its constants.

  They are the setting that protects the clients in the data and learns; the paper's settings are in
  tasks/experiments/paper/TASK.flags.

  Attributes:
    rounds: T.
    clients_per_round: r.
    clip: C.
    learning_rate: Learning rate of clients in round 0.
    epsilon: Epsilon of all rounds, from which sigma follows; None if `noise_multiplier` is set.
    noise_multiplier: sigma; None if `epsilon` is set.
    p: Compression ratio of systems with masks.
    momentum: Momentum of clients.
    batch_size: Minibatch of clients.
    local_epochs: Epochs of a client in a round.
    server_learning_rate: Learning rate of the server in round 0.
    server_learning_rate_schedule: 'constant' or 'linear_decay'.
    warm_start: 'none' or 'public'.
    trainable: 'all' or 'head'.
    public_examples: Size of the public set.
    learning_rate_decay: Factor on the clients' learning rate every `learning_rate_decay_rounds`.
    learning_rate_decay_rounds: See `learning_rate_decay`.
    paper_population: n of the paper's accounting, for the column `epsilon_paper` alone; None: the
      number of clients in the data.
  """

  rounds: int
  clients_per_round: int
  clip: float
  learning_rate: float
  epsilon: Optional[float] = None
  noise_multiplier: Optional[float] = None
  p: float = 0.05
  momentum: float = 0.0
  batch_size: int = 10
  local_epochs: int = 1
  server_learning_rate: float = 1.0
  server_learning_rate_schedule: str = 'constant'
  warm_start: str = 'none'
  trainable: str = 'all'
  public_examples: int = 1000
  learning_rate_decay: float = 1.0
  learning_rate_decay_rounds: int = 1
  paper_population: Optional[int] = None


class Split(NamedTuple):
  """A request for a task's data.

  Attributes:
    seed: Seed of the partition among clients and of the draws among those set aside.
    num_public: Number of public examples; 0: none.
    num_validation: Number of examples of the validation set, which takes the place of the test set; 0:
      the test set.
    directory: Directory of the data; None: the task's own.
  """

  seed: int
  num_public: int = 0
  num_validation: int = 0
  directory: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Pretraining:
  """A task's schedule of pre-training, chosen on public data alone; see `training.public_model`.

  The defaults were chosen on 1,000 images of Fashion-MNIST.

  Attributes:
    epochs: Epochs over all public examples.
    learning_rate: Peak of Adam's learning rate, which falls linearly to zero.
    batch_size: Examples of a step.
    average_decay: Decay per step of the exponential moving average of the weights, which is the
      result, in [0, 1); 0: the last weights.
    temperature: Divisor of the trained last layer, positive.
  """

  epochs: int = 8
  learning_rate: float = 0.006
  batch_size: int = 32
  average_decay: float = 0.98
  temperature: float = 1.5

  def text(self) -> str:
    """Describes the schedule, as a phrase."""
    return (
        f'Adam, {self.epochs} epochs, learning rate {self.learning_rate:g} falling to 0,'
        f' temperature {self.temperature:g}'
    )


@dataclasses.dataclass(frozen=True)
class Task:
  """A task: data cut into clients, and a model.

  Attributes:
    name: The value of --task, unless that is a module. Its own flags start with it.
    title: A few words for people.
    defaults: The values of flags that are not given.
    load: Loads the data of (own options, split). Raises `InputError` where data are missing, or too
      few.
    build_model: Makes the model of (own options, what draws its initial weights).
    options: A dataclass of its own options (`tasks.cli.options`), of which each is the flag
      --NAME_OPTION; None: it has none.
    num_clients: The number of clients, where it is known before the data are loaded; else None.
    is_padding: Maps a tensor of labels to which of them fill up an example, bool of the same
      shape; None: none do.
    padding_counts: Whether padding counts as a label to predict, given the own options.
    pretraining: How the model is trained on public examples before round 0.
    show: Returns what a finished run prints of its model, whose initial weights are the trained
      ones, and of the test examples; None: nothing. It is not called where the guarantee does
      not cover the test examples.
  """

  name: str
  title: str
  defaults: Defaults
  load: Callable[[Any, Split], TaskData]
  build_model: Callable[[Any, initializers.Initializer], tff.learning.models.FunctionalModel]
  options: Optional[type] = None
  num_clients: Optional[int] = None
  is_padding: Optional[Callable[[tf.Tensor], tf.Tensor]] = None
  padding_counts: Callable[[Any], bool] = lambda own: False
  pretraining: Pretraining = Pretraining()
  show: Optional[Callable[[tff.learning.models.FunctionalModel, Examples], str]] = None

  def is_scored(self, own: Any, labels: tf.Tensor) -> tf.Tensor:
    """Returns which labels count for loss and accuracy, bool of the same shape."""
    import tensorflow as tf  # pylint: disable=g-import-not-at-top

    if self.is_padding is None or self.padding_counts(own):
      return tf.ones_like(labels, tf.bool)
    return tf.logical_not(self.is_padding(labels))


def cut_pool(
    pool: Examples,
    test: Examples,
    num_clients: int,
    source: str,
    split: Split,
) -> TaskData:
  """Cuts a pool of examples, which are nobody's, evenly into synthetic clients.

  Public and validation examples leave the pool before it is cut: no client has them.

  Args:
    pool: The examples.
    test: The test set.
    num_clients: How many clients to make.
    source: One sentence on where the data are from.
    split: How many of them become public or the validation set; its seed shuffles the pool.

  Raises:
    InputError: If there are not that many.
  """
  x, y = pool
  num_public, num_validation = split.num_public, split.num_validation
  aside = num_public + num_validation
  if aside >= len(x):
    raise errors.InputError(
        f'{flags_of_sizes(num_public, num_validation)} would take all of the {len(x)} training'
        ' examples; set a smaller number.'
    )
  order = np.random.default_rng(split.seed).permutation(len(x))
  chosen, held, rest = np.split(order, [num_public, aside])
  text = 'without owners, taken out of the pool before it is cut into clients'
  if num_validation:
    source = f'{source}; {num_validation:,} of them HELD OUT in place of the test set'
    test, test_owners = (x[held], y[held]), Owners(text)
  else:
    test_owners = Owners('without owners, the test part of the data set')
  return TaskData(
      clients=split_evenly(x[rest], y[rest], num_clients),
      test=test,
      public=(x[chosen], y[chosen]) if num_public else None,
      source=source,
      client_ids=tuple(map(str, range(num_clients))),
      test_owners=test_owners,
      public_owners=Owners(text) if num_public else None,
      has_validation=bool(num_validation),
      even=True,
      split_digest=digest_of_split(order.astype(np.int64), num_clients, num_public, num_validation),
  )


def digest_of_split(*parts: Any) -> str:
  """Returns a digest of what divides a data set into clients and others.

  Args:
    *parts: Arrays, or what `repr` describes in full.
  """
  digest = hashlib.blake2b(digest_size=8)
  for part in parts:
    digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
  return digest.hexdigest()


def flags_of_sizes(num_public: int, num_validation: int) -> str:
  """The flags that ask for examples that no client has, as on a command line."""
  given = (('public_examples', num_public), ('validation_examples', num_validation))
  return ' '.join(f'--{name}={num}' for name, num in given if num)


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
