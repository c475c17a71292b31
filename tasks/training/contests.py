"""The parts of the benchmark: contests between contenders, and what they measure."""

from collections.abc import Callable
import functools
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

import fedsmp_tff
from fedsmp_tff import runtime
from fedsmp_tff.runtime import graphs
from tasks.datasets import fashion_mnist
from tasks.datasets import shakespeare
from tasks.datasets import task as task_lib
from tasks.training import builders
from tasks.training import contenders
from tasks.training import run_tables
from tasks.training import tables

_PUBLIC = 1000
# Rounds that a mask serves by default: of so many measured rounds one makes a mask, which the mean
# includes and the median does not.
_HELD = 5
# The load average of an idle machine is below it.
_QUIET_LOAD = 0.5
_SECONDS_BETWEEN_LOOKS = 0.1
_DIM, _LARGE_DIM, _AGGREGATED = 1_663_370, 50_000_000, 20


def parts(repeats: int, size: int) -> dict[str, Callable[[], Any]]:
  """Returns the function of each part, which measures, prints and returns its figures.

  Call it in a process of its own.

  Args:
    repeats: Measured rounds of each contender.
    size: Clients a round, of the part one_size.
  """
  graphs.use_one_thread_an_operation()
  return {
      'fashion_mnist': lambda: _task_part(fashion_mnist.TASK, 100, repeats),
      'shakespeare': lambda: _task_part(shakespeare.TASK, 10, repeats),
      'aggregator': lambda: _aggregator_part(repeats),
      'large': lambda: _large_part(repeats),
      'clients': lambda: _clients_part(repeats),
      'workers': lambda: _workers_part(repeats),
      'one_processor': lambda: _one_processor_part(repeats),
      'start': lambda: _start_part(repeats),
      'one_size': lambda: _one_size_part(size, repeats),
  }


def _measure(contests: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
  """Seconds of each call, in turn, after a first one that is left out."""
  seconds = {name: [] for name in contests}
  for repeat in tqdm.trange(repeats + 1, unit='turn', disable=None):
    for name, run in contests.items():
      start = time.monotonic()
      run()
      if repeat:
        seconds[name].append(time.monotonic() - start)
  return seconds


def _rounds(
    context: tff.framework.SyncContext, contender: contenders.Contender
) -> Callable[[], None]:
  """A function that runs the next round in a context."""
  state = None

  def run():
    nonlocal state
    with tff.framework.get_context_stack().install(context):
      if state is None:
        state = contender.process.initialize()
      state = contender.process.next(state, contender.clients).state

  return run


def _table(title: str, seconds: dict[str, list[float]], base: str) -> dict[str, Any]:
  """Prints medians, and each as a share of `base`'s; returns the measurements."""
  medians = {name: float(np.median(times)) for name, times in seconds.items()}
  print(f'\n{title}')
  print(
      f'{"":22}{"median s":>10}{"mean s":>10}{"min s":>10}{"max s":>10}{"x faster":>10}'
  )
  for name, times in seconds.items():
    print(
        f'{name:22}{medians[name]:10.3f}{np.mean(times):10.3f}{min(times):10.3f}'
        f'{max(times):10.3f}{medians[base] / medians[name]:10.2f}',
        flush=True,
    )
  return {'seconds': seconds, 'medians': medians}


def _peak_gflops() -> float:
  """The best of this machine's float32 matrix products, on all processors at once."""
  matrix = np.random.default_rng(0).standard_normal((2048, 2048)).astype(np.float32)
  best = 0.0
  for _ in range(10):
    start = time.monotonic()
    matrix @ matrix
    best = max(best, 2 * 2048**3 / (time.monotonic() - start) / 1e9)
  return best


def busyness(when: str) -> dict[str, float]:
  """Prints and returns what shows whether others use this machine."""
  load, peak = os.getloadavg()[0], _peak_gflops()
  note = '' if load < _QUIET_LOAD or when != 'before' else ': NOT QUIET, ratios may be distorted'
  print(
      f'{when}: load average {load:.2f}, matrix product {peak:.0f} GFLOP/s{note}', flush=True
  )
  return {'load_average': load, 'peak_gflops': peak}


def _one_processor_part(repeats: int) -> None:
  """The part fashion_mnist in a process that may use one processor."""
  print('\non one processor:', flush=True)
  command_line = [sys.executable, '-m', 'tasks.benchmark', '--part=fashion_mnist']
  first = min(os.sched_getaffinity(0))
  subprocess.run(
      [*command_line, f'--repeats={repeats}'], check=True,
      preexec_fn=lambda: os.sched_setaffinity(0, {first}),
  )


def _task_part(task: task_lib.Task, num_clients: int, repeats: int) -> dict[str, Any]:
  data = task.load(0, _PUBLIC)
  randk = fedsmp_tff.RandK(contenders.RATIO)
  topk = functools.partial(
      fedsmp_tff.TopK, contenders.RATIO, public_examples=data.public, mask_rounds=_HELD,
      **builders.default_public_clients(_PUBLIC),
  )
  paper = fedsmp_tff.TopK(contenders.RATIO, public_examples=data.public)
  stock = tff.backends.test.create_sync_test_cpp_execution_context()
  with runtime.local_context() as local:
    contests = {'stock': _rounds(stock, contenders.stock(task, data, num_clients))}
    for name, sparsifier in (
        ('randk, local', randk),
        ('topk, local', topk()),
        ('topk not held, local', topk(mask_rounds=1)),
        ('topk of paper, local', paper),
    ):
      contests[name] = _rounds(
          local, contenders.fed_smp(task, data, num_clients, sparsifier)
      )
    measured = _table(
        f'a round of {num_clients} clients of {task.name}', _measure(contests, repeats), 'stock'
    )
  if task is fashion_mnist.TASK:
    peak = _peak_gflops()
    flops = contenders.training_flops(data, num_clients, task.settings.local_epochs)
    reached = flops / measured['medians']['randk, local'] / 1e9
    measured |= {'gflops': reached, 'peak_gflops': peak}
    print(
        f'randk, local: {reached:.0f} GFLOP/s, {reached / peak:.0%} of the {peak:.0f}'
        ' of a matrix product on all processors'
    )
  return measured


def _aggregation(process: Any, values: list[tf.Tensor]) -> Callable[[], None]:
  state = process.initialize()

  def run():
    process.next(state, values)

  return run


def _aggregator_part(repeats: int) -> dict[str, Any]:
  values = contenders.updates(_DIM, _AGGREGATED)
  made = contenders.aggregators(_DIM, _AGGREGATED, with_stock=True)
  stack = tff.framework.get_context_stack()
  stock = tff.backends.test.create_sync_test_cpp_execution_context()
  with runtime.local_context() as local:
    contests = {}
    for name, process in made.items():
      for place, context in (('local', local), ('tff', stock)):
        with stack.install(context):
          run = _aggregation(process, values)

        def run_there(context=context, run=run):
          with stack.install(context):
            run()

        contests[f'{name}, {place}'] = run_there
    return _table(
        f'aggregating {_AGGREGATED} updates of d = {_DIM:,}',
        _measure(contests, repeats),
        'dp_aggregator, tff',
    )


def _peak_megabytes() -> float:
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _large_part(repeats: int) -> dict[str, Any]:
  before = _peak_megabytes()
  values = contenders.updates(_LARGE_DIM, _AGGREGATED)
  made = contenders.aggregators(_LARGE_DIM, _AGGREGATED, with_stock=False)
  with runtime.local_context():
    contests = {name: _aggregation(p, values) for name, p in made.items()}
    measured = _table(
        f'aggregating {_AGGREGATED} updates of d = {_LARGE_DIM:,}',
        _measure(contests, repeats),
        'dense',
    )
  measured['megabytes'] = _peak_megabytes() - before
  print(f'peak memory over the start: {measured["megabytes"]:.0f} MB')
  return measured


def _clients_part(repeats: int) -> dict[int, Any]:
  """Each size in a process of its own, whose peak memory is then known."""
  print('\nclients a round of fashion_mnist, randk 0.005, local')
  print(f'{"clients":>10}{"ms a client":>14}{"peak MB":>10}', flush=True)
  found = {}
  for size in (10, 100, 1000):
    arguments = [
        sys.executable, '-m', 'tasks.benchmark', '--part=one_size', f'--size={size}',
        f'--repeats={repeats}',
    ]
    done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True)
    found[size] = json.loads(done.stdout.splitlines()[-1])
    print(
        f'{size:10}{1000 * found[size]["seconds"] / size:14.1f}'
        f'{found[size]["megabytes"]:10.0f}',
        flush=True,
    )
  return found


