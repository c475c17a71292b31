"""Tests of what a user builds upon the library, from a directory outside of the repository."""

import pathlib
import subprocess
import sys

_ROOT = pathlib.Path(__file__).parents[2]
# A sparsifier that looks at the public update, one that remembers releases, and a channel.
_PARTS = '''
import dataclasses

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import runtime
from fedsmp_tff.mechanism import channel

runtime.set_local_context()
CLIP = 0.1
# Labels so far away that all clients' updates are clipped.
PUBLIC = (np.ones([8, 3], np.float32), np.full([8, 2], 10, np.float32))


class SmallestK(fedsmp_tff.SizedSparsifier):
  """Keeps the k coordinates that an update on public data moves least."""

  def public_training(self, client_training):
    return fedsmp_tff.PublicTraining(PUBLIC, client_training)

  def choose(self, context):
    order = tf.argsort(tf.abs(context.public_update()))
    return order[: self.num_kept(context.dim)]


class Unlike(fedsmp_tff.SizedSparsifier):
  """Keeps the coordinates whose releases were nearest to zero so far, the never kept ones first."""

  def initial_memory(self, dim):
    return {'sizes': tf.fill([dim], tf.constant(-1.0, tf.float64))}

  def remember(self, memory, release):
    sizes = tf.tensor_scatter_nd_update(
        memory['sizes'], release.coordinates[:, tf.newaxis], tf.abs(release.values)
    )
    return {'sizes': sizes}

  def choose(self, context):
    sizes = context.memory['sizes']
    return tf.argsort(sizes, stable=True)[: self.num_kept(context.dim)]


@dataclasses.dataclass(frozen=True)
class Coarse(channel.GaussianChannel):
  """Rounds to a coarse grid before the noise."""

  def encode(self, values, seed, public_seed):
    return super().encode(tf.round(values * 4) / 4, seed, public_seed)


def coarse(mechanism, num_values, scale):
  numbers = dataclasses.asdict(mechanism.encoding(num_values, scale))
  return Coarse(**numbers, num_values=num_values, share_stddev=mechanism.share_stddev)


keras_model = tf.keras.Sequential([tf.keras.layers.InputLayer((3,)), tf.keras.layers.Dense(2)])
spec = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 2]))
optimizer = tff.learning.optimizers.build_sgdm(0.1)
training = fedsmp_tff.LocalTraining(optimizer, batch_size=4, epochs=1)
dataset = tf.data.Dataset.from_tensor_slices(PUBLIC)


def factory(sparsifier):
  return fedsmp_tff.FedSmpFactory(
      sparsifier, fedsmp_tff.Mechanism(3, clipping_norm=CLIP, noise_multiplier=1e-3),
      make_channel=coarse,
  )


def stock(sparsifier):
  return tff.learning.algorithms.build_unweighted_fed_avg(
      lambda: tff.learning.models.from_keras_model(
          tf.keras.models.clone_model(keras_model),
          loss=tf.keras.losses.MeanSquaredError(), input_spec=spec,
      ),
      optimizer, model_aggregator=factory(sparsifier),
      metrics_aggregator=fedsmp_tff.no_client_metrics,
  )


def moved(process, state, data):
  after = process.next(state, data).state
  steps = np.concatenate([
      np.ravel(b - a) for b, a in zip(
          process.get_model_weights(state).trainable, process.get_model_weights(after).trainable
      )
  ])
  kept = np.asarray(state.aggregator.coordinates)
  assert len(kept) == 3 and set(np.flatnonzero(steps)) == set(kept)
  # Clients are alike, and their values are quarters of C, but for noise of C / 3000.
  quarters = 4 * steps / CLIP
  np.testing.assert_allclose(quarters, np.round(quarters), atol=0.02)
  assert np.any(np.round(quarters))
  return after, np.abs(np.round(quarters)), kept
'''
_OWN = '''
model = tff.learning.models.functional_model_from_keras(
    keras_model, tf.keras.losses.MeanSquaredError(), spec
)
process = fedsmp_tff.build_fed_smp(model, training, factory(SmallestK(num=3)))
tff.test.assert_not_contains_unsecure_aggregation(process.next)
_, quarters, kept = moved(process, process.initialize(), [dataset] * 3)
# All public examples are the same, so that all coordinates of an output move alike: least
# those of the output whose error is least.
kernel, bias = process.get_model_weights(process.initialize()).trainable
least = np.argmin(np.abs(kernel.sum(axis=0) + bias - 10))
assert {int(coordinate) % 2 for coordinate in kept} == {least}, kept
# Each has 0.577 of C, which is nearest to a half.
assert quarters[kept].tolist() == [2, 2, 2], quarters
'''
_STOCK = '''
process = stock(Unlike(num=3))
tff.test.assert_not_contains_unsecure_aggregation(process.next)
state = process.initialize()
sizes = np.full(8, -4 / CLIP)  # In quarters of C.
for expected in ([0, 1, 2], [3, 4, 5], None):
  memory = state.aggregator.memory['sizes']
  np.testing.assert_allclose(4 * memory / CLIP, sizes, atol=0.02)
  after, quarters, kept = moved(process, state, [dataset.batch(4)] * 3)
  if expected is None:  # The two that no round kept, and the least of the six others.
    assert {6, 7} < set(kept) and set(kept) == set(np.argsort(memory)[:3])
  else:
    assert kept.tolist() == expected
  state = after
  sizes[kept] = quarters[kept]
'''
_NOT_IN_STOCK = '''
try:
  stock(SmallestK(num=3))
except ValueError as error:
  print(error)
'''


def test_parts_of_the_users_own_and_a_sentence_for_what_stock_processes_have_not(tmp_path):
  (tmp_path / 'mine.py').write_text(''.join([_PARTS, _OWN, _STOCK, _NOT_IN_STOCK]))
  done = subprocess.run(
      [sys.executable, 'mine.py'], cwd=tmp_path, text=True, capture_output=True, check=False,
      env={'PYTHONPATH': str(_ROOT), 'PATH': '/usr/bin:/bin', 'TF_CPP_MIN_LOG_LEVEL': '3'},
  )
  assert done.returncode == 0, done.stderr
  assert '`SmallestK` chooses coordinates by training on public data' in done.stdout
  assert 'fedsmp_tff.build_fed_smp' in done.stdout
