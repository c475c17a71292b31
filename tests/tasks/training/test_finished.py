"""Tests of finished runs whose checkpoints are removed."""

from tasks.training import finished
from tests.support import commands
from tests.support import runs_on_disk


def test_a_cleaned_run_is_smaller_and_finished(data_dir, tmp_path, capsys):
  done, cut = tmp_path / 'done', tmp_path / 'cut'
  arguments = commands.tiny(data_dir, done, '--seed=1', '--algorithm=dp_fedavg', '--eval_examples=5')
  assert commands.main(arguments) == 0
  runs_on_disk.write(cut, [0.1], rounds=9)
  (cut / 'checkpoints' / 'round_0').mkdir(parents=True)
  before = commands.story(done)
  assert list(done.glob('checkpoints/round_*'))
  assert finished.clean(done) and not finished.clean(cut)
  assert [path.name for path in (done / 'checkpoints').iterdir()] == ['cleaned']
  assert (cut / 'checkpoints' / 'round_0').exists()
  # The same command again: the run is there, and unchanged.
  capsys.readouterr()
  assert commands.main(arguments) == 0
  # Accuracies are of samples but for the last: there is no best one.
  assert '3 rounds, final accuracy' in capsys.readouterr().out and commands.story(done) == before
  # A second time there is nothing to do.
  assert not finished.clean(done)