def _one_size_part(size: int, repeats: int) -> dict[str, Any]:
  # All sizes have the same data, so that memory differs by what a round takes.
  data = fashion_mnist.TASK.load(0, 0)
  contender = contenders.fed_smp(
      fashion_mnist.TASK, data, size, fedsmp_tff.RandK(contenders.RATIO)
  )
  with runtime.local_context() as context:
    seconds = _measure({'round': _rounds(context, contender)}, repeats)['round']
  found = {'seconds': float(np.median(seconds)), 'megabytes': _peak_megabytes()}
  print(json.dumps(found))
  return found


def _workers_part(repeats: int) -> dict[str, Any]:
  data = fashion_mnist.TASK.load(0, 0)
  made = {
      'local, {} workers': runtime.local_context, 'ray, {} workers': runtime.ray_context
  }
  seconds = {}
  for name, make in made.items():
    for workers in (1, 2):
      contender = contenders.fed_smp(
          fashion_mnist.TASK, data, 100, fedsmp_tff.RandK(contenders.RATIO)
      )
      with make(workers=workers) as context:
        seconds |= _measure({name.format(workers): _rounds(context, contender)}, repeats)
  return _table('workers, a round of 100 clients', seconds, 'local, 1 workers')


def _start_part(repeats: int) -> dict[str, list[float]]:
  """Each start is a process that ends after its first round."""
  seconds = {'help': [], 'plan': [], 'first round': []}
  for _ in tqdm.trange(repeats, unit='start', disable=None):
    begin = time.monotonic()
    command_line = [sys.executable, '-m', 'tasks.run']
    subprocess.run([*command_line, '--help'], stdout=subprocess.DEVNULL, check=True)
    seconds['help'].append(time.monotonic() - begin)
    with tempfile.TemporaryDirectory() as directory:
      begin = time.monotonic()
      with subprocess.Popen(
          [
              *command_line, '--task=shakespeare', '--recipe=none', '--p=0.05',
              f'--output_dir={directory}', '--grace_seconds=0',
          ],
          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
      ) as run:
        for line in run.stdout:
          if line.startswith('output: '):
            break
        seconds['plan'].append(time.monotonic() - begin)
        done = tables.Table(pathlib.Path(directory) / run_tables.METRICS)
        while not done.num_rounds():
          if run.poll() is not None:
            raise subprocess.CalledProcessError(run.returncode, run.args)
          time.sleep(_SECONDS_BETWEEN_LOOKS)
        seconds['first round'].append(time.monotonic() - begin)
        run.terminate()
        run.stdout.read()
  print(f'\nfrom a command to its (median of {repeats})')
  for name, found in seconds.items():
    print(f'{name:>14}{np.median(found):8.1f} s')
  return seconds
