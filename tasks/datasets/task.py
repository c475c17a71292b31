"""Defines a task: data cut into clients, a model, its defaults and its own options.

Every command's help lists the tasks and their flags, so this module and the tasks import TensorFlow
only where they build a model or read TFF's data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import hashlib
import itertools
import typing
from typing import Any, NamedTuple, Optional

import numpy as np

from tasks import errors
from tasks.datasets import label_skew
from tasks.models import initializers

if typing.TYPE_CHECKING:
  import tensorflow as tf
  import tensorflow_federated as tff

# Arrays x and y of a client or a test set; the first dimension counts examples.
Examples = tuple[np.ndarray, np.ndarray]

_UNKNOWN = 'from unknown owners'


@dataclasses.dataclass(frozen=True)
class Owners:
  """Owners of a set of examples: a phrase, and their ids, empty if the examples have none."""

  text: str
  ids: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class TaskData:
  """A task's data and their owners.

  Attributes:
    clients: The examples of each client.
    test: Test set, or the validation set in its place.
    public: Examples on the server, which no client has; None if none were requested.
    source: One sentence on the origin of the data, real or synthetic.
    client_ids: Ids of the clients, in the order of `clients`.
    test_owners: Owners of `test`; None if unknown, which counts as the clients.
    public_owners: Owners of `public`; None if unknown, or without public examples.
    has_validation: Whether `test` is a validation set.
    even: Whether clients are a cut of a pool of examples into equal sizes, which follow from public
      numbers. If not, sizes are exact functions of people's data.
    split_digest: Digest of who is set aside and of the cut of a pool, but not of clients' data: two
      runs on one data set have the same clients if their digests are equal. None if unknown.
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

  def __post_init__(self):
    owners = (self.test_owners, self.public_owners)
    if any(o and o.ids for o in owners) and len(self.client_ids) != len(self.clients):
      raise errors.InputError(
          f'`client_ids` must name all {len(self.clients)} clients, so that owners can be compared'
          f' with them. Found {len(self.client_ids)}.'
      )

  @property
  def test_outside_guarantee(self) -> bool:
    """Whether `test` has examples of clients: its accuracy is then OUTSIDE (epsilon, delta)."""
    return self.test_owners is None or not self.test_owners.ids.isdisjoint(self.client_ids)

  def rows(self) -> list[tuple[str, str]]:
    """Describes the data and their owners, a name and a line per set.

    The number of clients is the only number here that follows from people's data.
    """
    clients = f'{self.source}; {len(self.clients):,} clients'
    if self.even:
      sizes = [len(x) for x, _ in self.clients]
      clients += f' with {min(sizes)} to {max(sizes)} examples each'
    name = 'validation' if self.has_validation else 'test set'
    num_test = '' if self.test_outside_guarantee else f'{len(self.test[0]):,} examples '
    rows = [('data', clients), (name, num_test + self._test_text())]
    if self.public is not None:
      rows.append(('public set', f'{len(self.public[0]):,} examples {self._public_text()}'))
    return rows

  def as_dict(self) -> dict[str, Any]:
    """Returns the entries of config.json on the data and their owners."""
    return {
        'data_source': self.source,
        'test_owners': self._test_text(),
        'test_outside_guarantee': self.test_outside_guarantee,
        'public_owners': None if self.public is None else self._public_text(),
        'public_digest': self.public_digest(),
        'split_digest': self.split_digest,
    }

  def public_digest(self) -> Optional[str]:
    """Returns a digest of the public examples, without a key; None without them."""
    return None if self.public is None else digest_of_examples([self.public], 16)

  def _test_text(self) -> str:
    text = _UNKNOWN if self.test_owners is None else self.test_owners.text
    return text + (', OUTSIDE (epsilon, delta)' if self.test_outside_guarantee else '')

  def _public_text(self) -> str:
    return _UNKNOWN if self.public_owners is None else self.public_owners.text


