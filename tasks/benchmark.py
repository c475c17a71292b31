"""`python -m tasks.benchmark`: measures Fed-SMP and stock `tff.learning` on this machine.

The parts fashion_mnist and shakespeare measure rounds of 100 clients and of 10 roles. slots
measures rounds of 40 slots with a tiny model, half of them without data. start measures whole
commands, up to the plan and up to the end of the first round.

The stock process is `build_unweighted_fed_avg` with a Keras model. Its aggregator is TFF's
`dp_aggregator` in TFF's context, or rand-k, in this package's context and in TFF's. Implementations
take turns, so that a busy machine slows all of them. The first rounds, which build graphs, do not
count. A top-k mask serves ten rounds, so that a mean over ten rounds includes one choice.
"""

import collections
from collections.abc import Iterator
import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import psutil

from tasks import datasets
from tasks import errors
from tasks.cli import command
from tasks.cli import options as options_lib
from tasks.datasets import task as task_lib
from tasks.experiments import paper_tables

_CLIENTS, _RATIO, _PUBLIC = {'fashion_mnist': 100, 'shakespeare': 10}, 0.005, 1000
_SLOTS, _SLOTS_PART = 40, 'slots'
# Rounds that build graphs, for the first clients and for groups of short ones.
_FIRST_ROUNDS, _FIRST_ROUNDS_OF_SLOTS = 1, 5


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command."""

  part: list[str] = options_lib.option(
      [*_CLIENTS, _SLOTS_PART, 'start'], 'What to measure, as above.',
      values=(*_CLIENTS, _SLOTS_PART, 'start'), repeated=True,
  )
  repeats: int = options_lib.option(10, 'Number of measurements per implementation.', at_least=1)
  json: str = options_lib.option(
      '', 'JSON file for the measurements, written after each of them.', is_path=True
  )


def _main(options: Options) -> None:
  if options.json:
    with errors.writing_to('json', options.json):  # Before minutes of measuring.
      open(options.json, 'a', encoding='utf-8').close()
    if not os.path.isfile(options.json):
      raise errors.InputError(f'--json={options.json} is not a regular file. Use another path.')
  measured = {'processors': len(os.sched_getaffinity(0)), 'machine': [_machine()]}
  for part in dict.fromkeys(options.part):
    print(part, flush=True)
    found, seconds = {}, collections.defaultdict(list)
    measure = {'start': _start, _SLOTS_PART: _slots}.get(part, functools.partial(_rounds, part))
    for name, duration in measure(options.repeats):
      times = seconds[name]
      times.append(duration)
      found[name] = {
          'median': float(np.median(times)), 'mean': float(np.mean(times)), 'seconds': times
      }
      measured[f'{part}, {name}'] = found[name]
      _write(options.json, measured)  # An interrupt loses none of the others.
    for name, values in found.items():
      ratio = values['mean'] / found.get('rand-k', values)['mean']
      print(
          f'  {name:32} median {values["median"]:8.3f} s, mean {values["mean"]:8.3f} s,'
          f' {ratio:.2f} x',
          flush=True,
      )
  measured['machine'].append(_machine())
  _write(options.json, measured)


def _write(path: str, measured: dict[str, Any]) -> None:
  """Writes a JSON file, if there is a path; the file that it replaces is whole until then."""
  if path:
    unfinished = pathlib.Path(f'{path}.unfinished')
    with errors.writing_to('json', path):
      try:
        unfinished.write_text(json.dumps(measured, indent=2), encoding='utf-8')
        os.replace(unfinished, path)
      finally:
        unfinished.unlink(missing_ok=True)


def _machine() -> dict[str, float]:
  """Measures the load of the machine: the load average, and GFLOP/s of a matrix product."""
  matrix, size = np.ones([2000, 2000], np.float32), 2000
  begin = time.monotonic()
  for _ in range(3):
    matrix @ matrix
  found = {'load': os.getloadavg()[0], 'gflops': 6e-9 * size**3 / (time.monotonic() - begin)}
  print(f'load average {found["load"]:.2f}, {found["gflops"]:.0f} GFLOP/s', flush=True)
  return found


def _start(repeats: int) -> Iterator[tuple[str, float]]:
  """Yields seconds of whole commands, by flag: to the plan, and to the end of the first round."""
  run = [sys.executable, '-m', 'tasks.run', '--task=shakespeare', '--p=0.05']
  for flag in ['--dry_run', '--rounds=1'] * repeats:
    with tempfile.TemporaryDirectory() as directory:
      begin = time.monotonic()
      subprocess.run([*run, flag, f'--output_dir={directory}'], check=True, capture_output=True)
      yield flag, time.monotonic() - begin


def _rounds(part: str, repeats: int) -> Iterator[tuple[str, float]]:
  """Yields seconds of rounds, by implementation."""
  task, num_clients = datasets.TASKS[part], _CLIENTS[part]
  import tensorflow as tf
  import tensorflow_federated as tff

  import fedsmp_tff
  from fedsmp_tff import runtime
  from fedsmp_tff.runtime import graphs
  from tasks.models import initializers
  from tasks.training import features

  graphs.use_one_thread_per_op()
  settings = paper_tables.settings_for(part)
  data = task.load(settings.task_options, task_lib.Split(0, _PUBLIC))
  model = task.build_model(settings.task_options, initializers.KerasInitializer(0))
  optimizer = tff.learning.optimizers.build_sgdm(settings.learning_rate, settings.momentum)
  clients = [tf.data.Dataset.from_tensor_slices(e) for e in data.clients[:num_clients]]
  batches = [
      client.map(lambda x, y: (x / 255 if part == 'fashion_mnist' else x, y))
      .shuffle(1000).repeat(settings.local_epochs).batch(settings.batch_size) for client in clients
  ]
  top_k = fedsmp_tff.TopK(_RATIO, public_examples=data.public, mask_rounds=10, public_clients=4)
  training = fedsmp_tff.LocalTraining(optimizer, settings.batch_size, settings.local_epochs)
  mechanism = fedsmp_tff.Mechanism(num_clients, settings.clip, settings.noise_multiplier)
  stock = tff.learning.algorithms.build_unweighted_fed_avg(
      lambda: _stock_model(part), optimizer,
      model_aggregator=tff.learning.dp_aggregator(settings.noise_multiplier, num_clients),
  )
  stock_randk = _stock_randk(lambda: _stock_model(part), optimizer, mechanism)

  def fed_smp(model, sparsifier):
    factory = fedsmp_tff.FedSmpFactory(sparsifier, mechanism)
    return fedsmp_tff.build_fed_smp(model, training, factory)

  with runtime.local_context() as local:
    worker = tff.backends.test.create_sync_test_cpp_execution_context()
    weights = tff.learning.models.ModelWeights(*model.initial_weights)
    is_scored = functools.partial(task.is_scored, settings.task_options)
    body, _ = features.split(model, weights, data.public, is_scored)
    head_data = features.of_data(data, body, model.input_spec[0]).clients
    head_clients = [tf.data.Dataset.from_tensor_slices(head_data[i]) for i in range(num_clients)]
    measured = {
        'rand-k': (local, fed_smp(model, fedsmp_tff.RandK(_RATIO)), clients),
        'top-k': (local, fed_smp(model, top_k), clients),
        'dp_fedavg': (local, fed_smp(model, fedsmp_tff.Dense()), clients),
        'last layer': (local, fed_smp(model.head(), fedsmp_tff.Dense()), head_clients),
        'stock': (worker, stock, batches),
        'stock rand-k': (local, stock_randk, batches),
        "stock rand-k, TFF's context": (worker, stock_randk, batches),
    }
    yield from _alternating(measured, repeats, _FIRST_ROUNDS)


def _slots(repeats: int) -> Iterator[tuple[str, float]]:
  """Yields seconds of rounds with a tiny model, whose clients cost less than their slots."""
  import tensorflow as tf
  import tensorflow_federated as tff

  import fedsmp_tff
  from fedsmp_tff import runtime
  from fedsmp_tff.runtime import graphs

  graphs.use_one_thread_per_op()
  spec = tf.TensorSpec([None, 12]), tf.TensorSpec([None], tf.int32)
  loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

  def network():
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [layers.InputLayer((12,)), layers.Dense(16, activation='relu'), layers.Dense(2)]
    )

  functional = tff.learning.models.functional_model_from_keras(network(), loss, spec)
  optimizer = tff.learning.optimizers.build_sgdm(0.1)
  mechanism = fedsmp_tff.Mechanism(_SLOTS, 1.0, 1.0)
  one = tf.data.Dataset.from_tensor_slices((tf.ones([8, 12]), tf.zeros([8], tf.int32)))
  examples = [one] * (_SLOTS // 2) + [one.take(0)] * (_SLOTS // 2)
  batches = [client.batch(4) for client in examples]
  randk = fedsmp_tff.build_fed_smp(
      functional, fedsmp_tff.LocalTraining(optimizer, 4, 1),
      fedsmp_tff.FedSmpFactory(fedsmp_tff.RandK(_RATIO), mechanism),
  )
  stock = {
      'stock rand-k': _stock_randk(functional, optimizer, mechanism),
      'stock rand-k, variables': _stock_randk(
          lambda: tff.learning.models.from_keras_model(network(), loss=loss, input_spec=spec),
          optimizer, mechanism,
      ),
  }
  with runtime.local_context() as local:
    worker = tff.backends.test.create_sync_test_cpp_execution_context()
    measured = {'rand-k': (local, randk, examples)}
    for name, process in stock.items():
      measured |= {
          name: (local, process, batches), f"{name}, TFF's context": (worker, process, batches)
      }
    yield from _alternating(measured, repeats, _FIRST_ROUNDS_OF_SLOTS)


def _stock_randk(model, optimizer, mechanism):
  """Returns TFF's own process with rand-k as its aggregator."""
  import tensorflow_federated as tff

  import fedsmp_tff

  return tff.learning.algorithms.build_unweighted_fed_avg(
      model, optimizer, metrics_aggregator=fedsmp_tff.no_client_metrics,
      model_aggregator=fedsmp_tff.FedSmpFactory(fedsmp_tff.RandK(_RATIO), mechanism),
  )


