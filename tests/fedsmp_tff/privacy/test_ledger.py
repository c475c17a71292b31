"""Tests of the privacy ledger: on disk before a round, never fewer rounds than released."""

import dataclasses
import json
import os
import resource
import shutil

import numpy as np
import pytest

from fedsmp_tff.mechanism import integer_noise
from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import budget as budget_lib
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import spec as spec_lib

_SPEC = spec_lib.PrivacySpec(60, 10, 5, 1.4, 0.5, 1e-3)


def _ledger(path, seed=None, spec=_SPEC, run='a', **names):
  return ledger_lib.Ledger(path, spec, run, seed=seed, **names)


@pytest.fixture
def written(tmp_path):
  path = tmp_path / 'ledger.jsonl'
  with _ledger(path) as ledger:
    for t in range(4):
      ledger.begin(t)
  return path


class TestComputation:

  def test_a_written_ledger_is_read_back(self, written):
    record = ledger_lib.read(written)
    assert record.spec == _SPEC and record.run == 'a' and not record.seeded
    assert record.rounds == [0, 1, 2, 3] and record.rounds_charged == 4
    assert record.size == written.stat().st_size

  @pytest.mark.parametrize('options', [
      dict(sampling='fixed_size'), dict(num_slots=20, min_reports=12),
      dict(noise=integer_noise.DiscreteGaussian(9, bits=12)),
      dict(noise_multiplier=0.0, clipping_norm=None),
      dict(rounds=np.int64(9), clients_per_round=np.int32(10)),
      dict(
          noise=integer_noise.DiscreteGaussian(np.int64(9), np.int32(12)),
          noise_multiplier=np.float32(1.4),
      ),
  ])
  def test_names_and_every_kind_of_spec_are_read_back(self, tmp_path, options):
    spec = dataclasses.replace(_SPEC, **{'num_slots': None, 'min_reports': None, **options})
    for _ in range(2):  # The second time it is reopened.
      _ledger(tmp_path / 'a', spec=spec, data='people', initial_weights='random').close()
      record = ledger_lib.read(tmp_path / 'a')
      assert (record.spec, record.data, record.initial_weights) == (spec, 'people', 'random')
    refuse = lambda name: pytest.fail(name)  # noqa: E731  # Infinity, NaN: of no other language.
    for line in (tmp_path / 'a').read_text().splitlines():
      json.loads(line, parse_constant=refuse)

  def test_a_ledger_of_an_earlier_version_is_read(self, tmp_path):
    # The specification had no `allow_large_delta`, delta no limit, and 'inf' meant no clipping.
    spec = dataclasses.replace(
        _SPEC, delta=0.5, allow_large_delta=True, noise_multiplier=0.0, clipping_norm=None
    )
    _ledger(tmp_path / 'a', spec=spec).close()
    head = json.loads((tmp_path / 'a').read_text())
    assert head['spec']['clipping_norm'] is None
    head['spec']['clipping_norm'] = 'inf'
    del head['sum'], head['spec']['allow_large_delta']
    line = json.dumps({**head, 'sum': ledger_lib._sum('', head)})
    (tmp_path / 'a').write_text(f'{line}\n')
    assert ledger_lib.read(tmp_path / 'a').spec == spec

  def test_any_change_to_any_line_is_found(self, written):
    whole = written.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.choice(len(whole) - 1, 60, replace=False):
      changed = bytearray(whole)
      changed[position] ^= 1 << int(rng.integers(7))
      if bytes(changed).splitlines() == whole.splitlines():
        continue
      written.write_bytes(bytes(changed))
      with pytest.raises(ledger_lib.LedgerError, match='Restore the latest backup, and add the'):
        ledger_lib.read(written)

  @pytest.mark.parametrize('line', range(5))
  def test_a_missing_or_repeated_line_is_found(self, written, line):
    lines = written.read_bytes().splitlines(keepends=True)
    for changed in (lines[:line] + lines[line + 1 :], lines[: line + 1] + lines[line:]):
      if changed == lines[:-1]:
        continue  # Only `check` finds a missing end.
      written.write_bytes(b''.join(changed))
      with pytest.raises(ledger_lib.LedgerError, match='was changed: line'):
        ledger_lib.read(written)

  def test_a_forged_sum_is_found(self, written):
    # Someone who knows the format: one entry less, the sums of the rest made anew, is
    # a ledger; but not the one that the checkpoint knows.
    with _ledger(written) as ledger:
      state = ledger.state()
    written.unlink()
    with _ledger(written) as ledger:
      for t in (0, 1, 3, 3):
        ledger.begin(t)
      with pytest.raises(ledger_lib.LedgerError, match='was changed: it has 4.*not begin with the 4'):
        ledger.check(state)

  def test_two_runs_with_one_seed_do_not_compose(self, tmp_path):
    records = []
    for i, seed in enumerate((0, 8, 0, None, None)):
      # Other noise, clipping and data: the seed alone decides.
      spec = dataclasses.replace(_SPEC, noise_multiplier=1 + i, clipping_norm=1 + i)
      _ledger(tmp_path / str(i), seed=seed, spec=spec, run=str(i), data=str(i)).close()
      records.append((f'run {i}', ledger_lib.read(tmp_path / str(i))))
      assert '"seed": 0' not in (tmp_path / str(i)).read_text()
    one, other, same, fresh, fresher = records
    # As another process computed it: digests of any two places can be compared.
    assert one[1].seed_digest == '028b03092af56deed065c4970a4ec64c'
    assert one[1].seeded and not fresh[1].seeded and not fresh[1].seed_digest
    for good in ([one], [one, other], [one, fresh, fresher]):
      ledger_lib.check_independent(good)
    for names, bad in (('0 .*2', [one, other, same]), ('0 .*0', [one, one])):
      with pytest.raises(ledger_lib.LedgerError, match=f'run {names}.*same seed'):
        ledger_lib.check_independent(bad)

  def test_two_copies_do_not_compose(self, written, tmp_path):
    shutil.copy(written, tmp_path / 'copy')
    # Another run of the same name and specification is no copy.
    paths = [written, tmp_path / 'other', tmp_path / 'copy']
    for path in paths:
      with _ledger(path) as ledger:
        ledger.begin(4)
    one, other, copy = ((path.name, ledger_lib.read(path)) for path in paths)
    ledger_lib.check_independent([one, other])
    with pytest.raises(ledger_lib.LedgerError, match='ledger.jsonl and copy are copies of one'):
      ledger_lib.check_independent([one, other, copy])

  def test_a_backup_plus_the_lost_rounds_is_the_ledger(self, written):
    # The steps of docs/privacy.md.
    whole = written.read_bytes()
    with _ledger(written) as ledger:
      state = ledger.state()
      ledger.check(state)
    written.write_bytes(b''.join(whole.splitlines(keepends=True)[:3]))
    record = ledger_lib.read(written)
    with ledger_lib.Ledger(
        written, record.spec, record.run, data=record.data, initial_weights=record.initial_weights
    ) as restored:
      with pytest.raises(ledger_lib.LedgerError, match='is truncated.* has 2 entries.*latest backup'):
        restored.check(state)
      for round_num in range(record.rounds_charged, 4):
        restored.begin(round_num)
      restored.check(state)
    assert written.read_bytes() == whole

  @pytest.mark.parametrize('content', [None, '', '{}\n', '[]\n', 'text\n', '\x00\xff\n'])
  def test_a_file_that_is_no_ledger_is_refused(self, tmp_path, content):
    path = tmp_path / 'ledger.jsonl'
    if content is not None:
      path.write_text(content, encoding='latin-1')
    with pytest.raises(ledger_lib.LedgerError, match=None if content else 'No such|not a ledger'):
      ledger_lib.read(path)

  @pytest.mark.parametrize('other', [
      dict(run='b'), dict(seed=0), dict(data='other'), dict(initial_weights='of others'),
      dict(spec=dataclasses.replace(_SPEC, noise_multiplier=1.5)),
  ])
  def test_the_ledger_of_another_run_is_refused(self, written, other):
    before = written.read_bytes()
    with pytest.raises(ledger_lib.LedgerError, match='belongs to another run') as error:
      _ledger(written, **other)
    assert f'(other {next(iter(other))}' in str(error.value)
    assert written.read_bytes() == before


