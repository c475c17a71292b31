"""Tests of runs that resume: as if undisturbed, and only with the same data, flags and files."""

import json
import os
import shutil
import signal

import numpy as np
import pytest

from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import spec as spec_lib
from fedsmp_tff.program import checkpoints
from tasks import account
from tasks import errors
from tasks.cli import signals
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
    patch.setattr(checkpoints, '_MAX_FRACTION_OF_TIME', 1e9)  # A checkpoint after each round.
    assert commands.main(commands.tiny(path / 'data', path / 'a', *_SEEDED)) == 0
  return path / 'a'


@pytest.fixture
def finished(finished_once, data_dir, tmp_path, capsys):
  """A run of three rounds, and its command line."""
  shutil.copytree(finished_once, tmp_path / 'a')
  capsys.readouterr()
  return tmp_path / 'a', commands.tiny(data_dir, tmp_path / 'a', *_SEEDED)


def _stop_after(monkeypatch, *rounds):
  """SIGTERM between two rounds of a command in this process, after the given rounds."""
  left, done = list(rounds), [0]

  def check(_):
    if left and done[0] == left[0]:
      left.pop(0)
      raise errors.Interrupted(signal.SIGTERM)
    done[0] += 1

  monkeypatch.setattr(signals.Signals, 'begin_round', check)


