"""A run's settings with everything that follows from them and the data, each made once."""

import dataclasses
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import fed_smp
from fedsmp_tff.mechanism import noise as noise_lib
from fedsmp_tff.privacy import spec as spec_lib
from tasks import datasets
from tasks import errors
from tasks.config import settings as settings_lib
from tasks.datasets import task as task_lib
from tasks.models import whitening
from tasks.training import builders
from tasks.training import seeds as seeds_lib


@dataclasses.dataclass(frozen=True)
class Experiment:
  """The facts of a run, from which its plan, its process and its files are made.

  Attributes:
    settings: The run's settings.
    seeds: The run's seeds.
    data: The data.
    model: The model, with the run's initial weights.
    plain_model: The task's own model, of which `model` is another choice of coordinates with --whiten.
    aggregator: The masked private sum.
    round: Its steps for the model.
    spec: What is sampled and added, and what that guarantees for the data's clients.
  """

  settings: settings_lib.RunSettings
  seeds: seeds_lib.Seeds
  data: task_lib.TaskData
  model: tff.learning.models.FunctionalModel
  plain_model: tff.learning.models.FunctionalModel
  aggregator: fedsmp_tff.FedSmpFactory
  round: fed_smp.FedSmpRound
  spec: fedsmp_tff.PrivacySpec

  @classmethod
  def build(
      cls,
      settings: settings_lib.RunSettings,
      seeds: seeds_lib.Seeds,
  ) -> 'Experiment':
    """Loads the data and makes the rest; what can be checked before the data is.

    Args:
      settings: The run's settings.
      seeds: The run's seeds.

    Raises:
      InputError: If a setting does not fit the model or the data, or data are missing.
    """
    task = datasets.TASKS[settings.task]
    _check_clients(settings, task.num_clients())
    plain = builders.model(settings, seeds)
    model = builders.in_coordinates(settings, plain)
    shapes = [np.shape(w) for w in tf.nest.flatten(model.initial_weights[0])]
    sizes = [int(np.prod(shape)) for shape in shapes]
    num_kept = builders.num_kept(settings, sizes)
    spec = None
    if task.num_clients() is not None:
      spec = builders.privacy_spec(settings, task.num_clients(), num_kept)
    data = task.load(
        seeds.partition, settings.public_examples or 0, settings.held_out or 0
    )
    _check_clients(settings, len(data.clients))
    _check_public(settings, data)
    spec = spec or builders.privacy_spec(settings, len(data.clients), num_kept)
    aggregator = builders.aggregator(
        settings, spec, builders.sparsifier(settings, data, num_kept)
    )
    return cls(settings, seeds, data, model, plain, aggregator, aggregator.round(shapes), spec)

  @property
  def private(self) -> bool:
    """Whether clients clip, and add noise."""
    return self.aggregator.mechanism.private

  @property
  def dim(self) -> int:
    """d."""
    return self.round.dim

  @property
  def num_clients(self) -> int:
    """n of the data."""
    return len(self.data.clients)

  @property
  def eval_examples(self) -> Optional[int]:
    """Random test examples in a measurement before the last; None: all of them."""
    num = self.settings.eval_examples
    # The size of a test set of the clients' own examples follows from them.
    is_all = not num or (not self.data.test_outside_guarantee and num >= len(self.data.test[0]))
    return None if is_all else num

  @property
  def uplink_bytes(self) -> int:
    """The bytes of a report: its integers, without its counts (4 to 20 bytes)."""
    return -(-self.round.channel.num_integers * self.round.channel.wire_bits // 8)

  @property
  def downlink_bytes(self) -> int:
    """The bytes that a client receives in a round: weights and coordinates."""
    numbers = sum(np.size(w) for w in tf.nest.flatten(self.model.initial_weights))
    numbers += self.aggregator.sparsifier.num_coordinates(self.dim)
    return 4 * numbers

  @property
  def randomness(self) -> str:
    """Describes the source of the noise, for every output."""
    if self.settings.seed is not None:
      return (
          f'SIMULATION: --seed={self.settings.seed} makes the noise reproducible, so ANYONE'
          ' WHO KNOWS THE SEED CAN REMOVE IT'
      )
    return 'the operating system\'s, fresh for every client and round'

  @property
  def verdict(self) -> str:
    """Whether epsilon is a guarantee, for every output."""
    return 'valid' if self.settings.seed is None else 'would be valid with fresh noise'

  def with_initial_weights(
      self, weights: tff.learning.models.ModelWeights
  ) -> 'Experiment':
    """Returns the run with other initial weights."""
    return dataclasses.replace(self, model=with_weights(self.model, weights))

  def plain_weights(
      self, weights: tff.learning.models.ModelWeights
  ) -> tff.learning.models.ModelWeights:
    """Returns weights of rounds as those of the task's own model."""
    return weights if self.settings.whiten is None else whitening.plain(weights)

  def process(self) -> tff.learning.templates.LearningProcess:
    """Builds the learning process."""
    return fedsmp_tff.build_fed_smp(
        self.model,
        builders.local_training(self.settings),
        self.aggregator,
        server_optimizer=builders.server_optimizer(self.settings),
        seed=self.seeds.process,
    )

  def uplink_megabytes(self, rounds: int) -> float:
    """Returns the MB that a client sends in so many rounds, on average."""
    share = rounds * self.settings.clients_per_round / self.num_clients
    return self.uplink_bytes * share / 10**6

  def epsilons(self, rounds: int) -> dict[str, float]:
    """Returns epsilon after so many rounds, by column; empty without privacy.

    `epsilon` is valid for the data's clients; `epsilon_paper` is the paper's figure.
    """
    if not self.private:
      return {}
    found = {'epsilon': self.spec.epsilon(rounds=rounds)}
    if self.spec.noise == noise_lib.GAUSSIAN:
      found['epsilon_paper'] = self.paper_spec.epsilon('paper', rounds)
    return found

  @property
  def paper_spec(self) -> fedsmp_tff.PrivacySpec:
    """The specification that the paper's accounting is about: of the task's `paper_population`."""
    paper = datasets.TASKS[self.settings.task].settings
    if paper.population is None:
      return self.spec
    delta = self.settings.delta or spec_lib.default_delta(paper.population)
    return dataclasses.replace(
        self.spec, population=paper.population, delta=delta, seats=None, min_reporting=None
    )

  def as_dict(self) -> dict[str, Any]:
    """Returns what config.json has beside the settings."""
    channel = self.round.channel
    epsilons = self.epsilons(self.settings.rounds)
    return {
        'dim': self.dim,
        'num_kept': self.round.num_kept,
        'num_clients': self.num_clients,
        **self.data.as_dict(),
        'sampled': self.eval_examples is not None,
        'bits': channel.bits,
        'encoding_step': channel.step,
        'value_bound': channel.value_bound,
        'privacy': dataclasses.asdict(self.spec) if self.private else None,
        'randomness': self.randomness,
        'verdict': self.verdict if self.private else None,
        **{f'{name}_after_all_rounds': value for name, value in epsilons.items()},
    }


def with_weights(
    model: tff.learning.models.FunctionalModel, weights: tff.learning.models.ModelWeights
) -> tff.learning.models.FunctionalModel:
  """Returns a model with other initial weights."""
  return tff.learning.models.FunctionalModel(
      initial_weights=(weights.trainable, weights.non_trainable),
      predict_on_batch_fn=tf.function(model.predict_on_batch, autograph=False),
      loss_fn=model.loss,
      input_spec=model.input_spec,
  )


def _check_public(settings: settings_lib.RunSettings, data: task_lib.TaskData) -> None:
  if data.public_owners is None:
    return
  if both := data.public_owners.ids.intersection(data.client_ids):
    raise errors.InputError(
        f'--task={settings.task}: {len(both):,} clients have public examples too, which no epsilon'
        ' covers; leave them out of the clients.'
    )


def _check_clients(settings: settings_lib.RunSettings, num_clients: Optional[int]) -> None:
  if num_clients is not None and settings.clients_per_round > num_clients:
    raise errors.InputError(
        f'--clients_per_round={settings.clients_per_round} is more than the'
        f' {num_clients} clients in the data; lower it.'
    )
