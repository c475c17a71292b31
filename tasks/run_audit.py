"""The audit of a whole run, `python -m tasks.audit --run`: canary clients among the run's own.

Some of the n clients are canaries. In each round the run's own sampler draws the cohort. For each
canary in it a coin decides whether it is inserted, with an update far above C at a coordinate of
its own, or left out, without examples. Local training alone is replaced, for canaries alone: mask,
scale, clip, noise, encoding, secure sum, server and schedule are those of `tasks.run`.

The auditor sees the weights after every round, as anyone may, and also knows what the other clients
add, against which the guarantee protects as well. A second process without noise computes that, so
that an audit takes twice the time of the run.
"""

import dataclasses
import functools
import math
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

import fedsmp_tff
from fedsmp_tff import cohorts
from fedsmp_tff import flattening
from fedsmp_tff import local_training
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import auditing
from tasks import datasets
from tasks import errors
from tasks.cli import command
from tasks.training import experiment as experiment_lib
from tasks.training import plan
from tasks.training import pretraining
from tasks.training import runtime_flags as runtime_flags_lib
from tasks.training import settings as settings_lib

# The update of a canary, in units of C before the scale and the clip: clipped at any scale.
_LENGTH = 1e3
# Labels of a canary are this minus its coordinate; those of examples are at least 0.
_FIRST_LABEL = -2
# Values of a round that are compared with other rounds', at most.
_MAX_VALUES = 4096
_COINS = 65  # Separates the coins from all else that a seed makes.


@dataclasses.dataclass(frozen=True)
class CanaryTraining(fedsmp_tff.LocalTraining):
  """Local training in which a client with a canary's labels sends the canary's update.

  Attributes:
    length: The update's value at the canary's coordinate; all others are zero.
  """

  length: float = dataclasses.field(kw_only=True)

  def train(
      self, model: Any, weights: Any, examples: Any, hparams: Any, seed: tf.Tensor
  ) -> Any:
    """See `LocalTraining.train`."""
    _, labels = local_training.x_and_y(examples)
    label = tf.reduce_min(labels)  # Without examples, the largest number.
    tensors = tf.nest.flatten(weights.trainable)
    sizes = flattening.sizes([tensor.shape for tensor in tensors])

    def canary():
      update = tf.one_hot(_FIRST_LABEL - label, sum(sizes), tf.constant(self.length, tf.float32), 0.0)
      parts = [
          tf.cast(tf.reshape(part, tensor.shape), tensor.dtype)
          for part, tensor in zip(tf.split(update, sizes), tensors)
      ]
      return tf.nest.pack_sequence_as(weights.trainable, parts)

    train = super().train
    return tf.cond(
        label <= _FIRST_LABEL, canary, lambda: train(model, weights, examples, hparams, seed)
    )


class CanaryExperiment(experiment_lib.Experiment):
  """A run some of whose clients may be canaries."""

  def local_training(self) -> CanaryTraining:
    """See `Experiment.local_training`."""
    training, length = super().local_training(), _LENGTH * self.settings.clip
    fields = {f.name: getattr(training, f.name) for f in dataclasses.fields(training)}
    return CanaryTraining(**fields, length=length)

  @property
  def guarantee_status(self) -> str:
    """Simulated: the result of an audit is an exact function of clients' data."""
    return 'simulated'

  def without_noise(self) -> 'CanaryExperiment':
    """Returns the run whose releases are what clients add; its state is that of this run."""
    mechanism = dataclasses.replace(
        self.aggregator.mechanism, noise_multiplier=0.0, noise=mechanism_lib.Gaussian(),
        adaptive_clipping=None,  # The state has the round's C.
    )
    aggregator = fedsmp_tff.FedSmpFactory(self.aggregator.sparsifier, mechanism)
    return dataclasses.replace(self, aggregator=aggregator)


def build(
    settings: settings_lib.RunSettings, data_dir: Optional[str], num_canaries: int
) -> CanaryExperiment:
  """Returns the run to audit, not yet pre-trained.

  Raises:
    InputError: If the run adds no noise, has fewer clients, or has labels that canaries cannot use.
  """
  s, task = settings, datasets.TASKS[settings.task]
  if not s.rounds or not s.method.private or s.noise_multiplier == 0:
    raise errors.InputError(
        f'--run audits rounds with noise, but --algorithm={s.algorithm} with --rounds={s.rounds} has'
        ' none. Set another --algorithm, at least one round, and noise above 0.'
    )
  experiment = CanaryExperiment.build(s, experiment_lib.make_seeds(s.seed, None), data_dir)
  if num_canaries > experiment.spec.population:
    raise errors.InputError(
        f'--canaries={num_canaries} must be at most the number of clients,'
        f' {experiment.spec.population:,}. Set fewer.'
    )
  labels = experiment.task_model.input_spec[1].dtype
  if labels not in (tf.int32, tf.int64) or (task.padding or 0) < 0:
    raise errors.InputError(
        f'--task={s.task}: --run marks canaries by labels below 0, which must be of type int32 or'
        f' int64 and not padding. Found {labels.name}, padding {task.padding}. Change the labels in'
        ' `load`.'
    )
  return experiment


