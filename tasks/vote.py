"""Trials of candidates and the clients' vote among them, for `tasks.tune`."""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import local_training
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.program import loop
from tasks.cli import signals
from tasks.training import experiment as experiment_lib
from tasks.training import features
from tasks.training import settings as settings_lib

_Settings = settings_lib.RunSettings
# The norm to which a client's losses, less their mean, are clipped. Of Fashion-MNIST's clients 90 %
# have 0.05 to 0.4, and means of vectors clipped to 0.2 elect rates that are too large.
MAX_NORM = 0.5
_STREAM = 84  # Separates the seeds of trials and vote from those of the run.
# A client's examples in the vote, at most: they are evaluated together, and an LSTM takes megabytes
# for each.
_MAX_EXAMPLES = 64


@dataclasses.dataclass(frozen=True)
class Ballot(fedsmp_tff.LocalTraining):
  """Local training whose update is a client's loss with each candidate, less the losses' mean.

  A loss counts as at most the least one plus `MAX_NORM`, and as that if it is not finite: the clip
  would shrink all differences if one candidate diverged. The weights are one number per candidate;
  the candidates' own weights are the non-trainable ones, stacked. The update is zero without
  examples. Its norm may exceed C: the round clips it, as any update. A ballot for the best candidate
  alone would elect the extremes of a rate: near the initial weights a client's loss is almost linear
  in the rate, so that it prefers the largest or the least.

  Attributes:
    model: The candidates' model.
    scale: C / `MAX_NORM`.
  """

  model: tff.learning.models.FunctionalModel = dataclasses.field(kw_only=True)
  scale: float = dataclasses.field(kw_only=True)

  def train(self, model: Any, weights: Any, examples: Any, hparams: Any, seed: tf.Tensor) -> Any:
    """See `LocalTraining.train`."""
    x, y = local_training.x_and_y(examples)
    trainable, non_trainable = self.model.initial_weights
    num_candidates = weights.trainable[0].shape[0]

    def ballot():
      losses = []
      for i in range(num_candidates):
        own = tf.nest.pack_sequence_as(trainable, [stack[i] for stack in weights.non_trainable])
        output = self.model.predict_on_batch((own, non_trainable), x, training=False)
        losses.append(self.model.loss(output, y))
      losses = tf.cast(tf.stack(losses), tf.float32)
      finite = tf.math.is_finite(losses)
      least = tf.reduce_min(tf.where(finite, losses, losses.dtype.max))
      excess = tf.where(finite, tf.minimum(losses - least, MAX_NORM), MAX_NORM)
      return self.scale * (excess - tf.reduce_mean(excess))

    # A convolution fails without examples.
    return (tf.cond(tf.size(y) > 0, ballot, lambda: tf.zeros([num_candidates])),)


def groups(candidates: Sequence[_Settings]) -> list[list[int]]:
  """Returns the indices of candidates that share a trial: they differ in the server's rate alone."""
  keys, found = [], []
  for i, settings in enumerate(candidates):
    key = dataclasses.replace(settings, server_learning_rate=None)
    if key not in keys:
      keys.append(key)
      found.append([])
    found[keys.index(key)].append(i)
  return found


@dataclasses.dataclass(frozen=True)
class Vote:
  """The rounds of a choice.

  Attributes:
    experiment: The run of any candidate, with its initial weights.
    open_ledger: Opens the ledger of a round.
    numbers: Numbers of the rounds, no two of which are equal in a run's directory.
    stop: Ends the choice between rounds if a signal came.
  """

  experiment: experiment_lib.Experiment
  open_ledger: Callable[[experiment_lib.Experiment], ledger_lib.Ledger]
  numbers: Iterator[int]
  stop: signals.Signals

  @functools.cached_property
  def _clients(self) -> features.ClientData:
    return self.experiment.client_data()  # All candidates have the same.

  @property
  def noise_stddev(self) -> float:
    """The standard deviation of the noise of a score."""
    spec = self.experiment.spec
    return MAX_NORM * spec.noise_multiplier / spec.clients_per_round

  def weights(self, candidates: Sequence[_Settings]) -> list[list[np.ndarray]]:
    """Runs the trials; returns each candidate's trainable weights after a round, flat.

    A server step is minus the server learning rate times the release, so that one release serves
    all of these rates.
    """
    start = _flat(self.experiment.model.initial_weights[0])
    weights = [None] * len(candidates)
    for indices in groups(candidates):
      trial = self._with_own_seeds().with_settings(candidates[indices[0]])
      end = self._run(trial, trial.process())
      for i in indices:
        rates = [candidates[j].server_learning_rate or 1.0 for j in (i, indices[0])]
        scale = np.float32(rates[0] / rates[1])
        weights[i] = [before + scale * (after - before) for before, after in zip(start, end)]
    return weights

  def scores(self, weights: Sequence[Sequence[np.ndarray]]) -> np.ndarray:
    """Runs the vote; returns each candidate's mean clipped loss, less their mean, with noise.

    float64[candidates], in units of the loss; smaller is better.
    """
    experiment = self._with_own_seeds()
    model, spec = experiment.model, experiment.spec
    scale = float(spec.clipping_norm) / MAX_NORM
    ballots = tff.learning.models.FunctionalModel(
        initial_weights=(
            (np.zeros(len(weights), np.float32),), tuple(map(np.stack, zip(*weights)))
        ),
        predict_on_batch_fn=tf.function(lambda weights, x, training: weights[0]),  # Never called.
        loss_fn=model.loss,
        input_spec=model.input_spec,
    )
    training = Ballot(
        tff.learning.optimizers.build_sgdm(1.0), 1, epochs=1, model=model, scale=scale,
        max_examples=_MAX_EXAMPLES,
    )
    process = fedsmp_tff.build_fed_smp(
        ballots, training, fedsmp_tff.FedSmpFactory(fedsmp_tff.Dense(), spec.mechanism()),
        seed=experiment.seeds.process,
    )
    [end] = self._run(experiment, process)
    return -end.astype(np.float64) / scale  # The server subtracts the mean from zeros.

  def _run(
      self, experiment: experiment_lib.Experiment, process: tff.learning.templates.LearningProcess
  ) -> list[np.ndarray]:
    """Runs one round with a ledger of its own; returns the trainable weights after it, flat."""
    self.stop.begin_round()
    with self.open_ledger(experiment) as ledger:
      weights, stopped_by = loop.run(
          process, self._clients, experiment.spec.sampler(experiment.seeds.sampling), 1,
          lambda *_: None, {}, ledger=ledger,
      )
    if stopped_by is not None:
      raise stopped_by
    return _flat(weights.trainable)

  def _with_own_seeds(self) -> experiment_lib.Experiment:
    """Returns the run with seeds for one more round, if it has a seed.

    Otherwise a simulated vote would be that of the clients on whose updates the trial was made, and
    the noise of all these rounds would be the same.
    """
    number, seeds = next(self.numbers), self.experiment.seeds
    if seeds.process is None:
      return self.experiment
    own = np.random.SeedSequence([_STREAM, number, seeds.sampling, seeds.process])
    sampling, process = map(int, own.generate_state(2, np.uint32))
    return dataclasses.replace(
        self.experiment, seeds=seeds._replace(sampling=sampling, process=process)
    )


def _flat(weights: Any) -> list[np.ndarray]:
  return [np.asarray(weight) for weight in tf.nest.flatten(weights)]
