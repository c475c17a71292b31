"""Trials of candidates and the clients' vote among them, for `tasks.tune`."""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import local_training
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.program import loop
from tasks.training import experiment as experiment_lib
from tasks.training import settings as settings_lib

_Settings = settings_lib.RunSettings
# The norm to which a client's losses, less their mean, are clipped. Of Fashion-MNIST's clients 90 %
# have 0.05 to 0.4, and means of vectors clipped to 0.2 elect rates that are too large.
MAX_NORM = 0.5
_LARGE_LOSS = 1e6  # In place of one that is not finite: the clip keeps its direction alone.
_STREAM = 84  # Separates the seeds of trials and vote from those of the run.
_VOTE = 2**20  # The vote's number; trials count from 0.
# Opens the ledger of a round.
OpenLedger = Callable[[experiment_lib.Experiment], ledger_lib.Ledger]


@dataclasses.dataclass(frozen=True)
class Ballot(fedsmp_tff.LocalTraining):
  """Local training whose update is a client's loss with each candidate, less the losses' mean.

  The weights are one number per candidate; the candidates' own weights are the non-trainable ones,
  stacked. The update is zero without examples. Its norm may exceed C: the round clips it, as any
  update. A ballot for the best candidate alone would elect the extremes of a rate: near the initial
  weights a client's loss is almost linear in the rate, so that it prefers the largest or the least.

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
      losses = tf.stack(losses)
      losses = tf.where(tf.math.is_finite(losses), losses, _LARGE_LOSS)
      return self.scale * (losses - tf.reduce_mean(losses))

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


def with_own_seeds(
    experiment: experiment_lib.Experiment, number: int
) -> experiment_lib.Experiment:
  """Returns the run with seeds for a trial or the vote, if it has a seed.

  Otherwise a simulated vote would be that of the clients on whose updates the trial was made, and
  the noise of all these rounds would be the same.
  """
  seeds = experiment.seeds
  if seeds.process is None:
    return experiment
  own = np.random.SeedSequence([_STREAM, number, seeds.sampling, seeds.process])
  sampling, process = map(int, own.generate_state(2, np.uint32))
  return dataclasses.replace(
      experiment, seeds=seeds._replace(sampling=sampling, process=process)
  )


def candidate_weights(
    experiment: experiment_lib.Experiment, candidates: Sequence[_Settings],
    open_ledger: OpenLedger,
) -> list[list[np.ndarray]]:
  """Runs the trials; returns each candidate's trainable weights after a round, flat.

  A server step is minus the rate times the release, so that one release serves all rates.
  """
  start = [np.asarray(w) for w in tf.nest.flatten(experiment.model.initial_weights[0])]
  weights = [None] * len(candidates)
  for number, indices in enumerate(groups(candidates)):
    trial = with_own_seeds(experiment, number).with_settings(candidates[indices[0]])
    end = _round(trial, trial.process(), open_ledger)
    for i in indices:
      rates = [candidates[j].server_learning_rate or 1.0 for j in (i, indices[0])]
      scale = np.float32(rates[0] / rates[1])
      weights[i] = [before + scale * (after - before) for before, after in zip(start, end)]
  return weights


def scores(
    experiment: experiment_lib.Experiment, weights: Sequence[Sequence[np.ndarray]],
    open_ledger: OpenLedger,
) -> np.ndarray:
  """Runs the vote; returns each candidate's mean clipped loss, less their mean, with noise.

  float64[candidates], in units of the loss; smaller is better.
  """
  model, num = experiment.model, len(weights)
  noise = mechanism_lib.make_noise(experiment.settings.noise, num)
  experiment = dataclasses.replace(
      with_own_seeds(experiment, _VOTE), spec=dataclasses.replace(experiment.spec, noise=noise)
  )
  ballots = tff.learning.models.FunctionalModel(
      initial_weights=((np.zeros(num, np.float32),), tuple(map(np.stack, zip(*weights)))),
      predict_on_batch_fn=tf.function(lambda weights, x, training: weights[0]),  # Never called.
      loss_fn=model.loss,
      input_spec=model.input_spec,
  )
  scale = float(experiment.spec.clipping_norm) / MAX_NORM
  process = fedsmp_tff.build_fed_smp(
      ballots,
      Ballot(tff.learning.optimizers.build_sgdm(1.0), 1, epochs=1, model=model, scale=scale),
      fedsmp_tff.FedSmpFactory(fedsmp_tff.Dense(), experiment.spec.mechanism()),
      seed=experiment.seeds.process,
  )
  [end] = _round(experiment, process, open_ledger)
  return -end.astype(np.float64) / scale  # The server subtracts the mean from zeros.


def _round(
    experiment: experiment_lib.Experiment, process: tff.learning.templates.LearningProcess,
    open_ledger: OpenLedger,
) -> list[np.ndarray]:
  """Runs one round with a ledger of its own; returns the trainable weights after it, flat."""
  with open_ledger(experiment) as ledger:
    weights, stopped_by = loop.run(
        process, experiment.client_data(), experiment.spec.sampler(experiment.seeds.sampling), 1,
        lambda *_: None, {}, ledger=ledger,
    )
  if stopped_by is not None:
    raise stopped_by
  return [np.asarray(w) for w in tf.nest.flatten(weights.trainable)]