def record(experiment: CanaryExperiment, num_canaries: int) -> auditing.RunRecord:
  """Runs all rounds, and returns what the auditor knows of them."""
  s, spec = experiment.settings, experiment.spec
  # Not the run's seeds: coins must be independent of its noise and its cohorts.
  rng = np.random.default_rng(None if s.seed is None else [s.seed, _COINS])
  is_canary = np.isin(np.arange(spec.population), rng.permutation(spec.population)[:num_canaries])
  process, quiet = experiment.process(), experiment.without_noise().process()
  sampler, clients = spec.sampler(experiment.seeds.sampling), experiment.client_data()
  state, rounds = process.initialize(), []
  for round_num in tqdm.trange(s.rounds, desc='rounds with canaries', disable=None):
    participants = sampler.sample(round_num)
    sampled = participants[participants >= 0]
    mask = np.asarray(state.aggregator.coordinates)
    mask = mask if mask.size else np.arange(experiment.round.dim)
    drawn = rng.permutation(sampled[is_canary[sampled]])[: len(mask)]
    places, coins = rng.permutation(mask)[: len(drawn)], rng.random(len(drawn)) < 0.5
    inserted = dict(zip(drawn[coins].tolist(), places[coins].tolist()))

    def data(client, inserted=inserted):
      is_real = client < 0 or not is_canary[client]
      return clients(client) if is_real else _dataset(experiment, client, inserted.get(client))

    others = cohorts.cohort(participants, functools.partial(data, inserted={}))
    known, _ = _release(quiet, state, others, spec)
    released, state = _release(process, state, cohorts.cohort(participants, data), spec)
    sums, cohort = released - known, np.isin(np.arange(spec.population), sampled)
    rounds.append((sums[places], coins, sums[mask[:_MAX_VALUES]], cohort))
  scores, coins, values, all_cohorts = zip(*rounds)
  return auditing.RunRecord(
      np.concatenate(scores), np.concatenate(coins), np.stack(values), np.stack(all_cohorts)
  )


def _dataset(experiment: CanaryExperiment, client: int, place: Optional[int]) -> Any:
  """Returns a canary's dataset: one example whose labels name its place; none without a place."""
  num = 0 if place is None else 1
  x, y = (np.zeros([num, *t.shape[1:]], t.dtype.as_numpy_dtype) for t in experiment.model.input_spec)
  dataset = tf.data.Dataset.from_tensor_slices((x, y + y.dtype.type(_FIRST_LABEL - (place or 0))))
  return dataset if experiment.seeds.process is None else fedsmp_tff.tag_client(client, dataset)


def _release(
    process: tff.learning.templates.LearningProcess, state: Any, cohort: list[Any],
    spec: fedsmp_tff.PrivacySpec,
) -> tuple[np.ndarray, Any]:
  """Runs a round; returns the released sum, float64[d] in units of C, as weights show it."""
  output = process.next(state, cohort)
  before, after = (
      np.concatenate([np.ravel(w).astype(np.float64) for w in tf.nest.flatten(weights.trainable)])
      for weights in map(process.get_model_weights, (state, output.state))
  )
  optimizer = state.finalizer.get('optimizer', state.finalizer)  # Of a schedule.
  step = float(optimizer[tff.learning.optimizers.LEARNING_RATE_KEY])
  step *= float(output.metrics['aggregator'].get('server_step', 1.0))
  unit = step * float(state.aggregator.clipping_norm) / spec.clients_per_round
  return (before - after) / unit, output.state


def _text(
    experiment: CanaryExperiment, num_canaries: int, confidence: float, found: auditing.RunAudit,
    num_coins: int,
) -> str:
  """Returns the result of an audit, in words."""
  spec, claim = experiment.spec, experiment.spec.epsilon()
  share = f'{100 * found.epsilon / claim:.0f} % of it, ' if math.isfinite(claim) else ''
  verdict = 'not refuted'
  if found.refutations:
    verdict = f'RUN REFUTED: {"; ".join(found.refutations)}'
  return (
      f'whole run: {spec.rounds} rounds, {num_canaries:,} of {spec.population:,} clients are'
      ' canaries, inserted by a coin whenever they are sampled\n'
      f'  reported  epsilon = {claim:.4g} at delta = {spec.delta:.3g}, sigma ='
      f' {spec.noise_multiplier:.4g}, {spec.noise.name} noise\n'
      f'  audited   epsilon = {found.epsilon:.4g} ({share}confidence {confidence:g}) with the most'
      f' noise that {found.right:,} of {num_coins:,} coins guessed right allow\n'
      f'  noise     p = {found.shared_noise:.2g} for the two rounds whose noise is most alike\n'
      f'  sampling  p = {found.shared_clients:.2g} for the size and the overlap of cohorts\n'
      f'  {verdict}'
  )


def run(
    settings: settings_lib.RunSettings, runtime_flags: runtime_flags_lib.RuntimeSettings,
    num_canaries: int, confidence: float,
) -> int:
  """Audits a whole run; returns the exit status: 1 if the run is refuted."""
  with command.owner_only(), runtime_flags_lib.context(runtime_flags):
    experiment = build(settings, runtime_flags.data_dir, num_canaries)
    print(plan.text(experiment, 0, runtime_flags.verbose), '', sep='\n', flush=True)
    if runtime_flags.dry_run:
      return 0
    experiment = pretraining.initialize(experiment, None, False)
    seen = record(experiment, num_canaries)
  noise_stddev = experiment.aggregator.mechanism.values_noise_multiplier
  found = auditing.audit_run(seen, experiment.spec, noise_stddev, confidence)
  print(_text(experiment, num_canaries, confidence, found, len(seen.coins)), flush=True)
  return int(bool(found.refutations))
