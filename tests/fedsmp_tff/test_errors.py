"""Tests of what is said about errors."""

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
def test_one_line(error, text):
  assert errors.reason(error) == text


@pytest.mark.parametrize('text, sentence', [
    ('Graph execution error:\n\nDetected at node Assert\nassertion failed: [Of [3] slots.]'
     ' [Condition x == y] [x = ] [2]\n\t [[{{node Assert}}]]', 'Of [3] slots.'),
    ('assertion failed: [Too few.]', 'Too few.'),
    ('Incompatible shapes: [3] vs. [2]', None),
])
def test_the_sentence_of_a_failed_check(text, sentence):
  assert errors.failed_check(tf.errors.InvalidArgumentError(None, None, text)) == sentence
