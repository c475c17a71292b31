"""`python -m tasks.run --task=TASK`: trains with Fed-SMP or a sibling, and says what it spent."""

import os
import sys

# TensorFlow's notes on its start say nothing about a run.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

try:
  import fedsmp_tff
except ImportError as error:
  sys.exit(f'tasks.run: {error}')

# pylint: disable=g-import-not-at-top
import dataclasses
import importlib.metadata
import secrets
import time
from typing import Any, Optional

from absl import flags
from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import accounting
from fedsmp_tff import client_training
from fedsmp_tff import program
from tasks import errors
from tasks import evaluation
from tasks import output
from tasks import plan as plan_lib
from tasks import progress as progress_lib
from tasks import registry
from tasks import runtimes
from tasks import settings as settings_lib

_PROGRAM = 'python -m tasks.run'
# Streams of randomness that derive from a run's seed.
_PARTITION, _WEIGHTS, _SAMPLING, _PROCESS, _EVALUATION = range(5)
_PACKAGES = ('tensorflow', 'tensorflow-federated', 'dp-accounting', 'numpy')


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status."""
  logging.set_verbosity(logging.ERROR)
  try:
    if any(argument in ('--help', '-h', '-help') for argument in argv[1:]):
      print(settings_lib.help_text(_PROGRAM))
      return 0
    try:
      rest = flags.FLAGS(argv)[1:]
    except flags.Error as error:
      raise errors.InputError(f'{error} (see {_PROGRAM} --help)') from None
    if rest:
      raise errors.InputError(
          f'{rest[0]!r} is not a flag; flags start with -- (see {_PROGRAM}'
          ' --help).'
      )
    settings = settings_lib.from_flags()
    place = runtimes.from_flags()
    runtimes.prepare(place, seeded=settings.seed is not None)
    with runtimes.context(place):
      return _run(settings, place)
  except errors.InputError as error:
    print(f'tasks.run: {error}', file=sys.stderr)
    return 2


def _run(
    settings: settings_lib.RunSettings, place: runtimes.RuntimeSettings
) -> int:
  task = settings_lib.TASKS[settings.task]
  seeds = _seeds(settings.seed)
  _check_clients(settings, task.num_clients())
  model = task.build_model(seeds[_WEIGHTS])
  dim = sum(int(np.size(w)) for w in tf.nest.flatten(model.initial_weights[0]))
  _check_kept(settings, dim)
  out = output.RunDirectory(settings.output_dir or _default_output_dir(settings))
  try:
    data = task.load(seeds[_PARTITION], settings.public_examples or 0)
    _check_clients(settings, len(data.clients))
    settings, spending = _with_spending(settings, len(data.clients))
    sparsifier = _sparsifier(settings, data)
    factory = _factory(sparsifier, _mechanism(settings, seeds))
  except errors.InputError:
    out.discard()
    raise
  plan = plan_lib.make(settings, data, dim, factory, spending)
  print(plan.text(), flush=True)
  print(f'\noutput: {out.path}\n', flush=True)
  out.write_config({
      **dataclasses.asdict(settings),
      **plan.as_dict(),
      'runtime': dataclasses.asdict(place),
      'versions': {p: importlib.metadata.version(p) for p in _PACKAGES},
  })
  summary, stopped_by = _train(plan, model, sparsifier, seeds, out)
  out.write_summary(summary)
  print(progress_lib.summary_text(plan, summary))
  print(f'output: {out.path}')
  if isinstance(stopped_by, KeyboardInterrupt):
    return 130
  if stopped_by is not None:
    print(f'tasks.run: {stopped_by}', file=sys.stderr)
    return 1
  return 0


def _train(
    plan: plan_lib.Plan,
    model: tff.learning.models.FunctionalModel,
    sparsifier: fedsmp_tff.Sparsifier,
    seeds: list[int],
    out: output.RunDirectory,
) -> tuple[dict[str, Any], Optional[BaseException]]:
  """Runs the rounds and writes their files.

  Returns:
    The summary, and what ended the run early, if something did.
  """
  settings, data = plan.settings, plan.data
  process = fedsmp_tff.build_fed_smp(
      model,
      _local_training(settings),
      sparsifier,
      server_optimizer=tff.learning.optimizers.build_sgdm(
          settings.server_learning_rate
      ),
      **_mechanism(settings, seeds),
  )
  measure = evaluation.build(model, settings_lib.TASKS[settings.task].is_scored)
  all_test = evaluation.shards_of(data.test)
  some_test = evaluation.shards_of(
      data.test, settings.eval_examples, seeds[_EVALUATION]
  )
  sampler_seed = None if settings.seed is None else seeds[_SAMPLING]
  progress = progress_lib.Progress(plan)
  writer = progress_lib.MetricsWriter(plan, out)
  start = time.monotonic()
  try:
    weights, stopped_by = program.run(
        process,
        _ClientData(data, tagged=settings.seed is not None),
        program.FixedSizeSampler(
            len(data.clients), settings.clients_per_round, sampler_seed
        ),
        settings.rounds,
        lambda weights, last: measure(weights, all_test if last else some_test),
        settings.rounds_per_evaluation,
        [writer, progress],
    )
  finally:
    progress.close()
    out.close()
  out.write_weights(weights)
  return writer.summary(time.monotonic() - start), stopped_by


def _seeds(seed: Optional[int]) -> list[int]:
  """One seed a stream; without a seed, of the operating system's entropy."""
  sequence = np.random.SeedSequence(secrets.randbits(128) if seed is None else seed)
  return [int(s) for s in sequence.generate_state(_EVALUATION + 1, np.uint32)]


