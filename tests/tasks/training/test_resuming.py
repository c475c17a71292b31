"""Tests of runs that resume: as if undisturbed, and with the same data and flags, whole files."""

import glob
import json
import os
import shutil
import signal

import numpy as np
import pytest

from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import sampling
from fedsmp_tff.program import checkpoints
from tasks.cli import interruption
from tasks.training import resuming
from tasks.training import run_directory
from tests.support import commands
from tests.support import interrupted
from tests.support import small_data

_SEEDED = ('--seed=1',)


@pytest.fixture(scope='module')
def finished_once(tmp_path_factory):
  path = tmp_path_factory.mktemp('finished')
  small_data.write_fashion_mnist(path / 'data')
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(checkpoints, '_SHARE_OF_TIME', 1e9)  # A checkpoint after each round.
    assert commands.main(commands.tiny(path / 'data', path / 'a', *_SEEDED)) == 0
  return path / 'a'


@pytest.fixture
def finished(finished_once, data_dir, tmp_path):
  """A run of three rounds, and its command line."""
  shutil.copytree(finished_once, tmp_path / 'a')
  return tmp_path / 'a', commands.tiny(data_dir, tmp_path / 'a', *_SEEDED)


class _StopAfter:
  """SIGTERM between two rounds of a command in this process, after the given rounds."""

  def __init__(self, monkeypatch, *rounds):
    self._left = list(rounds)
    self._done = 0
    monkeypatch.setattr(interruption.Interruption, 'check', lambda _: self._check())

  def _check(self):
    if self._left and self._done == self._left[0]:
      self._left.pop(0)
      raise interruption.Interrupted(signal.SIGTERM)
    self._done += 1