class TestExecution:

  def test_an_entry_is_on_disk_before_its_round_begins(self, tmp_path, monkeypatch):
    path = tmp_path / 'ledger.jsonl'
    synced = []
    fsync = os.fsync

    def note(descriptor):
      fsync(descriptor)
      synced.append(path.read_bytes().count(b'\n'))

    monkeypatch.setattr(os, 'fsync', note)
    with _ledger(path) as ledger:
      for t in range(3):
        ledger.begin(t)
        assert synced[-1] == t + 2
        assert ledger_lib.read(path).rounds_charged == t + 1

  def test_a_second_writer_is_refused(self, written):
    with _ledger(written) as ledger:
      with pytest.raises(ledger_lib.LedgerError, match='is open elsewhere'):
        _ledger(written)
      ledger.begin(4)  # The first goes on.
    with _ledger(written) as ledger:
      assert ledger.rounds_charged() == 5

  def test_opening_cuts_no_rounds_of_another_writer(self, written, monkeypatch):
    read = ledger_lib.read

    def late(path):
      monkeypatch.setattr(ledger_lib, 'read', read)
      record = read(path)
      with pytest.raises(ledger_lib.LedgerError, match='is open elsewhere'):
        _ledger(written).begin(4)
      return record

    monkeypatch.setattr(ledger_lib, 'read', late)
    _ledger(written).close()
    assert ledger_lib.read is read

  @pytest.mark.parametrize('room', [0, 10])
  def test_a_full_disk_damages_nothing(self, written, tmp_path, room):
    size, limits = written.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    try:  # Python ignores the signal, so that a write has an error.
      with _ledger(written) as ledger:
        for path, begin in ((written, ledger.begin), (tmp_path / 'new', _ledger)):
          most = room + (size if path is written else 0)
          resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
          with pytest.raises(ledger_lib.LedgerError, match='Make room'):
            begin(4 if path is written else path)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert ledger.begin(4) == 4
      _ledger(tmp_path / 'new').close()
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ledger_lib.read(written).rounds == [0, 1, 2, 3, 4]
    assert ledger_lib.read(tmp_path / 'new').rounds == []

  @pytest.mark.parametrize('error', [OSError(5, 'Input/output error'), KeyboardInterrupt()])
  def test_a_line_counts_even_if_the_sync_fails(self, written, tmp_path, monkeypatch, error):
    def fsync(unused_file):
      raise error

    with _ledger(written) as ledger:
      with monkeypatch.context() as patch:
        patch.setattr(os, 'fsync', fsync)
        for action in (lambda: ledger.begin(4), lambda: _ledger(tmp_path / 'new')):
          with pytest.raises((KeyboardInterrupt, ledger_lib.LedgerError)):
            action()
      assert ledger.begin(4) == 5
      with open(written, 'ab') as file:
        file.write(b'x')
      with pytest.raises(ledger_lib.LedgerError, match='was changed since it was opened'):
        ledger.begin(5)
    assert ledger_lib.read(written).rounds == [0, 1, 2, 3, 4, 4]
    _ledger(tmp_path / 'new').close()
    assert ledger_lib.read(tmp_path / 'new').rounds == []

  def test_resuming_counts_lost_rounds(self, written):
    with _ledger(written) as ledger:
      # Round 3 is run again: it counts again, with clients of its own.
      assert ledger.begin(3) == 4
      assert ledger.begin(4) == 5
      assert ledger.rounds_charged() == ledger.rounds_charged(5) == 6
    assert ledger_lib.read(written).rounds_charged == 6

  def test_a_repeated_seeded_round_counts_once(self, tmp_path):
    path = tmp_path / 'ledger.jsonl'
    with _ledger(path, seed=0) as ledger:
      assert [ledger.begin(t) for t in (0, 1, 1, 2, 1)] == [0, 1, 1, 2, 1]
      assert ledger.rounds_charged() == 3
      assert [ledger.rounds_charged(rounds_done) for rounds_done in (0, 2)] == [0, 2]
    assert ledger_lib.read(path).rounds_charged == 3
    assert len(path.read_text().splitlines()) == 6
    assert 'can remove it' in json.loads(path.read_text().splitlines()[0])['randomness']

  def test_an_entry_cut_by_a_crash_is_dropped(self, written):
    whole = written.read_bytes()
    with _ledger(written) as ledger:
      ledger.begin(4)
    longer = written.read_bytes()
    for size in range(len(whole) + 1, len(longer)):
      written.write_bytes(longer[:size])
      assert ledger_lib.read(written).rounds_charged == 4
    with _ledger(written) as ledger:
      ledger.begin(4)
    assert written.read_bytes() == longer