def _alternating(measured, repeats: int, num_first: int) -> Iterator[tuple[str, float]]:
  """Yields seconds of rounds of processes, in turn, by name.

  Args:
    measured: By name: a context, a process, and its clients' data.
    repeats: Number of measured rounds.
    num_first: Number of rounds before them.
  """
  import tensorflow_federated as tff

  states = {}
  for repeat in range(num_first + repeats):
    for name, (context, process, examples) in measured.items():
      with tff.framework.get_context_stack().install(context):
        state = states[name] if repeat else process.initialize()
        begin = time.monotonic()
        states[name] = process.next(state, examples).state
        seconds = time.monotonic() - begin
      if repeat >= num_first:
        yield name, seconds
  for child in psutil.Process().children():  # TFF does not end its worker.
    child.kill()


def _stock_model(part: str):
  """Returns TFF's own CNN, or an LSTM with TFF's layers and sizes."""
  import tensorflow as tf
  import tensorflow_federated as tff

  if part == 'fashion_mnist':
    cnns = tff.simulation.baselines.emnist.emnist_models
    model = cnns.create_original_fedavg_cnn_model(only_digits=True)
    spec = (tf.TensorSpec([None, 28, 28, 1]), tf.TensorSpec([None], tf.int32))
  else:
    lstm = [tf.keras.layers.LSTM(256, return_sequences=True) for _ in range(2)]
    embedding = tf.keras.layers.Embedding(90, 8, input_length=80)
    model = tf.keras.Sequential([embedding, *lstm, tf.keras.layers.Dense(90)])
    spec = (tf.TensorSpec([None, 80], tf.int32),) * 2
  loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=part != 'fashion_mnist')
  return tff.learning.models.from_keras_model(model, loss=loss, input_spec=spec)


main = command.Command(
    'tasks.benchmark',
    ('usage: python -m tasks.benchmark [flags]', '', *__doc__.splitlines()[2:]),
    _main,
    (Options,),
).main


if __name__ == '__main__':
  command.end(main(sys.argv))
