"""A run's settings with everything that follows from them and the data, each made once."""

import dataclasses
import functools
import math
import secrets
from typing import Any, NamedTuple, Optional

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
from tasks.datasets import checks
from tasks.datasets import task as task_lib
from tasks.models import initializers
from tasks.models import split as split_lib
from tasks.training import features
from tasks.training import settings as settings_lib

_Model = tff.learning.models.FunctionalModel
_Weights = tff.learning.models.ModelWeights
_SECRET = ('sampling', 'process')


class Seeds(NamedTuple):
  """One seed per stream, each of 32 bits.

  Attributes:
    partition: Partition of the data among clients, and the public set.
    weights: Initial weights.
    evaluation: Sample of test examples that rounds are evaluated on.
    sampling: Clients of each round; None: the sampler's own entropy.
    process: Masks, the order of examples and the noise; None: fresh entropy.
  """

  partition: int
  weights: int
  evaluation: int
  sampling: Optional[int]
  process: Optional[int]

  def public(self) -> dict[str, int]:
    """Returns the seeds that protect no client, for config.json and for resuming."""
    return {name: seed for name, seed in self._asdict().items() if name not in _SECRET}


def make_seeds(seed: Optional[int], config: Optional[dict[str, Any]]) -> Seeds:
  """Returns the seeds of a run: from `seed`, config.json if it resumes, or fresh entropy."""
  fresh = dict.fromkeys(_SECRET)
  if seed is None and config is not None:
    return Seeds(**config['seeds'], **fresh)
  sequence = np.random.SeedSequence(secrets.randbits(128) if seed is None else seed)
  words = map(int, sequence.generate_state(5, np.uint32))
  partition, weights, sampling, process, evaluation = words
  seeds = Seeds(partition, weights, evaluation, sampling, process)
  return seeds if seed is not None else seeds._replace(**fresh)


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
    choice_rounds: Rounds of `tasks.tune` before the run, which epsilon includes.
  """

  settings: settings_lib.RunSettings
  seeds: Seeds
  data: task_lib.TaskData
  examples: task_lib.TaskData
  task_model: _Model
  model: _Model
  aggregator: fedsmp_tff.FedSmpFactory
  round: round_lib.FedSmpRound
  spec: fedsmp_tff.PrivacySpec
  body: Optional[split_lib.FrozenBody] = None
  choice_rounds: int = 0

  @classmethod
  def build(
      cls, settings: settings_lib.RunSettings, seeds: Seeds, data_dir: Optional[str] = None,
      sigma: Optional[float] = None,
  ) -> 'Experiment':
    """Loads the data, by default from the task's own directory, and makes the rest.

    A run that resumes keeps its `sigma`: with other versions a search may end at another digit.

    Raises:
      ArgumentError, InputError: If a setting does not fit the model or the data, the data do not
        fit the model, or data are missing.
    """
    task = datasets.TASKS[settings.task]
    initializer = initializers.INITIALIZERS[settings.initializer](seeds.weights)
    task_model = task.build_model(settings.task_options, initializer)
    checks.check_spec(settings.task, task_model.input_spec)
    model = _trained_model(settings, task_model)
    split = task_lib.Split(
        seeds.partition, settings.public_examples or 0, settings.validation_examples or 0, data_dir
    )
    data = task.load(settings.task_options, split)
    num_classes = getattr(task_model, 'num_classes', None)
    checks.check_data(settings.task, data, task_model.input_spec, num_classes, task.padding)
    _check_public(settings, data)
    aggregator, steps, spec = _rounds(settings, model, data, sigma)
    return cls(settings, seeds, data, data, task_model, model, aggregator, steps, spec)

  def with_initial_weights(self, weights: _Weights) -> 'Experiment':
    """Returns the run with other initial weights."""
    return dataclasses.replace(self, model=with_weights(self.model, weights))

  def with_body(self, body: split_lib.FrozenBody) -> 'Experiment':
    """Returns the run on the features of a frozen body."""
    examples = features.of_data(self.data, body, self.task_model.input_spec[0])
    return dataclasses.replace(self, examples=examples, body=body).with_settings(self.settings)

  def with_settings(self, settings: settings_lib.RunSettings) -> 'Experiment':
    """Returns the run with other settings of its rounds, on the same data, weights and sigma."""
    aggregator, steps, spec = _rounds(
        settings, self.model, self.examples, self.spec.noise_multiplier
    )
    return dataclasses.replace(
        self, settings=settings, aggregator=aggregator, round=steps, spec=spec
    )

  def process(self) -> tff.learning.templates.LearningProcess:
    """Builds the learning process."""
    return fedsmp_tff.build_fed_smp(
        self.model, self.local_training(), self.aggregator,
        server_optimizer=_server_optimizer(self.settings), seed=self.seeds.process,
    )

  def local_training(self) -> fedsmp_tff.LocalTraining:
    """Returns the clients' training in a round."""
    s = self.settings
    return fedsmp_tff.LocalTraining(
        tff.learning.optimizers.build_sgdm(s.learning_rate, s.momentum), s.batch_size,
        epochs=s.local_epochs,
        max_examples=s.max_client_examples,
        learning_rate_fn=lambda round_num: s.learning_rate * _decay(s, round_num),
    )

  def client_data(self) -> features.ClientData:
    """Returns the datasets of participants."""
    return features.ClientData(self.examples, tagged=self.settings.seed is not None)

  def is_scored(self, labels: tf.Tensor) -> tf.Tensor:
    """Returns which labels count for loss and accuracy; see `Task.is_scored`."""
    return datasets.TASKS[self.settings.task].is_scored(self.settings.task_options, labels)

  def task_weights(self, weights: _Weights) -> _Weights:
    """Returns the weights of the task's own model, from the weights that rounds trained."""
    return weights if self.body is None else self.body.weights_of(weights)

  def show(self, weights: _Weights) -> Optional[str]:
    """Returns the task's sample of its trained model; None if there is none in the guarantee."""
    show = datasets.TASKS[self.settings.task].show
    if show is None or self.data.test_outside_guarantee:
      return None
    return show(with_weights(self.task_model, weights), self.data.test)

  @property
  def pretraining(self) -> task_lib.Pretraining:
    """The task's schedule of pre-training, for this number of public examples."""
    return datasets.TASKS[self.settings.task].pretraining.for_examples(len(self.data.public[0]))

  @property
  def private(self) -> bool:
    """Whether clients clip and add noise."""
    return self.aggregator.mechanism.private

  @property
  def guarantee_status(self) -> str:
    """Whether epsilon is a guarantee, for every output."""
    if not self.spec.noise_multiplier:
      return 'no guarantee without noise'
    return 'valid' if self.settings.seed is None else 'simulated'

  @property
  def eval_examples(self) -> Optional[int]:
    """Number of random test examples per evaluation; None: all of them, in each evaluation."""
    num = self.settings.eval_examples
    if not num or not self.settings.rounds:  # Without rounds there is one evaluation, on all.
      return None
    # The size of a test set of the clients' own examples is an exact function of them.
    is_all = not self.data.test_outside_guarantee and num >= len(self.data.test[0])
    return None if is_all else num

  @property
  def uplink_bytes(self) -> int:
    """Bytes of a report: its integers, without the number 1 that counts reports (4 bytes)."""
    channel = self.round.channel
    return -(-channel.num_integers * channel.encoding.wire_bits // 8)

  @property
  def downlink_bytes(self) -> int:
    """Bytes that a client receives per round: weights and coordinates."""
    numbers = sum(np.size(w) for w in tf.nest.flatten(self.model.initial_weights))
    numbers += 0 if self.aggregator.sparsifier.keeps_all else self.round.num_kept
    return 4 * numbers

  def uplink_megabytes(self, rounds: int) -> float:
    """Returns the mean MB that a client sends in `rounds` rounds."""
    rounds_per_client = rounds * self.spec.round.mean_clients / self.spec.population
    return self.uplink_bytes * rounds_per_client / 10**6

  @property
  def paper_spec(self) -> fedsmp_tff.PrivacySpec:
    """The specification for the paper's accountant, with the task's `paper_population`."""
    population = datasets.TASKS[self.settings.task].defaults.paper_population
    if population is None:
      return self.spec
    delta = self.settings.delta or spec_lib.default_delta(population)
    return dataclasses.replace(
        self.spec, population=population, delta=delta, num_slots=None, min_reports=None,
        allow_large_delta=True,  # --delta is for the n of the data.
    )

  def epsilons(self, rounds: int) -> dict[str, float]:
    """Returns epsilon after `rounds` rounds, by column; empty without privacy.

    `epsilon` is valid for the data's clients; `epsilon_paper` is the paper's figure.
    """
    if not self.private:
      return {}
    epsilons, charged = {'epsilon': self.epsilon(rounds)}, rounds + self.choice_rounds
    if isinstance(self.spec.noise, mechanism_lib.Gaussian):
      epsilons['epsilon_paper'] = self.paper_spec.epsilon(accountants.PAPER, charged)
    return epsilons

  def epsilon(self, rounds: int) -> float:
    """Returns epsilon after `rounds` rounds."""
    return self.spec.epsilon(rounds=rounds + self.choice_rounds)


def with_weights(model: _Model, weights: _Weights) -> _Model:
  """Returns a model with other initial weights."""
  return _Model(
      initial_weights=(weights.trainable, weights.non_trainable),
      predict_on_batch_fn=tf.function(model.predict_on_batch, autograph=False),
      loss_fn=model.loss,
      input_spec=model.input_spec,
  )


def _rounds(
    settings: settings_lib.RunSettings, model: _Model, data: task_lib.TaskData,
    sigma: float | None,
) -> tuple[fedsmp_tff.FedSmpFactory, round_lib.FedSmpRound, spec_lib.PrivacySpec]:
  """Returns the masked private sum, its steps for the model, sampling and noise; as `build`."""
  sparsifier = settings.method.sparsifier(settings, data)
  shapes = [np.shape(weight) for weight in tf.nest.flatten(model.initial_weights[0])]
  num_kept = sparsifier.num_kept(sum(map(math.prod, shapes)))
  spec = _privacy_spec(settings, len(data.clients), num_kept, sigma)
  quantile = settings.clip_quantile
  adaptive = None if quantile is None else fedsmp_tff.AdaptiveClipping(quantile)
  mechanism = dataclasses.replace(spec.mechanism(), adaptive_clipping=adaptive)
  extrapolate = settings.server_optimizer == settings_lib.FEDEXP
  aggregator = fedsmp_tff.FedSmpFactory(sparsifier, mechanism, extrapolate=extrapolate)
  return aggregator, aggregator.round(shapes), spec


def _trained_model(settings: settings_lib.RunSettings, model: _Model) -> _Model:
  """Returns the part of the task's model that rounds train."""
  if settings.trainable != settings_lib.HEAD:
    return model
  if not isinstance(model, split_lib.SplitModel):
    raise errors.InputError(
        f'--trainable={settings.trainable} needs a model with a known last layer, but'
        f' --task={settings.task} has a {type(model).__name__}. Return a'
        ' tasks.models.split.SplitModel from its `build_model`, or set'
        f' --trainable={settings_lib.ALL}.'
    )
  return model.head()


def _check_public(settings: settings_lib.RunSettings, data: task_lib.TaskData) -> None:
  if settings.public_examples and data.public is None:
    raise errors.InputError(
        f'--task={settings.task} has no public examples. Return `TaskData.public` from its `load`.'
    )
  if (owners := data.public_owners) and (both := owners.ids.intersection(data.client_ids)):
    raise errors.InputError(
        f'--task={settings.task}: {len(both):,} clients also have public examples, which no epsilon'
        ' covers. Remove them from the clients.'
    )


def _privacy_spec(
    settings: settings_lib.RunSettings, num_clients: int, num_kept: int, sigma: float | None = None
) -> spec_lib.PrivacySpec:
  """Returns the specification, from which sampler, noise and epsilon follow.

  Without --clip, clients neither clip nor add noise. A run that resumes has a `sigma`.

  Raises:
    ArgumentError: If a flag is out of range, or no noise reaches --epsilon.
  """
  s = settings
  num_values = num_kept + (s.clip_quantile is not None)  # The vote on C is one more value.
  if s.epsilon is not None and not sigma:
    make = functools.partial(spec_lib.PrivacySpec.for_epsilon, s.epsilon)
  else:
    sigma = s.noise_multiplier or sigma or 0.0
    make = functools.partial(spec_lib.PrivacySpec, noise_multiplier=sigma)
  return make(
      population=num_clients,
      clients_per_round=s.clients_per_round,
      rounds=max(s.rounds, 1),  # Without rounds, any sigma gives epsilon = 0.
      clipping_norm=s.clip,
      delta=spec_lib.default_delta(num_clients) if s.delta is None else s.delta,
      sampling=s.sampling,
      noise=mechanism_lib.make_noise(s.noise, num_values),
  )


def _decay(settings: settings_lib.RunSettings, round_num: tf.Tensor) -> tf.Tensor:
  """Returns the factor on the clients' learning rate in a round."""
  defaults = datasets.TASKS[settings.task].defaults
  decays = tf.cast(round_num // defaults.learning_rate_decay_rounds, tf.float32)
  return defaults.learning_rate_decay**decays


def _server_optimizer(settings: settings_lib.RunSettings) -> tff.learning.optimizers.Optimizer:
  """Returns the optimizer that applies updates to the weights."""
  rate = settings.server_learning_rate or 1.0  # FedExP's step is in the mean.
  optimizer = tff.learning.optimizers.build_sgdm(rate)
  if settings.server_learning_rate_schedule == settings_lib.CONSTANT:
    return optimizer
  return tff.learning.optimizers.schedule_learning_rate(
      optimizer, lambda round_num: rate * (1 - tf.cast(round_num, tf.float32) / settings.rounds)
  )
