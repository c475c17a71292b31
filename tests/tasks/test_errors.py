"""Tests of the words of errors at a shell."""

from tasks import errors


def test_only_a_close_choice_is_suggested():
  choices = ['shakespeare', 'svhn']
  assert errors.did_you_mean('shakespear', choices) == ' Did you mean shakespeare?'
  assert errors.did_you_mean('emnist', choices) == ''
