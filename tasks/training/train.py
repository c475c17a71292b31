"""Runs the rounds of a run and writes their files."""

from collections.abc import Callable
from typing import Any, Optional

import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.program import checkpoints as checkpoints_lib
from fedsmp_tff.program import loop
from fedsmp_tff.program import releases
from tasks import datasets
from tasks.datasets import task as task_lib
from tasks.training import evaluation
from tasks.training import experiment as experiment_lib
from tasks.training import interruption as interruption_lib
from tasks.training import metrics
from tasks.training import progress as progress_lib
from tasks.training import run_directory


def train(
    experiment: experiment_lib.Experiment,
    out: run_directory.RunDirectory,
    checkpoints: checkpoints_lib.Checkpoints,
    ledger: Optional[ledger_lib.Ledger],
    interruption: interruption_lib.Interruption,
    release_manager: Optional[tff.program.ReleaseManager] = None,
) -> Optional[BaseException]:
  """Runs the rounds and writes their files; returns what ended the run early, if so."""
  settings = experiment.settings
  progress = progress_lib.Progress(experiment)
  client_data = ClientData(experiment.data, tagged=settings.seed is not None)
  try:
    writer = metrics.MetricsWriter(experiment, out.tables, ledger)
    managers = [tff.program.TensorBoardReleaseManager(out.path)]
    if release_manager is not None:
      managers.append(release_manager)
    reporters = [
        writer, progress,
        *(releases.Releases(manager, lambda report: writer.row) for manager in managers),
    ]
    with interruption.rounds():
      weights, stopped_by = loop.run(
          experiment.process(),
          client_data,
          experiment.spec.sampler(experiment.seeds.sampling),
          settings.rounds,
          _evaluate(experiment),
          reporters,
          checkpoints=checkpoints,
          ledger=ledger,
          between_rounds=interruption.check,
      )
  finally:
    progress.close()
  summary = writer.summary()
  out.write_weights(experiment.plain_weights(weights))
  out.write_summary(summary)
  print(progress_lib.summary_text(experiment, summary, out.tables.seconds()))
  print(f'output: {out.path}', flush=True)
  show = datasets.TASKS[settings.task].show
  if stopped_by is None and show is not None and not experiment.data.test_outside_guarantee:
    model = experiment_lib.with_weights(experiment.model, weights)
    print(f'\n{show(model, experiment.data.test)}', flush=True)
  return stopped_by


def _evaluate(
    experiment: experiment_lib.Experiment,
) -> Callable[[int, Any], Optional[evaluation.Evaluation]]:
  """Returns what measures the weights after a round, where that is due."""
  settings, test = experiment.settings, experiment.data.test
  task = datasets.TASKS[settings.task]
  measure = evaluation.build(experiment.model, task.is_scored, task.is_padding)
  whole = evaluation.shards_of(test)
  part = evaluation.shards_of(test, experiment.eval_examples, experiment.seeds.evaluation)

  def evaluate(rounds_done, weights):
    if not loop.is_due(rounds_done, settings.rounds_per_evaluation, settings.rounds):
      return None
    return measure(weights, whole if rounds_done == settings.rounds else part)

  return evaluate


class ClientData:
  """Maps participants to their datasets, each made when it is first sampled."""

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