@dataclasses.dataclass(frozen=True)
class Defaults:
  """Default values of the flags of `tasks.run`, by the flags' names, and constants.

  They protect the clients in the data and train a useful model, with one of `epsilon` and
  `noise_multiplier`; the paper's settings are in tasks/experiments/paper/TASK.flags.

  Attributes:
    algorithm: The built-in method that runs without --algorithm.
    by_method: Values that replace the others' for a method: by --algorithm's value, then by flag.
    learning_rate_decay: Factor on the clients' learning rate every `learning_rate_decay_rounds`.
    paper_population: Population of the paper's accountant, for the column `epsilon_paper` alone;
      None: the number of clients in the data.
  """

  rounds: int
  clients_per_round: int
  clip: float
  learning_rate: float
  algorithm: str = 'fedsmp_topk'
  epsilon: Optional[float] = None
  noise_multiplier: Optional[float] = None
  p: float = 0.05
  momentum: float = 0.0
  batch_size: int = 10
  local_epochs: int = 1
  max_client_examples: Optional[int] = None
  server_learning_rate: float = 1.0
  server_learning_rate_schedule: str = 'constant'
  warm_start: str = 'none'
  trainable: str = 'all'
  public_examples: int = 1000
  learning_rate_decay: float = 1.0
  learning_rate_decay_rounds: int = 1
  paper_population: Optional[int] = None
  by_method: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

  def for_method(self, algorithm: Optional[str]) -> Defaults:
    """Returns the defaults of a value of --algorithm, with what `by_method` has for it."""
    return dataclasses.replace(self, **self.by_method.get(algorithm, {}))

  def state(self, flag: str) -> str:
    """Returns a flag's default and those of methods, as '8.0 (fedsmp_randk 30.0)'; '' for None."""
    others = ', '.join(f'{name} {own[flag]}' for name, own in self.by_method.items() if flag in own)
    value = getattr(self, flag)
    return ' '.join([f'{value}'] * (value is not None) + [f'({others})'] * bool(others))


class Split(NamedTuple):
  """A request for a task's data.

  Attributes:
    seed: Seed of the partition among clients and of the draws among examples set aside.
    num_public: Number of public examples.
    num_validation: Size of the validation set; 0: load the test set.
    directory: Directory of the data; None: the task's own.
  """

  seed: int
  num_public: int = 0
  num_validation: int = 0
  directory: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Pretraining:
  """A task's schedule of pre-training, chosen on public data alone.

  The defaults were chosen on 1,000 images of Fashion-MNIST.

  Attributes:
    epochs: Number of epochs, for 1,000 examples or more.
    learning_rate: Peak of Adam's learning rate, which decays to zero.
    average_decay: Decay per step of the exponential moving average of the weights, which is the
      result, in [0, 1); 0: the last weights.
    temperature: Divisor of the trained last layer, positive.
  """

  epochs: int = 8
  learning_rate: float = 0.006
  batch_size: int = 32
  average_decay: float = 0.98
  temperature: float = 1.5

  def for_examples(self, num: int) -> Pretraining:
    """Returns the schedule for `num` examples: fewer than 1,000 take about as many steps.

    The epochs are at most ten times as many.
    """
    return dataclasses.replace(self, epochs=round(self.epochs * min(10, max(1, 1000 / num))))

  def text(self) -> str:
    """Describes the schedule, as a phrase."""
    return (
        f'Adam, {self.epochs} epochs, peak learning rate {self.learning_rate:g},'
        f' temperature {self.temperature:g}'
    )


@dataclasses.dataclass(frozen=True)
class Task:
  """A task: data cut into clients, and a model.

  Attributes:
    name: Value of --task, unless the value is a module; prefix of the task's own flags.
    load: Loads the data, from (own options, split). Raises `InputError` if it can't.
    build_model: Returns the model, from (own options, initializer of its weights).
    options: Dataclass of the task's own options (`tasks.cli.options`), each the flag --NAME_OPTION.
    padding: Label of padding; None without padding.
    padding_counts: Returns, from the own options, whether padding counts as a label to predict.
    show: Returns a text about a model with trained initial weights, from it and the test examples;
      not called if the guarantee does not cover these.
  """

  name: str
  title: str
  defaults: Defaults
  load: Callable[[Any, Split], TaskData]
  build_model: Callable[[Any, initializers.Initializer], tff.learning.models.FunctionalModel]
  options: Optional[type] = None
  padding: Optional[int] = None
  padding_counts: Callable[[Any], bool] = lambda own: False
  pretraining: Pretraining = Pretraining()
  show: Optional[Callable[[tff.learning.models.FunctionalModel, Examples], str]] = None

  def is_scored(self, own: Any, labels: tf.Tensor) -> tf.Tensor:
    """Returns which labels count for loss and accuracy, bool of their shape."""
    import tensorflow as tf  # pylint: disable=g-import-not-at-top

    if self.padding is None or self.padding_counts(own):
      return tf.ones_like(labels, tf.bool)
    # In TFF's graphs `!=` compares tensors by identity and returns one bool for all labels.
    return tf.not_equal(labels, self.padding)