class TestResuming:

  def test_a_seeded_run_is_as_if_undisturbed(self, data_dir, tmp_path, monkeypatch, capsys):
    flags = ['--algorithm=fedsmp_topk', '--seed=1', '--rounds=4']
    assert commands.main(commands.tiny(data_dir, tmp_path / 'a', *flags)) == 0
    arguments = commands.tiny(data_dir, tmp_path / 'b', *flags)
    _stop_after(monkeypatch, 1, 3)
    assert commands.main(arguments) == 143
    assert json.loads((tmp_path / 'b' / 'summary.json').read_text())['rounds'] == 1
    assert commands.main(arguments) == 143
    assert commands.main(arguments) == 0
    printed = capsys.readouterr().out
    assert all(f'resuming after round {done} of 4' in printed for done in (1, 3))
    interrupted.assert_equal(tmp_path / 'b', tmp_path / 'a')
    interrupted.assert_no_leftovers(tmp_path / 'b')

  def test_rounds_after_the_checkpoint_are_run_again_once(self, finished, finished_once, capsys):
    out, arguments = finished
    (out / 'summary.json').unlink()
    _remove_checkpoints_after(out, 1)
    with open(out / 'metrics.csv', 'ab') as file:
      file.write(b'4,2.5')  # A row that was being written.
    assert commands.main(arguments) == 0
    printed = capsys.readouterr().out
    assert 'resuming after round 1 of 3' in printed and ' lost ' not in printed
    interrupted.assert_equal(out, finished_once)

  def test_an_unseeded_run_counts_rounds_that_are_run_again(
      self, data_dir, tmp_path, monkeypatch, capsys
  ):
    out = tmp_path / 'a'
    arguments = commands.tiny(data_dir, out, '--epsilon=5')
    _stop_after(monkeypatch, 2, 3)
    assert commands.main(arguments) == 143
    before = (out / 'config.json').read_bytes()
    _remove_checkpoints_after(out, 1)
    capsys.readouterr()
    assert commands.main([*arguments, '--epsilon_budget=9']) == 143
    first = ' '.join(capsys.readouterr().out.split())
    _remove_checkpoints_after(out, 1)
    assert commands.main(arguments) == 0
    record = ledger_lib.read(out / 'privacy_ledger.jsonl')
    assert record.rounds == [0, 1, 1, 1, 2]
    second = ' '.join(capsys.readouterr().out.split())
    rows = commands.rows(out / 'metrics.csv')
    assert [row['rounds_charged'] for row in rows] == ['0', '1', '4', '5']
    summary = json.loads((out / 'summary.json').read_text())
    assert summary['rounds_charged'] == 5
    assert summary['epsilon'] == record.spec.epsilon(rounds=5) > record.spec.epsilon(rounds=4)
    # The plan and the resume state what the run ends at.
    for lost, charged, printed, sentence in (
        ('1 lost round counts', 4, first, 'unless --epsilon_budget=9 ends the run first'),
        (
            '2 lost rounds count', 5, second,
            'above --epsilon=5; --epsilon_budget=5 would end the run before that',
        ),
    ):
      epsilon = f'{record.spec.epsilon(rounds=charged):.4g}'
      assert printed.count(
          f'{lost} towards epsilon, which ends at {epsilon} if no more are lost, {sentence}'
      ) == 2
      assert f'privacy epsilon = {epsilon}, ' in printed and f' {charged} rounds: VALID lost' in printed
    assert (out / 'config.json').read_bytes() == before
    assert 'sampling' not in json.loads(before)['seeds']

  def test_a_resumed_allocation_counts_a_new_block_in_each_copy(
      self, data_dir, tmp_path, monkeypatch, capsys
  ):
    # Four rounds a block. The run stops after round 2, and its directory is copied.
    out, flags = tmp_path / 'a', ('--sampling=allocation', '--rounds=6', '--eval_examples=1')
    _stop_after(monkeypatch, 2)
    assert commands.main(commands.tiny(data_dir, out, *flags)) == 143
    printed = ' '.join(capsys.readouterr().out.split())
    assert '6 rounds of 3 clients on average' in printed
    assert 'each client in one secret round of each block of 4; 2 blocks.' in printed
    assert 'The last has 2 rounds and counts whole; --rounds=4 or 8 has whole blocks only' in printed
    assert ledger_lib.read(out / 'privacy_ledger.jsonl').draws == [0, 1]
    shutil.copytree(out, tmp_path / 'b')
    for path in (out, tmp_path / 'b'):
      assert commands.main(commands.tiny(data_dir, path, *flags)) == 0
      record = ledger_lib.read(path / 'privacy_ledger.jsonl')
      assert record.draws == [0, 1, 4, 5, 6, 7] and record.rounds == [*range(6)]
      summary = json.loads((path / 'summary.json').read_text())
      assert summary['rounds_charged'] == record.rounds_charged == 8
      assert summary['epsilon'] == record.spec.epsilon(rounds=8) == record.spec.epsilon(rounds=5)
      rows = commands.rows(path / 'metrics.csv')
      assert [row['rounds_charged'] for row in rows] == ['0', '1', '2', '5', '6', '7', '8']
      assert len({row['epsilon'] for row in rows}) == 3  # None, one block, two.
      assert '2 lost rounds count towards epsilon' in capsys.readouterr().out
    assert account.main(['account', str(out), str(tmp_path / 'b')]) == 1
    assert 'are copies of one ledger' in capsys.readouterr().err
    assert account.main(['account', str(out)]) == 0
    printed = capsys.readouterr().out
    assert '8 rounds, 2 blocks begun, allocation sampling' in printed
    assert f'Quote epsilon = {summary["epsilon"]:.4g}, by allocation_pld' in printed
    # Neither more rounds nor other blocks.
    for changed in ('--rounds=7', '--clients_per_round=4', '--sampling=poisson'):
      assert commands.main(commands.tiny(data_dir, out, *flags, changed)) == 2

  def test_sigma_is_kept_unless_epsilon_is_missed(
      self, data_dir, tmp_path, monkeypatch, capsys
  ):
    out = tmp_path / 'a'
    arguments = commands.tiny(data_dir, out, '--epsilon=5')
    _stop_after(monkeypatch, 1)
    assert commands.main(arguments) == 143
    config, found = out / 'config.json', spec_lib.PrivacySpec.for_epsilon
    sigma = json.loads(config.read_text())['privacy']['noise_multiplier']

    def other_digit(epsilon, **fields):
      return found(epsilon * (1 - 1e-5), **fields)

    monkeypatch.setattr(spec_lib.PrivacySpec, 'for_epsilon', other_digit)
    text = config.read_text()
    config.write_text(text.replace(str(sigma), str(0.9 * sigma)))
    assert commands.main(arguments) == 2
    said = capsys.readouterr().err
    assert '--epsilon=5: with its sigma, ' in said and 'Install the versions in its conf' in said
    config.write_text(text)
    assert commands.main(arguments) == 0
    record = ledger_lib.read(out / 'privacy_ledger.jsonl')
    assert record.spec.noise_multiplier == sigma and record.rounds_charged == 3

  def test_a_finished_run_is_recognized_by_its_files_alone(self, finished, data_dir, capsys):
    out, arguments = finished
    before = interrupted.files(out)
    data_dir.rename(data_dir.with_name('moved'))
    assert commands.main(arguments) == 0
    printed = capsys.readouterr().out
    assert f'This run is already finished: {out}, 3 rounds' in printed and 'epsilon = ' in printed
    assert interrupted.files(out) == before
    # Without the summary the run resumes after its last round. The place of the data may change.
    (out / 'summary.json').unlink()
    (out / 'weights.npz').unlink()
    moved = f'--data_dir={data_dir.with_name("moved")}'
    assert commands.main([*arguments, moved, '--workers=1']) == 0
    assert '3 of 3 rounds done' in capsys.readouterr().out
    assert interrupted.files(out) == before

  def test_other_flags_are_refused_by_name(self, finished, capsys):
    out, arguments = finished
    before = interrupted.files(out)
    said = commands.say(capsys, *arguments[1:], '--rounds=5', '--seed=2')
    assert 'other flags or defaults: --rounds was 3 and is 5, --seed was 1 and is 2. Use' in said
    assert interrupted.files(out) == before

  def test_other_data_are_refused(self, finished, data_dir, capsys):
    out, arguments = finished
    (out / 'summary.json').unlink()  # A run that has its summary needs no data.
    small_data.write_idx(data_dir / 't10k-labels-idx1-ubyte.gz', np.zeros(20, np.uint8))
    assert 'began with other data' in commands.say(capsys, *arguments[1:])
    path = out / 'checkpoints' / 'data_digest.json'
    path.write_text('{"key": "00"')
    assert f"{path} can't be read" in commands.say(capsys, *arguments[1:])
    path.unlink()
    assert f"{path} can't be read (FileNotFound" in commands.say(capsys, *arguments[1:])

  def test_two_runs_of_a_seed_share_no_digest_or_checkpoint(
      self, finished, finished_once, data_dir, tmp_path, capsys
  ):
    (out, arguments), other = finished, tmp_path / 'other'
    assert commands.main(commands.tiny(data_dir, other, *_SEEDED)) == 0
    first, second = (
        json.loads((path / 'checkpoints' / 'data_digest.json').read_text()) for path in (out, other)
    )
    # Each run has a key of its own, so that equal data have unequal digests.
    assert not set(first.values()) & set(second.values())
    for path in filter(os.path.isfile, out.iterdir()):
      assert not any(value.encode() in path.read_bytes() for value in first.values())
    # Nor does a run resume from another's checkpoint.
    (out / 'summary.json').unlink()
    last = out / 'checkpoints' / 'round_3.npz'
    shutil.copy(other / 'checkpoints' / 'round_3.npz', last)
    assert commands.main(arguments) == 1
    assert 'is of another run or round. Remove it to resume' in capsys.readouterr().err
    last.unlink()
    assert commands.main(arguments) == 0
    interrupted.assert_equal(out, finished_once)

  def test_overwrite_starts_over_and_keeps_former_ledgers(self, finished, capsys):
    out, arguments = finished
    (out / 'mine.txt').write_text('kept')
    # A copy is in the list, so that `check_independent` can refuse it.
    shutil.copy(out / 'privacy_ledger.jsonl', out / 'privacy_ledger.0.backup.jsonl')
    changed = [*arguments, '--rounds=1']
    assert commands.main([*changed, '--overwrite']) == 0
    assert 'resuming' not in capsys.readouterr().out
    assert len(commands.rows(out / 'metrics.csv')) == 2
    assert {step for step, *_ in commands.events(out)} == {0, 1}
    assert (out / 'mine.txt').read_text() == 'kept'
    assert [len(record.rounds) for _, record in run_directory.ledgers(out)] == [3, 3, 1]
    assert commands.main(changed) == 0  # As the run that it is now.

  def test_overwrite_removes_nothing_before_the_input_is_right(self, finished, capsys):
    out, arguments = finished
    before = interrupted.files(out)
    commands.say(capsys, *arguments[1:], '--overwrite', '--data_dir=/none')
    assert interrupted.files(out) == before

  @pytest.mark.slow
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
    assert 'has a run with' in commands.say(capsys, *arguments[1:], '--p=0.5')


