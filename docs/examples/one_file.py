"""A private run in one file, to fork: public training, Fed-SMP top-k, a ledger, and an audit.

  python -m docs.examples.one_file    # in a clone; about a minute on two CPU cores

(EPSILON, DELTA) covers the model after every round, for one client more or less with all of its
images, against anyone who sees these models but not the cohorts. It does not cover public and test
images, the choice of the constants below by results, time and memory. Each execution is one more
run on the same clients, and epsilons add up. Clients and secure aggregation are SIMULATED in this
process.
"""

import gzip
import os
import pathlib
import sys
import tempfile

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import runtime
from fedsmp_tff.privacy import auditing
from fedsmp_tff.privacy import ledger as ledger_lib

DATA = pathlib.Path('/usr/share/datasets/fashion-mnist')
NUM_PUBLIC, NUM_CLIENTS = 1000, 5900  # Images; clients with ten of the other 59,000 images each.
CLIENTS_PER_ROUND, ROUNDS = 200, 40
EPSILON, DELTA, CLIP, P = 2.0, 7e-5, 0.3, 0.2  # CLIP is C; P is k/d.
PUBLIC_EPOCHS = 15
AUDIT_RELEASES = 20_000  # With the canary, and without it.


def read(part):
  """Returns images float32[num, 28, 28] in [0, 1] and labels int32[num]."""
  with gzip.open(DATA / f'{part}-images-idx3-ubyte.gz') as file:
    images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 28, 28)
  with gzip.open(DATA / f'{part}-labels-idx1-ubyte.gz') as file:
    labels = np.frombuffer(file.read(), np.uint8, offset=8)
  return images.astype(np.float32) / 255, labels.astype(np.int32)


def network():
  """Returns a new Keras model."""
  layers = tf.keras.layers
  hidden, logits = layers.Dense(32, 'relu'), layers.Dense(10)
  return tf.keras.Sequential([layers.InputLayer((28, 28)), layers.Flatten(), hidden, logits])


def pretrain(x, y):
  """Returns a network that was trained on public images alone."""
  trained = network()
  loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
  trained.compile(tf.keras.optimizers.Adam(0.003), loss)
  trained.fit(x, y, batch_size=32, epochs=PUBLIC_EPOCHS, verbose=0)
  return trained


def train(train_data, test_data):
  """Trains, prints accuracy and epsilon, and returns the noise multiplier sigma."""
  (x, y), (test_x, test_y) = train_data, test_data
  order = np.random.default_rng(1).permutation(len(x))
  public, clients = order[:NUM_PUBLIC], np.array_split(order[NUM_PUBLIC:], NUM_CLIENTS)
  model = tff.learning.models.functional_model_from_keras(
      network(),
      tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      (tf.TensorSpec([None, 28, 28], tf.float32), tf.TensorSpec([None], tf.int32)),
  )
  spec = fedsmp_tff.PrivacySpec.for_epsilon(
      EPSILON, population=NUM_CLIENTS, clients_per_round=CLIENTS_PER_ROUND, rounds=ROUNDS,
      clipping_norm=CLIP, delta=DELTA,
  )
  mask = fedsmp_tff.TopK(P, public_examples=(x[public], y[public]))
  process = fedsmp_tff.build_fed_smp(
      model,
      fedsmp_tff.LocalTraining(tff.learning.optimizers.build_sgdm(0.1), batch_size=10, epochs=5),
      fedsmp_tff.FedSmpFactory(mask, spec.mechanism()),
  )

  datasets = [tf.data.Dataset.from_tensor_slices((x[rows], y[rows])) for rows in clients]
  trained = pretrain(x[public], y[public])

  def score():
    return np.mean(np.argmax(trained(test_x), axis=1) == test_y)

  print(f'public images alone: test accuracy {score():.2%}', flush=True)
  start = tff.learning.models.ModelWeights.from_model(trained)
  state, sampler = process.set_model_weights(process.initialize(), start), spec.sampler()
  path = pathlib.Path(tempfile.mkdtemp(prefix='one_file_')) / 'privacy_ledger.jsonl'
  with ledger_lib.Ledger(path, spec, 'one_file', data='Fashion-MNIST') as ledger:
    for round_num in range(ROUNDS):
      participants = sampler.sample(ledger.begin(round_num))  # On disk before the round.
      state = process.next(state, fedsmp_tff.cohort(participants, datasets)).state
      process.get_model_weights(state).assign_weights_to(trained)
      print(f'round {round_num + 1}/{ROUNDS}: test accuracy {score():.2%}', flush=True)
    epsilon = spec.epsilon(rounds=ledger.rounds_charged())
  print(f'accuracy {score():.2%}, epsilon {epsilon:.3f} at delta {DELTA:g}, ledger {path}')
  return spec.noise_multiplier


def audit(noise_multiplier):
  """Prints a lower bound on epsilon of a release with all clients, from a canary's scores."""
  slots = 4
  spec = fedsmp_tff.PrivacySpec(slots, slots, 1, noise_multiplier, CLIP, DELTA)
  steps = fedsmp_tff.FedSmpFactory(fedsmp_tff.RandK(num=8), spec.mechanism()).round([(16,)])
  state = steps.choose(steps.initial_state(seed=None))

  def score(reports):  # One release, from the reports of its slots.
    slot_reports = [{name: t[i] for name, t in reports.items()} for i in range(slots)]
    return tf.reduce_sum(steps.finish(steps.sum(slot_reports), state)[0])

  @tf.function
  def scores(canary, seeds):
    updates = tf.tile(tf.concat([[canary], tf.zeros([slots - 1, 16])], 0), [len(seeds), 1])
    pairs = updates, tf.reshape(seeds, [-1, 2])
    reports = tf.vectorized_map(lambda pair: steps.report(pair[0], state, pair[1]), pairs)
    reports = {name: tf.reshape(t, [-1, slots, *t.shape[1:]]) for name, t in reports.items()}
    return tf.map_fn(score, reports, fn_output_signature=tf.float64)

  seeds = np.random.default_rng().integers(2**63, size=[2, AUDIT_RELEASES, slots, 2])
  present, absent = (scores(tf.fill([16], x), s).numpy() for x, s in zip((1e3, 0.0), seeds))
  bound = auditing.epsilon_of_one_release(present, absent, DELTA).epsilon
  print(f'audit, one release, all clients: epsilon > {bound:.3f}; accountant: {spec.epsilon():.3f}')


if __name__ == '__main__':
  try:
    arrays = read('train'), read('t10k')
  except OSError as error:
    sys.exit(f"Fashion-MNIST can't be read; install Debian's dataset-fashion-mnist ({error}).")
  runtime.set_local_context()  # Before TensorFlow runs anything.
  audit(train(*arrays))