class TestAllocation:
  """Draws and charges of random allocation: blocks of 3 rounds."""

  _SPEC = spec_lib.PrivacySpec(12, 4, 9, 2.0, 1.0, 1e-2, sampling='allocation')

  def _begin(self, path, rounds, seed=None, sampler=None):
    """Opens the ledger, begins rounds, and returns their draws and the number that counts."""
    with _ledger(path, seed, self._SPEC) as ledger:
      draws = [ledger.begin(t) for t in rounds]
      for draw in () if sampler is None else draws:
        sampler.sample(draw)
      assert ledger.rounds_charged() == ledger_lib.read(path).rounds_charged
      return draws, ledger.rounds_charged()

  def test_blocks_follow_each_other(self, tmp_path):
    path = tmp_path / 'ledger.jsonl'
    assert self._begin(path, range(7)) == ([*range(7)], 7)
    assert ledger_lib.read(path).draws == [*range(7)]

  def test_a_resumed_run_begins_a_new_block_that_counts(self, tmp_path):
    path = tmp_path / 'ledger.jsonl'
    for rounds, draws, charged in (
        ([0, 1], [0, 1], 2),
        ([1, 2, 3, 4], [3, 4, 5, 6], 7),  # The rest of block 0 is abandoned; round 1 is repeated.
        ([], [], 7),  # A run that begins no round costs nothing.
        ([5], [9], 10),
        ([6, 7], [12, 13], 14),
        ([8], [15], 16),
    ):
      # A sampler of this process knows each block of its draws, or it would refuse.
      assert self._begin(path, rounds, sampler=self._SPEC.sampler()) == (draws, charged)
    record = ledger_lib.read(path)
    one = self._SPEC.epsilon(rounds=1)
    assert one == self._SPEC.epsilon(rounds=3) < self._SPEC.epsilon(rounds=4)
    # Six blocks have begun, in nine rounds of the run, one of which was repeated.
    total = accountants.ALLOCATION_PLD.epsilon([record.charged], 1e-2)
    assert total == self._SPEC.epsilon(rounds=18) > self._SPEC.epsilon(rounds=15)

  def test_a_resumed_run_after_a_whole_block_loses_nothing(self, tmp_path):
    path = tmp_path / 'ledger.jsonl'
    assert self._begin(path, range(3)) == ([0, 1, 2], 3)
    assert self._begin(path, range(3, 6)) == ([3, 4, 5], 6)

  def test_copies_of_a_run_each_count_a_new_block_and_do_not_compose(self, tmp_path):
    original, copied = tmp_path / 'a.jsonl', tmp_path / 'b.jsonl'
    self._begin(original, [0, 1])
    shutil.copy(original, copied)
    for path in (original, copied):
      assert self._begin(path, [2]) == ([3], 4)
    records = [(path, ledger_lib.read(path)) for path in (original, copied)]
    with pytest.raises(ledger_lib.LedgerError, match='copies of one ledger'):
      ledger_lib.check_independent(records)

  def test_a_budget_counts_whole_blocks(self, tmp_path):
    path = tmp_path / 'ledger.jsonl'
    budget = budget_lib.EpsilonBudget(self._SPEC.epsilon(rounds=6) * 1.001, self._SPEC)
    with _ledger(path, spec=self._SPEC, budget=budget) as ledger:
      assert [ledger.begin(t) for t in range(2)] == [0, 1]
    with _ledger(path, spec=self._SPEC, budget=budget) as ledger:
      assert [ledger.begin(t) for t in range(2, 5)] == [3, 4, 5]
      with pytest.raises(budget_lib.BudgetSpentError):
        ledger.begin(5)
      assert ledger.rounds_charged() == 6
    with _ledger(path, spec=self._SPEC, budget=budget) as ledger:
      with pytest.raises(budget_lib.BudgetSpentError):
        ledger.begin(5)

  def test_a_seeded_run_repeats_its_draws(self, tmp_path):
    path = tmp_path / 'ledger.jsonl'
    assert self._begin(path, [0, 1], seed=1) == ([0, 1], 2)
    assert self._begin(path, [1, 2, 3], seed=1) == ([1, 2, 3], 4)

  @pytest.mark.parametrize('change', [
      dict(rounds=12), dict(clients_per_round=6, num_slots=12, min_reports=12),
      dict(sampling='poisson'),
  ])
  def test_a_resumed_run_has_the_same_rounds_and_blocks(self, tmp_path, change):
    path = tmp_path / 'ledger.jsonl'
    self._begin(path, [0, 1])
    with pytest.raises(ledger_lib.LedgerError, match=r'another run \(other spec\)'):
      _ledger(path, spec=dataclasses.replace(self._SPEC, **change))

  @pytest.mark.parametrize('draws', [
      [1], [0, 0], [0, 2], [0, 3, 2], [0, 1, 6], [0, None], [0, '1'], [-3]
  ])
  def test_draws_that_no_run_writes_are_refused(self, tmp_path, draws):
    # Whoever edits a ledger can compute the chain; but no such count is taken by mistake.
    path = tmp_path / 'ledger.jsonl'
    with _ledger(path, spec=self._SPEC) as ledger:
      for number, draw in enumerate(draws):
        content = {'entry': number, 'round': number} | ({} if draw is None else {'draw': draw})
        ledger._append(content)
    with pytest.raises(ledger_lib.LedgerError, match='not a ledger of this version.*draw'):
      ledger_lib.read(path)