def _cut(name, size):
  return lambda out: os.truncate(out / name, (out / name).stat().st_size - size)


def _remove_checkpoints_after(out, rounds):
  for rounds_done in interrupted.checkpoints(out):
    if rounds_done > rounds:
      (out / 'checkpoints' / f'round_{rounds_done}.npz').unlink()


def _end_in_overwrite(out):
  """A kill within --overwrite leaves the ledger, which is the last to move."""
  for name in ('config.json', 'metrics.csv', 'timings.csv'):
    (out / name).unlink()


def _set_run_id(out):
  config = json.loads((out / 'config.json').read_text())
  (out / 'config.json').write_text(json.dumps(config | {'run_id': '\ud800'}))


@pytest.mark.parametrize('damage, status, sentence', [
    (_cut('checkpoints/round_3.npz', 100), 1,
     "The checkpoint {out}/checkpoints/round_3.npz can't be read"),
    (lambda out: _remove_checkpoints_after(out, -1), 2,
     '{out}/metrics.csv has rows of 3 rounds, but'),
    (_cut('metrics.csv', 20), 2, '{out}/metrics.csv was cut or changed'),
    (_cut('timings.csv', 20), 2, '{out}/timings.csv was cut or changed'),
    (lambda out: (out / 'config.json').unlink(), 2, 'config.json is missing or'),
    (_end_in_overwrite, 2, 'config.json is missing or'),
    (lambda out: (out / 'metrics.csv').write_bytes(b'\xff'), 1, 'metrics.csv is damaged'),
    *(
        (lambda out, text=text: (out / 'config.json').write_text(text), 2,
         "config.json is missing or can't be read")
        for text in ('', '[]', '{"p": 1}')
    ),
    (_set_run_id, 2, '`run_id` must be hexadecimal'),
])
def test_damage_is_named_with_the_remedy_and_nothing_is_changed(
    finished, capsys, damage, status, sentence
):
  out, arguments = finished
  (out / 'summary.json').unlink()
  damage(out)
  kept = [path for path in out.glob('*.*') if path.suffix in ('.csv', '.jsonl')]
  before = [path.read_bytes() for path in kept]
  assert commands.main(arguments) == status
  said = capsys.readouterr().err
  assert said.startswith('tasks.run: ') and said.count('\n') == 1
  assert sentence.format(out=out) in said
  assert 'Restore' in said or 'Remove it to resume from round 2' in said
  assert [path.read_bytes() for path in kept] == before


