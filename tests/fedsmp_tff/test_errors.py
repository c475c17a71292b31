"""Tests of what is said about errors."""

import pytest
import tensorflow as tf

from fedsmp_tff import errors


@pytest.mark.parametrize(
    'error, text',
    [
        (OSError(28, 'No space left on device'), 'No space left on device'),
        (ValueError('one\ntwo'), 'one'),
        (KeyError(), 'KeyError'),
        (
            tf.errors.ResourceExhaustedError(
                None, None, '{{function_node __wrapped__Save}} /x; full [Op:Save]'
            ),
            '/x; full',
        ),
    ],
)
def test_one_line(error, text):
  assert errors.reason(error) == text
