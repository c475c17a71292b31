"""Learning processes of a linear model, and their rounds without noise in NumPy."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from tests.support import numpy_reference
from tests.support import tiny_models

CLIENTS, DIM, RATE, MOMENTUM, STEPS = 3, 10, 0.05, 0.9, 4
PUBLIC = tiny_models.regression_examples(8, seed=77)


def training(**options):
  """SGD with momentum, STEPS steps on all of a client's examples."""
  # Batches as large as the data: the order of examples does not matter.
  optimizer = tff.learning.optimizers.build_sgdm(RATE, MOMENTUM)
  return fedsmp_tff.LocalTraining(optimizer, 8, steps=STEPS, **options)


def examples():
  """Each client's examples."""
  return [tiny_models.regression_examples(8, seed=i) for i in range(CLIENTS)]


def datasets():
  """The examples as datasets."""
  return [tf.data.Dataset.from_tensor_slices(e) for e in examples()]


def flat(weights):
  """The trainable weights as one vector."""
  return np.concatenate([np.reshape(w, -1) for w in weights.trainable])


def numpy_update(weights, examples, rate):
  """The update of `training` at a learning rate."""
  parts = numpy_reference.linear_regression_update(
      weights.trainable, *examples,
      batches=[np.arange(len(examples[0]))] * STEPS,
      learning_rate=rate, momentum=MOMENTUM,
  )
  return np.concatenate([part.reshape(-1) for part in parts])


def check_only_a_secure_sum_of_integers(process, kept):
  """Checks that `kept` integers and a count are all that leaves a client."""
  assert isinstance(process, tff.learning.templates.LearningProcess)
  tff.test.assert_not_contains_unsecure_aggregation(process.next)
  form = tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next)
  plain, bitwidth, secure, modular = form.work.type_signature.result
  assert [len(part) for part in (plain, bitwidth, modular)] == [0, 0, 0]
  (report,) = secure
  assert tff.types.is_structure_of_integers(report)
  assert list(tff.structure.name_list(report)) == ['values', 'participants']
  assert report.values == tff.TensorType(np.int32, [kept])


def check_two_rounds(process, scale, clip, topk=False, fixed=None, form=lambda pair: pair):
  """Checks two rounds without noise against NumPy.

  Args:
    process: Keeps 4 coordinates, unless others are fixed.
    scale: What clients multiply their kept values with.
    clip: C; None: no clipping.
    topk: Whether it keeps the top coordinates of an update on `PUBLIC`.
    fixed: The coordinates of every round, if no state has them.
    form: Makes the examples that the process takes of a pair (x, y).
  """
  state = process.initialize()
  for _ in range(2):
    before = process.get_model_weights(state)
    updates = [numpy_update(before, e, RATE) for e in examples()]
    coordinates = state.aggregator.coordinates
    if topk:
      public = numpy_update(before, PUBLIC, RATE)
      np.testing.assert_array_equal(coordinates, numpy_reference.top_coordinates(public, 4))
    if fixed is not None:
      coordinates = fixed
    expected = numpy_reference.mean_without_noise(updates, coordinates, scale, clip)
    data = [tf.data.Dataset.from_tensor_slices(form(e)) for e in examples()]
    output = process.next(state, data)
    state = output.state
    moved = flat(before) - flat(process.get_model_weights(state))
    # Steps of the encoding are under 1e-5 (16 d/k over 2^28); floats add to that.
    np.testing.assert_allclose(moved, expected, atol=1e-5, rtol=1e-4)
    assert output.metrics['aggregator']['participants'] == CLIENTS
