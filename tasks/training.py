"""A run's rounds: the process and the loop that its settings make, and their files."""

from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import accounting
from fedsmp_tff import checkpoints as checkpoints_lib
from fedsmp_tff import client_training
from fedsmp_tff import ledger as ledger_lib
from fedsmp_tff import program
from tasks import averages as averages_lib
from tasks import errors
from tasks import evaluation
from tasks import initializers
from tasks import interruption as interruption_lib
from tasks import output
from tasks import plan as plan_lib
from tasks import post_processing
from tasks import progress as progress_lib
from tasks import registry
from tasks import seeds as seeds_lib
from tasks import settings as settings_lib


def train(
    plan: plan_lib.Plan,
    model: tff.learning.models.FunctionalModel,
    kept: fedsmp_tff.Sparsifier,
    seeds: seeds_lib.Seeds,
    out: output.RunDirectory,
    checkpoints: checkpoints_lib.Checkpoints,
    ledger: Optional[ledger_lib.Ledger],
    interruption: interruption_lib.Interruption,
) -> Optional[BaseException]:
  """Runs the rounds and writes their files; returns what ended the run early, if so."""
  settings, data = plan.settings, plan.data
  process = fedsmp_tff.build_fed_smp(
      model,
      local_training(settings),
      kept,
      server_optimizer=post_processing.server_optimizer(settings),
      dropout=settings.dropout,
      **_mechanism(settings, plan.spec, seeds),
  )
  measure = evaluation.build(model, settings_lib.TASKS[settings.task].is_scored)
  all_test = evaluation.shards_of(data.test)
  some_test = evaluation.shards_of(
      data.test, settings.eval_examples, seeds.evaluation
  )

  def measured(weights, last):
    return measure(weights, all_test if last else some_test)

  averages = averages_lib.Averages(
      model, settings.rounds, post_processing.exponential_average(settings), measured,
      settings.rounds_per_evaluation,
  )
  progress = progress_lib.Progress(plan)
  writer = progress_lib.MetricsWriter(plan, out, ledger, averages)
  try:
    with interruption.rounds():
      weights, stopped_by = program.run(
          process,
          _ClientData(data, tagged=settings.seed is not None),
          plan.spec.sampler(seeds.sampling),
          settings.rounds,
          measured,
          settings.rounds_per_evaluation,
          [averages, writer, progress],
          checkpoints=checkpoints,
          ledger=ledger,
          between_rounds=interruption.check,
      )
  finally:
    progress.close()
  summary = writer.summary()
  out.write_weights(weights)
  for name, average in averages.weights().items():
    out.write_weights(average, name)
  out.write_summary(summary)
  print(progress_lib.summary_text(plan, summary, out.seconds()))
  print(f'output: {out.path}', flush=True)
  return stopped_by


def _mechanism(
    settings: settings_lib.RunSettings,
    spec: accounting.PrivacySpec,
    seeds: seeds_lib.Seeds,
) -> dict[str, Any]:
  adaptive = None
  if settings.clip_quantile is not None:
    adaptive = fedsmp_tff.AdaptiveClipping(settings.clip_quantile)
  return dict(
      spec.mechanism(),
      adaptive_clipping=adaptive,
      client_metrics=settings.client_metrics == 'exact',
      seed=seeds.process,
      **post_processing.mechanism(settings, local_training(settings)),
  )


def model(
    settings: settings_lib.RunSettings, seeds: seeds_lib.Seeds
) -> tff.learning.models.FunctionalModel:
  """The task's model, with the run's initial weights."""
  initializer = initializers.INITIALIZERS[settings.initializer](seeds.weights)
  return settings_lib.TASKS[settings.task].build_model(initializer)


def factory(
    settings: settings_lib.RunSettings,
    spec: accounting.PrivacySpec,
    kept: fedsmp_tff.Sparsifier,
    seeds: seeds_lib.Seeds,
) -> fedsmp_tff.FedSmpFactory:
  """The run's aggregator.

  Raises:
    InputError: If --bits can't be.
  """
  try:
    return fedsmp_tff.FedSmpFactory(kept, **_mechanism(settings, spec, seeds))
  except ValueError as error:  # Of the flags, only --bits is not checked yet.
    raise errors.InputError(f'--bits={settings.bits}: {error}') from None


def num_kept(settings: settings_lib.RunSettings, dim: int) -> int:
  """k."""
  if settings_lib.ALGORITHMS[settings.algorithm].sparsifier is None:
    return dim
  return fedsmp_tff.RandK(settings.p, settings.k).num_kept(dim)


def sparsifier(
    settings: settings_lib.RunSettings, data: registry.TaskData
) -> fedsmp_tff.Sparsifier:
  """The run's sparsifier."""
  kind = settings_lib.ALGORITHMS[settings.algorithm].sparsifier
  if kind is None:
    return fedsmp_tff.Dense()
  if kind == 'randk':
    return fedsmp_tff.RandK(settings.p, settings.k)
  if kind == 'released':
    return fedsmp_tff.ReleasedTopK(
        settings.p, settings.k, **post_processing.given(explore=settings.explore)
    )
  public = (data.public, settings.public_epochs, settings.public_steps)
  if settings.released_weight is not None:
    return fedsmp_tff.HybridTopK(
        settings.p, settings.k, *public, released_weight=settings.released_weight
    )
  return fedsmp_tff.TopK(settings.p, settings.k, *public)


def local_training(
    settings: settings_lib.RunSettings,
) -> client_training.LocalTraining:
  """What clients do in a round."""

  def learning_rate(round_num):
    decays = tf.cast(
        round_num // settings.learning_rate_decay_rounds, tf.float32
    )
    return settings.learning_rate * settings.learning_rate_decay**decays

  return client_training.LocalTraining(
      tff.learning.optimizers.build_sgdm(
          settings.learning_rate, settings.momentum
      ),
      settings.batch_size,
      epochs=settings.local_epochs,
      steps=settings.local_steps,
      learning_rate_fn=learning_rate,
  )


class _ClientData:
  """Each participant's dataset, made once, when it is first sampled."""

  def __init__(self, data: registry.TaskData, tagged: bool):
    self._data = data
    self._tagged = tagged
    self._datasets = {}

  def __call__(self, client: int):
    if client not in self._datasets:
      examples = self._data.clients[max(client, 0)]
      if client < 0:  # Noise alone.
        examples = tuple(array[:0] for array in examples)
      dataset = tf.data.Dataset.from_tensor_slices(examples)
      if self._tagged:
        dataset = fedsmp_tff.tag_client(client, dataset)
      self._datasets[client] = dataset
    return self._datasets[client]