@pytest.mark.parametrize('damage, sentence', [
    (lambda lines: [], 'is not a ledger'),
    (lambda lines: lines[:-1],
     'is truncated or missing: {out}/metrics.csv has 3 rounds. Restore the latest backup'),
    (lambda lines: lines[:2] + lines[3:], 'was changed: line 3'),
    (lambda lines: [lines[0].replace(b'1.4', b'9.4'), *lines[1:]], 'was changed: line 1'),
])
def test_a_damaged_ledger_is_named_even_of_a_finished_run(finished, capsys, damage, sentence):
  out, arguments = finished
  ledger = out / 'privacy_ledger.jsonl'
  ledger.write_bytes(b''.join(damage(ledger.read_bytes().splitlines(keepends=True))))
  before = interrupted.files(out)
  assert commands.main(arguments) == 1
  said = capsys.readouterr().err
  assert sentence.format(out=out) in said and 'Restore' in said
  assert interrupted.files(out) == before


def test_resuming_needs_a_ledger_of_all_rounds(finished, capsys):
  out, arguments = finished
  ledger = out / 'privacy_ledger.jsonl'
  (out / 'summary.json').unlink()

  def is_refused(said, *more):
    before = {path: path.read_bytes() for path in out.glob('*.*')}
    assert commands.main([*arguments, *more]) == 1
    assert said in capsys.readouterr().err
    del before[out / '.lock']
    assert all(path.read_bytes() == content for path, content in before.items())

  *lines, _ = ledger.read_bytes().splitlines(keepends=True)
  other = {'entry': 2, 'round': 5}
  other['sum'] = ledger_lib._sum(json.loads(lines[-1])['sum'], other)
  ledger.write_bytes(b''.join([*lines, json.dumps(other).encode(), b'\n']))
  is_refused('has 3 entries, and does not begin with the 3 that the checkpoint recorded. Restore')
  # An older checkpoint does not show what the ledger lacks, and the run would replace metrics.csv.
  _remove_checkpoints_after(out, 1)
  ledger.write_bytes(b''.join(lines))
  for more in ([], ['--overwrite'], ['--overwrite', '--epsilon_budget=1000']):
    is_refused('is truncated or missing', *more)
  ledger.unlink()
  is_refused('is truncated or missing', '--overwrite')
  (out / 'metrics.csv').unlink()
  is_refused('is missing, but the run has begun')
