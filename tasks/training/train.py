"""Runs the rounds of a run and writes their files."""

from typing import Optional

import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.program import checkpoints as checkpoints_lib
from fedsmp_tff.program import loop
from tasks import datasets
from tasks.datasets import task as task_lib
from tasks.training import averages as averages_lib
from tasks.training import evaluation
from tasks.training import experiment
from tasks.training import interruption as interruption_lib
from tasks.training import metrics
from tasks.training import plan as plan_lib
from tasks.training import progress as progress_lib
from tasks.training import run_directory
from tasks.training import seeds as seeds_lib


def train(
    plan: plan_lib.Plan,
    model: tff.learning.models.FunctionalModel,
    aggregator: fedsmp_tff.FedSmpFactory,
    seeds: seeds_lib.Seeds,
    out: run_directory.RunDirectory,
    checkpoints: checkpoints_lib.Checkpoints,
    ledger: Optional[ledger_lib.Ledger],
    interruption: interruption_lib.Interruption,
) -> Optional[BaseException]:
  """Runs the rounds and writes their files; returns what ended the run early, if so."""
  settings, data = plan.settings, plan.data
  process = fedsmp_tff.build_fed_smp(
      model,
      experiment.local_training(settings),
      aggregator,
      server_optimizer=experiment.server_optimizer(settings),
      dropout=settings.dropout,
      seed=seeds.process,
  )
  measure = evaluation.build(model, datasets.TASKS[settings.task].is_scored)
  all_test = evaluation.shards_of(data.test)
  some_test = evaluation.shards_of(
      data.test, settings.eval_examples, seeds.evaluation
  )

  def measured(weights, last):
    return measure(weights, all_test if last else some_test)

  averages = averages_lib.Averages(
      model, settings.rounds, experiment.exponential_average(settings), measured,
      settings.rounds_per_evaluation,
  )
  progress = progress_lib.Progress(plan)
  writer = metrics.MetricsWriter(plan, out, ledger, averages)
  try:
    with interruption.rounds():
      weights, stopped_by = loop.run(
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


class _ClientData:
  """Each participant's dataset, made once, when it is first sampled."""

  def __init__(self, data: task_lib.TaskData, tagged: bool):
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
