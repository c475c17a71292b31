"""Tests that TFF's own training program runs, and resumes."""

import asyncio

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from tests.support import processes
from tests.support import tiny_models


class _Cohorts(tff.program.FederatedDataSource, tff.program.FederatedDataSourceIterator):
  """The same cohort in each round, so that there is no state to save."""

  federated_type = None  # Nothing asks for it.

  def iterator(self):
    return self

  def select(self, k=None):
    return [
        fedsmp_tff.tag_client(
            i, tf.data.Dataset.from_tensor_slices(tiny_models.regression_examples(7, seed=i))
        )
        for i in range(k)
    ]

  def to_bytes(self):
    return b''

  @classmethod
  def from_bytes(cls, buffer):
    return cls()


def _train(process, directory, rounds):
  released = tff.program.MemoryReleaseManager()
  asyncio.run(
      tff.learning.programs.train_model(
          train_process=process,
          train_data_source=_Cohorts(),
          train_per_round_clients=6,
          train_total_rounds=rounds,
          program_state_manager=tff.program.FileProgramStateManager(str(directory)),
          model_output_manager=released,
          evaluation_manager=None,
          evaluation_periodicity=1,
      )
  )
  return released.values()[f'training_checkpoint_round_{rounds}']


def test_train_model_trains_as_a_loop_does_and_resumes(tmp_path):
  process = processes.fed_smp(
      tiny_models.linear_regression(),
      fedsmp_tff.LocalTraining(tff.learning.optimizers.build_sgdm(0.1), 3, epochs=1),
      fedsmp_tff.RandK(0.5), clients_per_round=6, clipping_norm=1.0, noise_multiplier=1.0, seed=3,
  )
  state = process.initialize()
  for _ in range(3):
    state = process.next(state, _Cohorts().select(6)).state
  _train(process, tmp_path, 2)
  trained = _train(process, tmp_path, 3)
  assert trained.aggregator.round_num == 3
  for ours, theirs in zip(
      state.global_model_weights.trainable, trained.global_model_weights.trainable
  ):
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
