"""Tests of files of weights that public examples trained: trained once, and never another's."""

import json

import pytest

from tasks.training import public_model
from tests.support import commands

_ARGUMENTS = ('--algorithm=dp_fedavg', '--public_examples=20', '--warm_start=public', '--rounds=1')


@pytest.fixture
def trainings(monkeypatch):
  """The seeds of the trainings on public examples, one for each."""
  made, train = [], public_model.train

  def counted(model, is_scored, examples, seed, *others):
    made.append(seed)
    return train(model, is_scored, examples, seed, *others)

  monkeypatch.setattr(public_model, 'train', counted)
  return made


@pytest.fixture
def run(data_dir, tmp_path):

  def make(name, *arguments, rounds=True):
    out = tmp_path / name
    line = commands.tiny(data_dir, out, *_ARGUMENTS, *arguments)
    if not rounds:  # Trains and measures, in a fifth of the time.
      of_rounds = ('--clients_per_round', '--rounds=', '--local_epochs', '--batch_size', '--warm')
      line = [flag for flag in line if not flag.startswith(of_rounds)]
      line.append('--algorithm=public_only')
    assert commands.main(line) == 0
    return out

  return make


class TestExecution:

  def test_runs_that_begin_alike_train_once_and_are_the_same(self, run, trainings, tmp_path):
    directory = f'--public_weights_dir={tmp_path / "kept"}'
    alone = run('alone', '--seed=1')
    first, second = (run(name, '--seed=1', directory) for name in 'ab')
    assert len(trainings) == 2 and len(list((tmp_path / 'kept').iterdir())) == 1
    assert commands.story(alone) == commands.story(first) == commands.story(second)
    records = [
        json.loads((out / 'config.json').read_text())['record']['public_training']
        for out in (alone, first, second)
    ]
    assert records[0] == records[1] == records[2]
    assert set(records[0]) == {'learning_rate', 'epochs', 'temperature', 'validation_accuracy'}

  def test_whatever_the_training_follows_from_has_another_file(self, run, trainings, tmp_path):
    directory = f'--public_weights_dir={tmp_path / "kept"}'
    for position, other in enumerate((
        '--seed=1', '--seed=2', '--initializer=torch', '--public_examples=21',
        '--fashion_mnist_dense_units=5',
    )):
      run(f'{position}', '--seed=1', directory, other, rounds=False)
      assert len(trainings) == len(list((tmp_path / 'kept').iterdir())) == position + 1

  def test_a_damaged_file_is_made_again(self, run, trainings, tmp_path):
    directory = f'--public_weights_dir={tmp_path / "kept"}'
    whole = run('a', '--seed=1', directory, rounds=False)
    (file,) = (tmp_path / 'kept').iterdir()
    file.write_bytes(file.read_bytes()[:100])
    again = run('b', '--seed=1', directory, rounds=False)
    assert len(trainings) == 2 and commands.story(whole) == commands.story(again)
    run('c', '--seed=1', directory, rounds=False)
    assert len(trainings) == 2

  def test_a_directory_that_can_t_be_written_is_refused(self, data_dir, tmp_path, capsys):
    (tmp_path / 'file').write_text('')
    arguments = commands.tiny(
        data_dir, tmp_path / 'run', *_ARGUMENTS, f'--public_weights_dir={tmp_path}/file'
    )
    assert commands.main(arguments) == 2
    assert f'--public_weights_dir={tmp_path}/file can\'t be written' in capsys.readouterr().err
