"""Tests that data which do not fit a model, or are not finite, are refused when they load."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from tasks import errors
from tasks.datasets import checks
from tasks.datasets import task as task_lib

_SPEC = (tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], tf.int32))


def _examples(num=3):
  return np.zeros([num, 2], np.float32), np.zeros(num, np.int32)


def _data(**sets):
  data = task_lib.TaskData(
      [_examples(), _examples(0), _examples()], _examples(), _examples(), 'made up',
      ('ann', 'bob', 'cid'),
  )
  return dataclasses.replace(data, **sets)


def _check(examples, input_spec=_SPEC):
  checks.check_data('own', _data(clients=[_examples(), _examples(0), examples]), input_spec)


def _with(value, row=1):
  x, y = _examples()
  x[row, 1] = value
  return x, y


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('sets, owner', [
    (lambda e: dict(clients=[_examples(), _examples(), e]), "client 'cid'"),
    (lambda e: dict(clients=[_examples(), e], client_ids=()), 'client 1'),
    (lambda e: dict(test=e), 'the test set'),
    (lambda e: dict(test=e, has_validation=True), 'the validation set'),
    (lambda e: dict(public=e), 'the public set'),
])
def test_a_non_finite_value_is_named_with_owner_and_row(value, sets, owner):
  with pytest.raises(errors.InputError, match=(
      f'^--task=own: {owner} has a value in x that is not finite, first in example 2. Remove'
  )):
    checks.check_data('own', _data(**sets(_with(value, 2))), _SPEC)


@pytest.mark.parametrize('examples, found', [
    ((np.zeros([3, 2]), np.zeros(3, np.int32)), r'x of float64\(3, 2\), but .* float32\(None, 2\)'),
    ((np.zeros([3, 4], np.float32), np.zeros(3, np.int32)), r'x of float32\(3, 4\), but'),
    ((np.zeros([3], np.float32), np.zeros(3, np.int32)), r'x of float32\(3,\), but'),
    ((_examples()[0], np.zeros(3, np.int64)), r'labels of int64\(3,\), but .* int32\(None,\)'),
    ((_examples()[0], np.zeros([3, 1], np.int32)), r'labels of int32\(3, 1\), but'),
    ((_examples()[0], _examples(2)[1]), '3 x and 2 labels'),
    (dict(zip('xy', _examples())), 'examples that are not a pair of NumPy arrays'),
    (([[0.0, 0.0]], [1]), 'examples that are not a pair of NumPy arrays'),
])
def test_examples_of_another_form_are_refused(examples, found):
  with pytest.raises(errors.InputError, match=f"^--task=own: client 'cid' has {found}"):
    _check(examples)


@pytest.mark.parametrize('label, num_classes, padding, found', [
    (-1, None, None, 'wrong labels: label -1 is not one of 0 to'),
    (-1, 3, None, 'wrong labels: label -1 is not one of 0 to 2. Number'),
    (3, 3, None, 'wrong labels: label 3 is not one of 0 to 2'),
    (3, 3, 4, 'wrong labels: label 3 is not one of 0 to 2'),
    (2, 3, None, None), (-1, 3, -1, None), (10**9, None, None, None),
])
def test_labels_outside_the_classes_are_refused(label, num_classes, padding, found):
  x, y = _examples()
  data = _data(public=(x, np.array([0, 1, label], np.int32)))
  if found is None:
    checks.check_data('own', data, _SPEC, num_classes, padding)
    return
  with pytest.raises(errors.InputError, match=f'^--task=own: the public set has {found}'):
    checks.check_data('own', data, _SPEC, num_classes, padding)


def test_valid_data_are_accepted():
  checks.check_data('own', _data(), _SPEC)
  images = np.full([3, 4, 4, 1], 255, np.uint8), np.zeros([3, 1], np.int64)
  spec = tf.TensorSpec([None, None, 4, 1], tf.uint8), tf.TensorSpec([None, 1], tf.int64)
  checks.check_spec('own', spec)
  checks.check_data('own', _data(clients=[images], client_ids=(), test=images, public=None), spec)


@pytest.mark.parametrize('kind', [tf.float32, tf.string])
def test_a_model_with_non_integer_labels_is_refused(kind):
  with pytest.raises(errors.InputError, match=(
      f'^--task=own: labels must be classes, int32.*has {kind.name}. Return classes'
  )):
    checks.check_spec('own', (_SPEC[0], tf.TensorSpec([None, 2], kind)))


@pytest.mark.parametrize('spec', [
    dict(zip('xy', _SPEC)), _SPEC[:1], (dict(a=_SPEC[0]), _SPEC[1]),
])
def test_a_model_without_a_pair_of_inputs_is_refused(spec):
  with pytest.raises(errors.InputError, match='must be a pair of `tf.TensorSpec`s, of x and of'):
    checks.check_spec('own', spec)