def _default_output_dir(settings: settings_lib.RunSettings) -> str:
  now = time.strftime('%Y%m%d-%H%M%S')
  # Batch jobs that start in the same second keep apart.
  return f'runs/{settings.task}-{settings.algorithm}-{now}-{os.getpid()}'


def _check_clients(
    settings: settings_lib.RunSettings, num_clients: Optional[int]
) -> None:
  if num_clients is not None and settings.clients_per_round > num_clients:
    raise errors.InputError(
        f'--clients_per_round={settings.clients_per_round} is more than the'
        f' {num_clients} clients in the data; lower it.'
    )


def _check_kept(settings: settings_lib.RunSettings, dim: int) -> None:
  if settings.k is not None and settings.k > dim:
    raise errors.InputError(
        f'--k={settings.k} is more than the d={dim} parameters of the model;'
        ' lower it.'
    )


def _with_spending(
    settings: settings_lib.RunSettings, num_clients: int
) -> tuple[settings_lib.RunSettings, Optional[accounting.Spending]]:
  """The settings with nothing of the privacy left open, and what they spend."""
  if not settings_lib.ALGORITHMS[settings.algorithm].private:
    return settings, None
  population = settings.population or num_clients
  # Section 5 of the paper; 1/2 keeps a population of one in the range of delta.
  delta = min(population**-1.1, 0.5) if settings.delta is None else settings.delta
  noise_multiplier = settings.noise_multiplier
  if noise_multiplier is None:
    try:
      noise_multiplier = accounting.calibrate_noise_multiplier(
          settings.epsilon,
          settings.accounting,
          settings.clients_per_round,
          population,
          delta,
          settings.rounds,
      )
    except ValueError as error:
      raise errors.InputError(f'--epsilon={settings.epsilon}: {error}') from None
  spending = accounting.Spending(
      noise_multiplier, settings.clients_per_round, population, delta
  )
  return dataclasses.replace(settings, **dataclasses.asdict(spending)), spending


def _mechanism(
    settings: settings_lib.RunSettings, seeds: list[int]
) -> dict[str, Any]:
  return dict(
      clients_per_round=settings.clients_per_round,
      clipping_norm=settings.clip,
      noise_multiplier=settings.noise_multiplier,
      bits=settings.bits,
      seed=None if settings.seed is None else seeds[_PROCESS],
  )


def _factory(
    sparsifier: fedsmp_tff.Sparsifier, mechanism: dict[str, Any]
) -> fedsmp_tff.FedSmpFactory:
  try:
    return fedsmp_tff.FedSmpFactory(sparsifier, **mechanism)
  except ValueError as error:  # Of the flags, only --bits is not checked yet.
    raise errors.InputError(f'--bits={mechanism["bits"]}: {error}') from None


def _sparsifier(
    settings: settings_lib.RunSettings, data: registry.TaskData
) -> fedsmp_tff.Sparsifier:
  kind = settings_lib.ALGORITHMS[settings.algorithm].sparsifier
  if kind is None:
    return fedsmp_tff.Dense()
  if kind == 'randk':
    return fedsmp_tff.RandK(settings.p, settings.k)
  return fedsmp_tff.TopK(
      settings.p,
      settings.k,
      data.public,
      settings.public_epochs,
      settings.public_steps,
  )


def _local_training(
    settings: settings_lib.RunSettings,
) -> client_training.LocalTraining:
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
  """Each client's dataset, made once, when it is first sampled."""

  def __init__(self, data: registry.TaskData, tagged: bool):
    self._data = data
    self._tagged = tagged
    self._datasets = {}

  def __call__(self, client: int):
    if client not in self._datasets:
      dataset = tf.data.Dataset.from_tensor_slices(self._data.clients[client])
      if self._tagged:
        dataset = fedsmp_tff.tag_client(client, dataset)
      self._datasets[client] = dataset
    return self._datasets[client]


if __name__ == '__main__':
  sys.exit(main(sys.argv))