class TestGoingOn:

  def test_a_seeded_run_is_as_if_undisturbed(self, data_dir, tmp_path, monkeypatch, capsys):
    flags = ['--algorithm=fedsmp_topk', '--seed=1', '--rounds=4']
    assert commands.main(commands.tiny(data_dir, tmp_path / 'a', *flags)) == 0
    arguments = commands.tiny(data_dir, tmp_path / 'b', *flags)
    _StopAfter(monkeypatch, 1, 3)
    assert commands.main(arguments) == 143
    assert json.loads((tmp_path / 'b' / 'summary.json').read_text())['rounds'] == 1
    assert commands.main(arguments) == 143
    assert commands.main(arguments) == 0
    printed = capsys.readouterr().out
    assert 'resuming after round 1 of 4' in printed
    assert 'resuming after round 3 of 4' in printed
    interrupted.assert_equal(tmp_path / 'b', tmp_path / 'a')
    interrupted.assert_no_leftovers(tmp_path / 'b')

  def test_rounds_after_the_checkpoint_are_run_again_once(self, finished, tmp_path, capsys):
    out, arguments = finished
    shutil.copytree(out, tmp_path / 'b')
    shutil.rmtree(out / 'checkpoints' / 'round_3')
    shutil.rmtree(out / 'checkpoints' / 'round_2')
    with open(out / 'metrics.csv', 'ab') as file:
      file.write(b'4,2.5')  # A row that was being written.
    assert commands.main(arguments) == 0
    printed = capsys.readouterr().out
    assert 'resuming after round 1 of 3' in printed and 'run again' in printed
    assert 'counts them again' not in printed
    interrupted.assert_equal(out, tmp_path / 'b')

  def test_an_unseeded_run_counts_rounds_that_are_run_again(
      self, data_dir, tmp_path, monkeypatch, capsys, checkpoint_each_round
  ):
    out = tmp_path / 'a'
    arguments = commands.tiny(data_dir, out, '--epsilon=5')
    sampled = []
    sample = sampling.PoissonSampler.sample

    def note(sampler, draw):
      sampled.append(draw)
      # The entry is there before anybody takes part.
      assert ledger_lib.read(out / 'privacy_ledger.jsonl').rounds_charged == draw + 1
      return sample(sampler, draw)

    monkeypatch.setattr(sampling.PoissonSampler, 'sample', note)
    _StopAfter(monkeypatch, 2)
    assert commands.main(arguments) == 143
    before = json.loads((tmp_path / 'a' / 'config.json').read_text())
    shutil.rmtree(tmp_path / 'a' / 'checkpoints' / 'round_2')
    assert commands.main(arguments) == 0
    # Round 1 was run twice, with clients of its own each time.
    assert sampled == [0, 1, 2, 3]
    assert ledger_lib.read(out / 'privacy_ledger.jsonl').rounds == [0, 1, 1, 2]
    printed = capsys.readouterr().out
    assert 'so epsilon counts them again' in printed
    rows = commands.rows(out / 'metrics.csv')
    assert [row['rounds_charged'] for row in rows] == ['0', '1', '3', '4']
    summary = json.loads((out / 'summary.json').read_text())
    spec = ledger_lib.read(out / 'privacy_ledger.jsonl').spec
    assert summary['rounds_charged'] == 4
    assert summary['epsilon'] == spec.epsilon(rounds=4) > spec.epsilon(rounds=3)
    # The plan is of three rounds: a run that resumes states what it ends at.
    assert (
        'rounds that count though they were lost or run again: 1; with them the run ends at epsilon ='
        f' {summary["epsilon"]:.4g}, above --epsilon=5; --epsilon_budget=5 ends it before that'
    ) in printed
    after = json.loads((tmp_path / 'a' / 'config.json').read_text())
    assert after['record'].pop('seconds') > before['record'].pop('seconds') > 0
    assert after == before
    assert 'sampling' not in before['seeds']

  def test_a_finished_run_is_found_finished(self, finished, capsys):
    out, arguments = finished
    before = interrupted.files(out)
    (out / 'summary.json').unlink()
    (out / 'weights.npz').unlink()
    assert commands.main(arguments) == 0
    assert '3 of 3 rounds done' in capsys.readouterr().out
    assert interrupted.files(out) == before

  def test_what_is_finished_and_whole_says_so_from_its_files_alone(
      self, finished, data_dir, capsys
  ):
    out, arguments = finished
    before = interrupted.files(out)
    capsys.readouterr()
    shutil.rmtree(data_dir)
    assert commands.main(arguments) == 0
    said = capsys.readouterr().out
    assert f'This run is already finished: {out}, 3 rounds' in said and 'epsilon = ' in said
    assert interrupted.files(out) == before

  def test_other_flags_are_refused_by_name(self, finished, capsys):
    out, arguments = finished
    before = interrupted.files(out)
    capsys.readouterr()
    said = commands.say(capsys, *arguments[1:], '--rounds=5', '--seed=2')
    assert 'with --rounds=3 --seed=1, not --rounds=5 --seed=2;' in said
    assert interrupted.files(out) == before

  def test_where_may_change(self, finished, data_dir, capsys):
    out, arguments = finished
    shutil.rmtree(out / 'checkpoints' / 'round_3')
    data_dir.rename(data_dir.with_name('moved'))
    moved = f'--data_dir={data_dir.with_name("moved")}'
    assert commands.main([*arguments, moved, '--workers=1']) == 0
    assert 'resuming after round 2' in capsys.readouterr().out

  def test_other_data_are_refused(self, finished, data_dir, capsys):
    out, arguments = finished
    (out / 'summary.json').unlink()  # A run that has its summary needs no data.
    capsys.readouterr()
    path = data_dir / 't10k-labels-idx1-ubyte.gz'
    small_data.write_idx(path, np.zeros(20, np.uint8))
    assert 'began with other data' in commands.say(capsys, *arguments[1:])

  def test_the_digest_of_the_data_is_keyed_and_stays_with_the_checkpoints(
      self, finished, data_dir, tmp_path
  ):
    out, _ = finished
    other = tmp_path / 'other'
    assert commands.main(commands.tiny(data_dir, other, *_SEEDED)) == 0
    kept = [
        json.loads((path / 'checkpoints' / 'data_digest.json').read_text())
        for path in (out, other)
    ]
    # The same data, and nothing alike: each run has a key of its own.
    assert not set(kept[0].values()) & set(kept[1].values())
    for path in out.iterdir():
      if path.is_file():
        content = path.read_bytes()
        assert not any(value.encode() in content for value in kept[0].values())

  def test_a_lost_digest_of_the_data_is_named(self, finished, capsys):
    out, arguments = finished
    path = out / 'checkpoints' / 'data_digest.json'
    capsys.readouterr()
    path.write_text('{"key": "00"')
    assert f"{path} can't be read" in commands.say(capsys, *arguments[1:])
    path.unlink()
    assert f'{path} is missing' in commands.say(capsys, *arguments[1:])

  def test_overwrite_starts_over(self, finished, capsys):
    out, arguments = finished
    (out / 'mine.txt').write_text('kept')
    changed = [*arguments, '--rounds=1', '--overwrite']
    assert commands.main(changed) == 0
    assert 'resuming' not in capsys.readouterr().out
    assert len(commands.rows(out / 'metrics.csv')) == 2
    assert {step for step, *_ in commands.events(out)} == {0, 1}
    assert (out / 'mine.txt').read_text() == 'kept'
    # What was released stays released: the former ledger is kept beside the new one.
    former, own = run_directory.ledgers(out)
    assert [len(ledger_lib.read(path).rounds) for path in (former, own)] == [3, 1]
    assert commands.main(['run', *changed[1:-1]]) == 0  # As the run that it is now.

  def test_overwrite_never_takes_the_name_of_a_former_ledger(self, finished):
    out, arguments = finished
    # Ten and more, some of them moved away: counting them would find a name that is taken.
    for number in (2, 10):
      (out / f'privacy_ledger.{number}.jsonl').write_text(f'former {number}')
    assert commands.main([*arguments, '--rounds=1', '--overwrite']) == 0
    for number in (2, 10):
      assert (out / f'privacy_ledger.{number}.jsonl').read_text() == f'former {number}'
    assert [path.name for path in run_directory.ledgers(out)] == [
        f'privacy_ledger{number}.jsonl' for number in ('.2', '.10', '.11', '')
    ]

  def test_overwrite_removes_nothing_before_the_input_is_right(self, finished, capsys):
    out, arguments = finished
    before = interrupted.files(out)
    capsys.readouterr()
    commands.say(capsys, *arguments[1:], '--overwrite', '--data_dir=/none')
    assert interrupted.files(out) == before

  def test_a_directory_in_use_is_refused(self, data_dir, tmp_path, capsys):
    out = tmp_path / 'a'
    arguments = commands.tiny(data_dir, out, '--rounds=100000')
    command = commands.command(arguments)
    interrupted.wait_for_rounds(command, out, 1)
    command.send_signal(signal.SIGSTOP)
    said = commands.say(capsys, *arguments[1:])
    assert f'is in use by process {command.pid} on' in said
    command.kill()
    command.communicate()
    # The lock died with its process.
    said = commands.say(capsys, *arguments[1:], '--p=0.5')
    assert 'has a run with' in said