def cut_pool(
    pool: Examples, test: Examples, num_clients: int, source: str, split: Split,
    dirichlet: Optional[float] = None,
) -> TaskData:
  """Cuts a pool of examples without owners into synthetic clients of equal size.

  Public and validation examples leave the pool before it is cut: no client has them, and they are
  the same for any `dirichlet`.

  Args:
    pool: Examples for clients, public and validation set. The seed of `split` shuffles them.
    test: Examples of the test set.
    num_clients: Number of clients, whose sizes differ by at most one.
    source: One sentence on the origin of the data.
    split: Seed, and sizes of the public and the validation set.
    dirichlet: Concentration of the clients' labels (`label_skew.split`); None: an even cut.

  Raises:
    InputError: If the pool has too few examples.
  """
  x, y = pool
  num_public, num_validation = split.num_public, split.num_validation
  if num_public + num_validation >= len(x):
    sizes = {'public_examples': num_public, 'validation_examples': num_validation}
    flags = ' '.join(f'--{name}={num}' for name, num in sizes.items() if num)
    raise errors.InputError(
        f'{flags} would take all of the {len(x)} training examples. Use a smaller number.'
    )
  rng = np.random.default_rng(split.seed)
  order = rng.permutation(len(x))
  public, validation, rest = np.split(order, [num_public, num_public + num_validation])
  text = 'without owners, taken out of the pool before it is cut into clients'
  if num_validation:
    source = f'{source}; {num_validation:,} of them for VALIDATION in place of the test set'
    test, test_owners = (x[validation], y[validation]), Owners(text)
  else:
    test_owners = Owners('without owners, the test part of the data set')
  cut = (num_clients, num_public, num_validation)
  if dirichlet is None:
    clients = split_evenly(x[rest], y[rest], num_clients)
  else:
    source = f'{source}; labels of clients skewed by Dirichlet({dirichlet:g})'
    parts = label_skew.split(y[rest], num_clients, dirichlet, rng)
    clients = [(x[rest[part]], y[rest[part]]) for part in parts]
    cut = (*cut, float(dirichlet))
  return TaskData(
      clients=clients,
      test=test,
      public=(x[public], y[public]) if num_public else None,
      source=source,
      client_ids=tuple(map(str, range(num_clients))),
      test_owners=test_owners,
      public_owners=Owners(text) if num_public else None,
      has_validation=bool(num_validation),
      even=True,
      split_digest=digest_of_split(order.astype(np.int64), *cut),
  )


def digest_of_examples(sets: Iterable[Examples], size: int, key: bytes = b'') -> str:
  """Returns a digest of `size` bytes of arrays, their types and their shapes."""
  digest = hashlib.blake2b(key=key, digest_size=size)
  for array in itertools.chain.from_iterable(sets):
    digest.update(f'{array.dtype}{array.shape}'.encode())
    digest.update(np.ascontiguousarray(array))
  return digest.hexdigest()


def digest_of_split(*parts: Any) -> str:
  """Returns a digest of arrays, and of other values by their `repr`, that determine a split."""
  digest = hashlib.blake2b(digest_size=8)
  for part in parts:
    digest.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
  return digest.hexdigest()


def split_evenly(x: np.ndarray, y: np.ndarray, num_parts: int) -> list[Examples]:
  """Cuts examples, in the given order, into parts whose sizes differ by at most one."""
  return list(zip(np.array_split(x, num_parts), np.array_split(y, num_parts)))


def cnn(
    image_shape: Sequence[int], filters: Sequence[int], dense_units: Sequence[int],
    num_classes: int, moments: Optional[tuple[float, float]] = None,
) -> Callable[[Any, initializers.Initializer], tff.learning.models.FunctionalModel]:
  """Returns a `Task.build_model` for `models.cnn.cnn`; with `moments`, options have `standardize`."""

  def build_model(own, initializer):
    from tasks.models import cnn as cnn_lib  # pylint: disable=g-import-not-at-top

    chosen = moments if moments and own.standardize else None
    return cnn_lib.cnn(image_shape, filters, dense_units, num_classes, initializer, chosen)

  return build_model
