"""A run's settings with everything that follows from them and the data, each made once."""

import dataclasses
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.mechanism import round as round_lib
from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import spec as spec_lib
from tasks import datasets
from tasks import errors
from tasks.cli import settings as settings_lib
from tasks.datasets import task as task_lib
from tasks.models import split as split_lib
from tasks.training import builders
from tasks.training import features

_Model = tff.learning.models.FunctionalModel
_Weights = tff.learning.models.ModelWeights


@dataclasses.dataclass(frozen=True)
class Experiment:
  """The facts of a run, from which its plan, its process and its files are made.

  Attributes:
    settings: The run's settings.
    seeds: The run's seeds.
    data: The data.
    examples: The data that rounds and evaluations use: `data`, or with --trainable=head its
      features, once there is a body.
    task_model: The task's own model.
    model: The model that rounds train, with the run's initial weights: the task's or its last
      layer.
    aggregator: The masked private sum.
    round: Its steps for the model.
    spec: The sampling and the noise, and their guarantee for the data's clients.
    body: The frozen body of --trainable=head; None before pre-training, and without it.
  """

  settings: settings_lib.RunSettings
  seeds: builders.Seeds
  data: task_lib.TaskData
  examples: task_lib.TaskData
  task_model: _Model
  model: _Model
  aggregator: fedsmp_tff.FedSmpFactory
  round: round_lib.FedSmpRound
  spec: fedsmp_tff.PrivacySpec
  body: Optional[split_lib.FrozenBody] = None

  @classmethod
  def build(
      cls, settings: settings_lib.RunSettings, seeds: builders.Seeds, data_dir: Optional[str] = None
  ) -> 'Experiment':
    """Loads the data, by default from the task's own directory, and makes the rest.

    Raises:
      InputError: If a setting does not fit the model or the data, or data are missing.
    """
    task = datasets.TASKS[settings.task]
    if task.num_clients is not None:
      _check_clients(settings, task.num_clients)
    task_model = builders.model(settings, seeds)
    model = builders.trained_model(settings, task_model)
    shapes = [np.shape(w) for w in tf.nest.flatten(model.initial_weights[0])]
    num_kept = builders.num_kept(settings, sum(int(np.prod(shape)) for shape in shapes))
    spec = None
    if task.num_clients is not None:
      spec = builders.privacy_spec(settings, task.num_clients, num_kept)
    split = task_lib.Split(
        seeds.partition, settings.public_examples or 0, settings.validation_examples or 0, data_dir
    )
    data = task.load(settings.task_options, split)
    _check_clients(settings, len(data.clients))
    _check_public(settings, data)
    spec = spec or builders.privacy_spec(settings, len(data.clients), num_kept)
    aggregator = fedsmp_tff.FedSmpFactory(
        settings.system.sparsifier(settings, data), builders.mechanism(settings, spec)
    )
    return cls(
        settings, seeds, data, data, task_model, model, aggregator, aggregator.round(shapes), spec
    )

  def with_initial_weights(self, weights: _Weights) -> 'Experiment':
    """Returns the run with other initial weights."""
    return dataclasses.replace(self, model=with_weights(self.model, weights))

  def with_body(self, body: split_lib.FrozenBody) -> 'Experiment':
    """Returns the run on the features of a frozen body."""
    examples = features.of_data(self.data, body, self.task_model.input_spec[0])
    aggregator = fedsmp_tff.FedSmpFactory(
        self.settings.system.sparsifier(self.settings, examples), self.aggregator.mechanism
    )
    return dataclasses.replace(self, examples=examples, aggregator=aggregator, body=body)

  def process(self) -> tff.learning.templates.LearningProcess:
    """Builds the learning process."""
    return fedsmp_tff.build_fed_smp(
        self.model, builders.local_training(self.settings), self.aggregator,
        server_optimizer=builders.server_optimizer(self.settings), seed=self.seeds.process,
    )

  def client_data(self) -> features.ClientData:
    """Returns the datasets of participants."""
    return features.ClientData(
        self.examples, tagged=self.settings.seed is not None, at_once=self.body is not None
    )

  def is_scored(self, labels: tf.Tensor) -> tf.Tensor:
    """Returns which labels count for loss and accuracy; see `Task.is_scored`."""
    return datasets.TASKS[self.settings.task].is_scored(self.settings.task_options, labels)

  def task_weights(self, weights: _Weights) -> _Weights:
    """Returns the weights of the task's own model, from the weights that rounds trained."""
    return weights if self.body is None else self.body.weights_of(weights)

  def show(self, weights: _Weights) -> Optional[str]:
    """Returns the task's samples of its trained model; None without any within the guarantee."""
    show = datasets.TASKS[self.settings.task].show
    if show is None or self.data.test_outside_guarantee:
      return None
    return show(with_weights(self.task_model, weights), self.data.test)

  @property
  def private(self) -> bool:
    """Whether clients clip, and add noise."""
    return self.aggregator.mechanism.private

  @property
  def randomness(self) -> str:
    """Source of the noise, for every output."""
    if self.settings.seed is None:
      return 'the operating system\'s, fresh for every client and round'
    return (
        f'SIMULATION: --seed={self.settings.seed} makes the noise reproducible, so ANYONE'
        ' WHO KNOWS THE SEED CAN REMOVE IT'
    )

  @property
  def guarantee_status(self) -> str:
    """Whether epsilon is a guarantee, for every output."""
    return 'valid' if self.settings.seed is None else 'simulated'

  @property
  def eval_examples(self) -> Optional[int]:
    """Number of random test examples per evaluation before the last; None: all of them."""
    num = self.settings.eval_examples
    # The size of a test set of the clients' own examples is an exact function of them.
    is_all = not num or (not self.data.test_outside_guarantee and num >= len(self.data.test[0]))
    return None if is_all else num

  @property
  def uplink_bytes(self) -> int:
    """Bytes of a report: its integers, without its counts (4 to 20 bytes)."""
    channel = self.round.channel
    return -(-channel.num_integers * channel.wire_bits // 8)

  @property
  def downlink_bytes(self) -> int:
    """Bytes that a client receives per round: weights and coordinates."""
    numbers = sum(np.size(w) for w in tf.nest.flatten(self.model.initial_weights))
    numbers += 0 if self.aggregator.sparsifier.keeps_all else self.round.num_kept
    return 4 * numbers

  @property
  def body_bytes(self) -> int:
    """Bytes of the frozen body and its whitening, which a client receives once."""
    if self.settings.trainable != settings_lib.HEAD:
      return 0
    *body, kernel, _ = self.task_model.initial_weights[0]
    return 4 * (sum(map(np.size, body)) + len(kernel) * (len(kernel) + 1))

  def uplink_megabytes(self, rounds: int) -> float:
    """Returns the mean MB that a client sends in `rounds` rounds."""
    rounds_per_client = rounds * self.settings.clients_per_round / self.spec.population
    return self.uplink_bytes * rounds_per_client / 10**6

  @property
  def paper_spec(self) -> fedsmp_tff.PrivacySpec:
    """The specification for the paper's accountant, with the task's `paper_population`."""
    population = datasets.TASKS[self.settings.task].defaults.paper_population
    if population is None:
      return self.spec
    delta = self.settings.delta or spec_lib.default_delta(population)
    return dataclasses.replace(
        self.spec, population=population, delta=delta, num_slots=None, min_reports=None
    )

  def epsilons(self, rounds: int) -> dict[str, float]:
    """Returns epsilon after `rounds` rounds, by column; empty without privacy.

    `epsilon` is valid for the data's clients; `epsilon_paper` is the paper's figure.
    """
    if not self.private:
      return {}
    epsilons = {'epsilon': self.spec.epsilon(rounds=rounds)}
    if self.spec.noise == mechanism_lib.GAUSSIAN:
      epsilons['epsilon_paper'] = self.paper_spec.epsilon(accountants.PAPER, rounds)
    return epsilons

  def as_dict(self) -> dict[str, Any]:
    """Returns the content of config.json besides the settings."""
    channel = self.round.channel
    epsilons = self.epsilons(self.settings.rounds)
    return {
        'dim': self.round.dim,
        'num_kept': self.round.num_kept,
        'num_clients': self.spec.population,
        **self.data.as_dict(),
        'sampled': self.eval_examples is not None,
        'bits': channel.bits,
        'encoding_step': channel.step,
        'value_bound': channel.value_bound,
        'privacy': dataclasses.asdict(self.spec) if self.private else None,
        'randomness': self.randomness,
        'guarantee_status': self.guarantee_status if self.private else None,
        **{f'{name}_after_all_rounds': value for name, value in epsilons.items()},
    }


def with_weights(model: _Model, weights: _Weights) -> _Model:
  """Returns a model with other initial weights."""
  return _Model(
      initial_weights=(weights.trainable, weights.non_trainable),
      predict_on_batch_fn=tf.function(model.predict_on_batch, autograph=False),
      loss_fn=model.loss,
      input_spec=model.input_spec,
  )


def _check_public(settings: settings_lib.RunSettings, data: task_lib.TaskData) -> None:
  owners = data.public_owners
  if owners is not None and (both := owners.ids.intersection(data.client_ids)):
    raise errors.InputError(
        f'--task={settings.task}: {len(both):,} clients have public examples too, which no epsilon'
        ' covers; leave them out of the clients.'
    )


def _check_clients(settings: settings_lib.RunSettings, num_clients: int) -> None:
  if settings.clients_per_round > num_clients:
    raise errors.InputError(
        f'--clients_per_round={settings.clients_per_round} is more than the'
        f' {num_clients} clients in the data; lower it.'
    )
