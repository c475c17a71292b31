"""Tests that a failed check's sentence comes first, wherever it is found."""

import pytest
import tensorflow as tf

from fedsmp_tff.runtime import checks


@pytest.mark.parametrize(
    'text, sentence',
    [
        (
            'Graph execution error:\n\nDetected at node Assert\nassertion failed: [Of [3] slots.]'
            ' [Condition x == y] [x = ] [2]\n\t [[{{node Assert}}]]',
            'Of [3] slots.',
        ),
        ('assertion failed: [Too few.]', 'Too few.'),
    ],
)
def test_the_sentence_of_a_check_comes_first(text, sentence):
  error = tf.errors.InvalidArgumentError(None, None, text)
  with pytest.raises(tf.errors.InvalidArgumentError) as raised, checks.sentence_first():
    raise error
  assert str(raised.value) == sentence and raised.value.__cause__ is error


@pytest.mark.parametrize('error', [
    ValueError('assertion failed: [x]'),
    tf.errors.InvalidArgumentError(None, None, 'Incompatible shapes: [3] vs. [2]'),
])
def test_other_errors_stay_as_they_are(error):
  with pytest.raises(type(error)) as raised, checks.sentence_first():
    raise error
  assert raised.value is error