class TestComputation:

  def test_the_flags_that_differ_are_named(self):
    now = {'task': 'svhn', 'noise': 'gaussian', 'clip_quantile': None}
    assert resuming.differing(now, now) == []
    # One that an earlier version had, or lacked, is another run's if it is on.
    assert resuming.differing({'task': 'svhn', 'dropout': 0.1}, now) == ['dropout', 'noise']
    other = {**now, 'noise': 'discrete_gaussian'}
    assert resuming.differing(now, other) == ['noise']
    assert resuming.differing({**now, 'task': 'emnist'}, now) == ['task']

  def test_a_part_of_a_checkpoint_is_none(self, tmp_path):
    # What a process leaves that is killed while it writes its first.
    (tmp_path / 'round_0_temp1234').mkdir()
    assert not resuming.has_checkpoint(tmp_path)
    (tmp_path / 'round_0').mkdir()
    assert resuming.has_checkpoint(tmp_path)


class TestDamage:
  """What is damaged is named, with the remedy; nothing is changed."""

  def _refused(self, capsys, arguments, status=2):
    capsys.readouterr()
    out = [a for a in arguments if 'output_dir' in a][0].split('=')[1]
    metrics = glob.glob(f'{out}/metrics.csv')
    before = [open(path, 'rb').read() for path in metrics]
    assert commands.main(arguments) == status
    captured = capsys.readouterr()
    assert captured.err.startswith('tasks.run: ') and captured.err.count('\n') == 1
    assert [open(path, 'rb').read() for path in metrics] == before
    return captured.err

  def test_a_cut_checkpoint(self, finished, capsys):
    out, arguments = finished
    last = out / 'checkpoints' / 'round_3'
    os.truncate(last / 'saved_model.pb', 100)
    said = self._refused(capsys, arguments, 1)
    assert f"The checkpoint {last} can't be read" in said
    assert 'remove it to resume from round 2.' in said
    before = interrupted.files(out)
    shutil.rmtree(last)
    assert commands.main(arguments) == 0
    assert interrupted.files(out) == before

  def test_a_foreign_checkpoint(self, finished, data_dir, tmp_path, capsys):
    out, arguments = finished
    last = out / 'checkpoints' / 'round_3'
    other = tmp_path / 'other'
    assert commands.main(commands.tiny(data_dir, other, *_SEEDED)) == 0
    shutil.rmtree(last)
    shutil.copytree(other / 'checkpoints' / 'round_3', last)
    assert 'is of another run or round' in self._refused(capsys, arguments, 1)

  def test_lost_checkpoints(self, finished, capsys):
    out, arguments = finished
    shutil.rmtree(out / 'checkpoints')
    said = self._refused(capsys, arguments)
    assert f'{out}/metrics.csv has rows of 3 rounds' in said and '--overwrite' in said

  @pytest.mark.parametrize('name', ['metrics.csv', 'timings.csv'])
  def test_a_cut_table(self, finished, capsys, name):
    out, arguments = finished
    os.truncate(out / name, (out / name).stat().st_size - 20)
    said = self._refused(capsys, arguments)
    assert f'{out / name} was cut or changed' in said and '--overwrite' in said

  @pytest.mark.parametrize(
      'change, sentence',
      [
          (lambda lines: None, 'is missing, but the run has begun'),
          (lambda lines: lines[:-1], 'is truncated: 2 entries, but the checkpoint recorded 3'),
          (lambda lines: lines[:2] + lines[3:], 'was changed: line 3'),
          (lambda lines: [lines[0].replace(b'1.4', b'9.4'), *lines[1:]], 'was changed: line 1'),
      ],
  )
  def test_a_ledger_lost_cut_or_changed(self, finished, capsys, change, sentence):
    out, arguments = finished
    path = out / 'privacy_ledger.jsonl'
    lines = change(path.read_bytes().splitlines(keepends=True))
    if lines is None:
      path.unlink()
    else:
      path.write_bytes(b''.join(lines))
    said = self._refused(capsys, arguments, 1)
    assert f'{path} {sentence}' in said and 'restore the latest backup' in said

  @pytest.mark.parametrize('content', [None, '', '{"p": 1', '[]', '{"p": 1}'])
  def test_a_configuration_that_can_not_be_read(self, finished, capsys, content):
    out, arguments = finished
    if content is None:
      (out / 'config.json').unlink()
    else:
      (out / 'config.json').write_text(content)
    said = self._refused(capsys, arguments)
    assert "config.json can't be read" in said and '--overwrite' in said
