"""Runs of `tasks.run` in one pytest process share what TFF and TensorFlow compile for them.

A tiny run then takes a third of the time. Results stay the same: two runs share a learning process
if all that its graphs are made of is equal, and a context keeps graphs alone.
"""

import contextlib
import dataclasses

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff.runtime import local
from tasks.training import evaluation
from tasks.training import experiment as experiment_lib
from tasks.training import runtime_flags as runtime_flags_lib

# Settings that are in no graph, or are there as numbers of the mechanism.
_NOT_IN_GRAPHS = frozenset([
    'rounds_per_evaluation', 'eval_examples', 'validation_examples', 'seed', 'epsilon',
    'epsilon_budget', 'noise_multiplier', 'delta',
])


@pytest.fixture(scope='session', autouse=True)
def compiled_once():
  """Has runs in this process share their context, learning processes and measurements."""
  contexts, processes, measurements = {}, {}, {}
  own_context, own_build = runtime_flags_lib.context, evaluation.build
  own_process = experiment_lib.Experiment.process

  @contextlib.contextmanager
  def context(settings):
    if settings.runtime != 'local' or settings.devices is not None:
      with own_context(settings):
        yield
      return
    if settings.workers not in contexts:
      contexts[settings.workers] = local._create(None, settings.workers)
    with tff.framework.get_context_stack().install(contexts[settings.workers]):
      yield

  def process(experiment):
    key = _key_of(experiment)
    if key not in processes:
      processes[key] = own_process(experiment)
    return processes[key]

  def build(model, is_scored, padding=None):
    experiment = getattr(is_scored, '__self__', None)
    if experiment is None:  # Not of a run.
      return own_build(model, is_scored, padding)
    settings = experiment.settings
    specs = tf.nest.map_structure(tf.TensorSpec.from_tensor, _tensors(model.initial_weights))
    key = (settings.task, settings.task_options, padding, str(model.input_spec), str(specs))
    if key not in measurements:
      measurements[key] = own_build(model, is_scored, padding)
    return measurements[key]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(runtime_flags_lib, 'context', context)
    patch.setattr(experiment_lib.Experiment, 'process', process)
    patch.setattr(evaluation, 'build', build)
    yield
  for made in contexts.values():
    made.close()


def _tensors(weights):
  return tf.nest.map_structure(tf.convert_to_tensor, weights)


def _key_of(experiment):
  """What the graphs of a run's learning process are made of."""
  settings = {
      field.name: getattr(experiment.settings, field.name)
      for field in dataclasses.fields(experiment.settings) if field.name not in _NOT_IN_GRAPHS
  }
  if settings['server_learning_rate_schedule'] == 'constant':
    del settings['rounds']
  arrays = (experiment.model.initial_weights, experiment.examples.public or ())
  return (
      type(experiment), repr(sorted(settings.items())), experiment.seeds.process,
      experiment.aggregator.mechanism,
      *(array.numpy().tobytes() for array in tf.nest.flatten(_tensors(arrays))),
  )
