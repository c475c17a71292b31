"""TFF's `train_model` with Fed-SMP's aggregator and the cohorts of the privacy spec.

  python -m docs.examples.train_model    # in a clone

`train_model` keeps no privacy ledger. A round that runs again after a crash, or that
`should_discard_round` rejects, is one more release: the caller has to count it. Leave out
`train_metrics_manager`, which needs client metrics. TFF's `DatasetDataSource` does not fit: it
draws a fixed number of clients, its state in a checkpoint is all client data, and `train_model`
cannot copy it.
"""

import asyncio
import os
import tempfile

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from fedsmp_tff import runtime

runtime.set_local_context()  # Rounds run in this process; secure sums are simulated.
MODEL = tff.learning.models.functional_model_from_keras(
    tf.keras.Sequential([tf.keras.layers.InputLayer((3,)), tf.keras.layers.Dense(2)]),
    tf.keras.losses.MeanSquaredError(),
    (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 2])),
)
SPEC = fedsmp_tff.PrivacySpec(
    population=100, clients_per_round=10, rounds=5, noise_multiplier=1.4, clipping_norm=1.0,
    delta=1e-3,
)
PROCESS = tff.learning.algorithms.build_unweighted_fed_avg(
    MODEL,
    tff.learning.optimizers.build_sgdm(0.1),
    model_aggregator=fedsmp_tff.FedSmpFactory(fedsmp_tff.RandK(0.5), SPEC.mechanism()),
    metrics_aggregator=fedsmp_tff.no_client_metrics,
)
DATASET = tf.data.Dataset.from_tensor_slices((tf.ones([8, 3]), tf.ones([8, 2]))).batch(4)
CLIENTS = [DATASET] * SPEC.population  # Entry i is the data of client i.


class Cohorts(tff.program.FederatedDataSource, tff.program.FederatedDataSourceIterator):
  """Draws the cohort of each round. Draws are fresh, so that it has no state to save."""

  federated_type = PROCESS.next.type_signature.parameter[1]

  def iterator(self):
    return self

  def select(self, k=None):
    participants = SPEC.sampler().sample(draw=0)
    assert k == len(participants)
    return fedsmp_tff.cohort(participants, CLIENTS)

  def to_bytes(self):
    return b''

  @classmethod
  def from_bytes(cls, buffer):
    return cls()


def main():
  """Trains, and prints the privacy cost."""
  models = tff.program.MemoryReleaseManager()
  # With a directory that lasts, the program resumes after the last saved round.
  with tempfile.TemporaryDirectory() as directory:
    asyncio.run(tff.learning.programs.train_model(
        train_process=PROCESS,
        train_data_source=Cohorts(),
        train_per_round_clients=SPEC.num_slots,
        train_total_rounds=SPEC.rounds,
        # Saves of `train_model` overlap, and their removals of old states would collide.
        program_state_manager=tff.program.FileProgramStateManager(directory, keep_total=0),
        model_output_manager=models,
        evaluation_manager=None,
        evaluation_periodicity=1,
    ))
  state = models.values()[f'training_checkpoint_round_{SPEC.rounds}']
  print(f'{state.aggregator.round_num} rounds, epsilon {SPEC.epsilon():.3f}, delta {SPEC.delta:g}')


if __name__ == '__main__':
  main()
