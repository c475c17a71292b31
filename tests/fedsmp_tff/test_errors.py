"""Tests of what is said about errors."""

import math

import pytest
import tensorflow as tf

from fedsmp_tff import errors


def _exhausted():
  text = '{{function_node __wrapped__Save}} /x; full [Op:Save]'
  return tf.errors.ResourceExhaustedError(None, None, text)


@pytest.mark.parametrize('error, text', [
    (OSError(28, 'No space left on device'), 'No space left on device'),
    (ValueError('one\ntwo'), 'one'),
    (KeyError(), 'KeyError'),
    (_exhausted(), '/x; full'),
])
def test_reason_is_one_line(error, text):
  assert errors.reason(error) == text


@pytest.mark.parametrize('text, printed', [
    ('plain \u00e4 text', 'plain \u00e4 text'), ('\x1b[2J\n', r'\x1b[2J\n'), (3, '3'),
    ('\u202e\ud800\x9b', r'\u202e\ud800\x9b'),
])
def test_controls_of_a_terminal_are_escaped(text, printed):
  assert errors.printable(text) == printed


@pytest.mark.parametrize('value, kinds', [
    (True, (int,)), (1.0, (int,)), ('1', (int,)), (None, (str,)), (1, (float,)), ([], (dict,)),
    (math.nan, (float,)), (-math.inf, (float,)), (2**63, (int,)), (-(10**400), (int, float)),
])
def test_a_field_of_another_type_is_refused(value, kinds):
  with pytest.raises(ValueError, match='`a` must be of type .* Found '):
    errors.check_fields({'a': value}, {'a': kinds})


def test_a_missing_field_is_refused_and_others_are_ignored():
  errors.check_fields({'a': 2**63 - 1, 'b': -1.5, 'c': object()}, {'a': (int,), 'b': (int, float)})
  with pytest.raises(ValueError, match='`a` must be of type str. Found nothing'):
    errors.check_fields({}, {'a': (str,)})
  with pytest.raises(ValueError, match='must be a JSON object. Found 3'):
    errors.check_fields(3, {})


@pytest.mark.parametrize('in_graph', [False, True])
def test_after_check_fails_unless_the_condition_holds(in_graph):
  def positive(x):
    return errors.after_check(x > 0, f'{1} of [it].', x)

  function = tf.function(positive) if in_graph else positive
  assert function(tf.constant(2)) == 2
  with pytest.raises(tf.errors.InvalidArgumentError, match=r'1 of \[it\]\.') as raised:
    function(tf.constant(0))
  if in_graph:
    assert errors.failed_check(raised.value) == '1 of [it].'


@pytest.mark.parametrize('text, sentence', [
    ('Graph execution error:\n\nDetected at node Assert\nassertion failed: [Of [3] slots.]'
     ' [Condition x == y] [x = ] [2]\n\t [[{{node Assert}}]]', 'Of [3] slots.'),
    ('assertion failed: [Too few.]', 'Too few.'),
    ('Incompatible shapes: [3] vs. [2]', None),
])
def test_failed_check_returns_the_sentence(text, sentence):
  assert errors.failed_check(tf.errors.InvalidArgumentError(None, None, text)) == sentence
