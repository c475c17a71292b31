"""Tests of the words of errors at a shell."""

import pytest

from tasks import errors


@pytest.mark.parametrize('text, words', [
    (
        '`clients_per_round` must be from 1 to `population`=6000. Found 7000.',
        '--clients_per_round must be from 1 to the number of clients, 6000. Found 7000.',
    ),
    ('`clipping_norm`=0 is too small.', '--clip=0 is too small.'),
    ('22 `bits` per value are too few.', '22 bits per value are too few.'),
    ('Start it with `ray start --head`.', 'Start it with `ray start --head`.'),
])
def test_arguments_of_the_library_become_flags_or_words(text, words):
  with pytest.raises(errors.InputError) as error, errors.naming_flags(['clients_per_round']):
    raise ValueError(text)
  assert str(error.value) == words


def test_a_command_with_a_flag_of_that_name_names_the_flag():
  assert errors.with_flags('`population`=3', ['population']) == '--population=3'


def test_only_a_close_choice_is_suggested():
  choices = ['shakespeare', 'svhn']
  assert errors.did_you_mean('shakespear', choices) == ' Did you mean shakespeare?'
  assert errors.did_you_mean('emnist', choices) == ''
