"""`python -m tasks.benchmark`: a round of Fashion-MNIST, ours beside stock `tff.learning`, in one run.

Both train the same 100 clients of 10 real images (10 epochs, batch 10, momentum SGD)
with sigma = 1.4, on local TFF workers:

  stock    `tff.learning.algorithms.build_unweighted_fed_avg`, TFF's own Keras model
           of the same CNN, and `tff.learning.dp_aggregator(1.4, 100)`, on a worker
           with TFF's own settings
  randk    `build_fed_smp` with `RandK(0.005)`
  topk     `build_fed_smp` with `TopK(0.005)`, training on 1,000 public images
           included: as much work again as all clients together

Rounds alternate, so that a busy machine slows all of them; the first of each, which
builds graphs, is left out.
"""

import os
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=g-import-not-at-top
import json
import time

from absl import flags
from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

import fedsmp_tff
from fedsmp_tff import runtime
from tasks import errors
from tasks import fashion_mnist

_REPEATS = flags.DEFINE_integer(
    'repeats', 5, 'Measured rounds of each, after one that is left out.', 1
)
_JSON = flags.DEFINE_string('json', None, 'JSON file for the measurements.')

_CLIENTS, _SIGMA, _CLIP, _RATIO = 100, 1.4, 1.0, 0.005
_EPOCHS, _BATCH, _RATE, _MOMENTUM, _PUBLIC = 10, 10, 0.125, 0.5, 1000


def _sgd() -> tff.learning.optimizers.Optimizer:
  return tff.learning.optimizers.build_sgdm(_RATE, _MOMENTUM)


def _stock(datasets):
  def model_fn():
    library = tff.simulation.baselines.emnist.emnist_models
    return tff.learning.models.from_keras_model(
        library.create_original_fedavg_cnn_model(only_digits=True),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(),
        input_spec=(
            tf.TensorSpec([None, 28, 28, 1]), tf.TensorSpec([None], tf.int32)
        ),
    )

  process = tff.learning.algorithms.build_unweighted_fed_avg(
      model_fn,
      _sgd(),
      model_aggregator=tff.learning.dp_aggregator(_SIGMA, _CLIENTS),
  )
  batched = [
      d.map(lambda x, y: (tf.cast(x, tf.float32) / 255, y))
      .shuffle(_BATCH)
      .repeat(_EPOCHS)
      .batch(_BATCH)
      for d in datasets
  ]
  return process, batched


def _ours(datasets, sparsifier):
  process = fedsmp_tff.build_fed_smp(
      fashion_mnist.TASK.build_model(0),
      fedsmp_tff.LocalTraining(_sgd(), _BATCH, epochs=_EPOCHS),
      sparsifier,
      clients_per_round=_CLIENTS,
      clipping_norm=_CLIP,
      noise_multiplier=_SIGMA,
  )
  return process, datasets


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status."""
  logging.set_verbosity(logging.ERROR)
  try:
    flags.FLAGS(argv)
    data = fashion_mnist.TASK.load(0, _PUBLIC)
  except (flags.Error, errors.InputError) as error:
    print(f'tasks.benchmark: {error}', file=sys.stderr)
    return 2
  datasets = [
      tf.data.Dataset.from_tensor_slices(examples)
      for examples in data.clients[:_CLIENTS]
  ]
  topk = fedsmp_tff.TopK(_RATIO, public_examples=data.public)
  stack = tff.framework.get_context_stack()
  with (
      runtime.tff_context(max_concurrent_calls=-1, threads_per_call=0) as stock,
      runtime.tff_context() as ours,
  ):
    contenders = {
        'stock': (stock, *_stock(datasets)),
        'randk': (ours, *_ours(datasets, fedsmp_tff.RandK(_RATIO))),
        'topk': (ours, *_ours(datasets, topk)),
    }
    states = {}
    seconds = {name: [] for name in contenders}
    for repeat in tqdm.trange(_REPEATS.value + 1, unit='round each', disable=None):
      for name, (context, process, batches) in contenders.items():
        with stack.install(context):
          if not repeat:
            states[name] = process.initialize()
          start = time.monotonic()
          states[name] = process.next(states[name], batches).state
          if repeat:
            seconds[name].append(time.monotonic() - start)
  medians = {name: float(np.median(times)) for name, times in seconds.items()}
  print(f'a round of {_CLIENTS} Fashion-MNIST clients on {os.cpu_count()} cores')
  print(f'{"":8}{"median s":>10}{"min s":>10}{"max s":>10}{"of stock":>10}')
  for name, times in seconds.items():
    share = medians[name] / medians['stock']
    print(
        f'{name:8}{medians[name]:10.2f}{min(times):10.2f}{max(times):10.2f}'
        f'{share:10.2f}'
    )
  if _JSON.value:
    with open(_JSON.value, 'w', encoding='utf-8') as file:
      json.dump({'cores': os.cpu_count(), 'seconds': seconds}, file, indent=2)
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv))
