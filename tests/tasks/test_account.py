"""Tests of the command `python -m tasks.account`."""

import os
import pathlib
import re
import sys
import tempfile
import types

import pytest

from fedsmp_tff.mechanism import integer_noise
from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import spec as spec_lib
from tasks import account
from tasks import errors
from tasks.experiments import run_search
from tests.support import commands
from tests.support import malformed_ledgers
from tests.support import runs_on_disk

_PAPER = ('--clients_per_round=100', '--population=6000')


def _run(capsys, *arguments):
  return commands.of_module(capsys, account, *_PAPER, *arguments)


class TestComputation:

  @pytest.mark.parametrize('arguments, sentence', [
      ([], '--noise_multiplier is not set'),
      (['--noise_multiplier=1'], '--rounds is not set'),
      (['--noise_multiplier=-1', '--rounds=2'], '--noise_multiplier must be'),
      (
          ['--noise_multiplier=1', '--rounds=2', '--delta=1'],
          '--delta must be a number > 0 and < 1',
      ),
      (
          ['--noise_multiplier=1', '--rounds=2', '--delta=0.5'],
          '--delta must be at most 1/n = 0.000167 .* Found 0.5, .* Set a smaller one',
      ),
      (['--noise_multiplier=1', '--rounds=2', '--population=9'], '--clients_per_round'),
      (['--epsilon=1'], 'needs either --rounds'),
      (['--epsilon=1e-9', '--rounds=9999', '--delta=1e-9'], '--epsilon is out of reach'),
      *(
          ([f'--noise_multiplier={sigma}', '--rounds=1'], "epsilon of these numbers can't be computed")
          for sigma in (1e-200, 1e300)
      ),
      (['stray'], '--ledger=stray exclude each other. Remove one'),
      (
          ['--noise_multiplier=1', '--rounds=2', '--accountant=math'],
          '--accountant=math is neither .* ACCOUNTANT',
      ),
  ])
  def test_bad_flags_get_one_sentence_and_status_2(self, capsys, arguments, sentence):
    err = commands.refused(capsys, account, *_PAPER, *arguments)
    assert re.search(sentence, err), err


class TestExecution:

  def test_an_accountant_without_bound_hides_no_other(self, capsys):
    # The paper's orders end at 63: its epsilon is above log(1 / delta) / 62 = 0.074 for any sigma.
    status, out, _ = _run(
        capsys, '--epsilon=0.006', '--population=100', '--rounds=60', '--delta=0.01'
    )
    assert status == 0 and re.search(r'^Quote sigma = 242\.', out, re.MULTILINE)
    assert re.search(r'^sigma = inf +no bound here +paper: ', out, re.MULTILINE)

  def test_all_accountants_are_listed_with_validity(self, capsys):
    status, out, _ = _run(capsys, '--noise_multiplier=1.4', '--rounds=180')
    assert status == 0
    lines = {
        match[3]: (match[1], match[2].strip())
        for match in re.finditer(r'^epsilon = (\S+) +(.+?) {2,}(\w+):', out, re.MULTILINE)
    }
    assert lines == {
        'poisson_pld': ('0.6304', 'VALID'),
        'fixed_pld': ('3.743', 'not for this sampling'),
        'poisson_rdp': ('0.7442', 'VALID'),
        'fixed_rdp': ('5.352', 'not for this sampling'),
        'paper': ('1.008', 'VALID'),
        'theorem_1': ('1.94', 'no guarantee'),
    }
    assert 'CONDITION NOT MET: alpha' in out
    assert 'Quote epsilon = 0.6304, by poisson_pld: the tightest sound accountant.' in out
    _, out, _ = _run(capsys, '--noise_multiplier=0', '--rounds=180')
    assert 'Do not quote an epsilon: no accountant has a bound.' in out and 'VALID' not in out
    _, out, _ = _run(capsys, '--noise_multiplier=1.4', '--rounds=3', '--sampling=fixed_size')
    assert re.search('VALID +fixed_pld', out)
    assert re.search('not for this sampling +poisson_pld', out)

  def test_a_tiny_epsilon_is_not_printed_as_zero(self, capsys):
    # The truth is 2.72e-10; Renyi DP's divergences are below what floats resolve.
    status, out, _ = commands.of_module(
        capsys, account, '--noise_multiplier=1000', '--clients_per_round=10',
        '--population=1000000000', '--rounds=100', '--delta=1e-13',
    )
    quoted = re.search(r'^Quote epsilon = (\S+), by poisson_pld', out, re.MULTILINE)
    assert status == 0 and 2.7e-10 < float(quoted[1]) < 3e-10, out
    assert not re.search(r'^epsilon = 0 .*(VALID|sampling)', out, re.MULTILINE), out

  def test_paper_epsilon_is_not_valid_with_slots(self, capsys):
    _, out, _ = _run(capsys, '--noise_multiplier=1.4', '--rounds=180', '--num_slots=150')
    assert re.search(r'not valid for --num_slots +paper:', out)
    assert re.search(r'^epsilon = 1.495 +VALID +poisson_rdp', out, re.MULTILINE)

  def test_epsilon_finds_sigma(self, capsys):
    # The sigma that a true 1.008 takes with each sampling.
    _, out, _ = _run(capsys, '--epsilon=1.008', '--rounds=180')
    found = dict(re.findall(r'^sigma = (\S+) +.+? (\w+): ', out, re.MULTILINE))
    found = {name: float(sigma) for sigma, name in found.items()}
    assert found['poisson_pld'] == pytest.approx(1.086, abs=1e-3)
    assert found['fixed_pld'] == pytest.approx(2.965, abs=5e-3)
    assert found['paper'] == pytest.approx(1.4, abs=1e-3)

  def test_epsilon_finds_the_rounds(self, capsys):
    _, out, _ = _run(capsys, '--epsilon=1', '--noise_multiplier=1.4')
    assert re.search(r'^Quote \d+ rounds, by poisson_pld', out, re.MULTILINE), out
    found = dict(re.findall(r'^(\S+) rounds +.+? (\w+): ', out, re.MULTILINE))
    found = {name: int(rounds.replace(',', '')) for rounds, name in found.items()}
    spec = spec_lib.PrivacySpec(6000, 100, 1, 1.4, 1.0, 6000**-1.1, num_slots=6000)
    for accountant in accountants.ACCOUNTANTS:
      if accountant.sampling == 'poisson':
        most = found[accountant.name]
        assert spec.epsilon(accountant, most) <= 1 < spec.epsilon(accountant, most + 1)

  def test_a_plug_in_is_printed_and_never_quoted(self, monkeypatch, capsys):
    class Own(type(accountants.PAPER)):
      name, title = 'own', 'too good'

      def epsilon_fn(self, rounds):
        return lambda delta: 0.5

    module = types.ModuleType('own_accountant')
    module.ACCOUNTANT = Own()
    monkeypatch.setitem(sys.modules, 'own_accountant', module)
    _, out, _ = _run(
        capsys, '--noise_multiplier=1.4', '--rounds=180', '--accountant=own_accountant'
    )
    assert 'Quote epsilon = 0.6304, by poisson_pld' in out
    assert re.search('^epsilon = 0.5 +not checked by us +own: too good', out, re.MULTILINE)


class TestLedger:

  def _runs(self, tmp_path, *specs, seeds=(), data=()):
    paths = []
    for i, (rounds, options) in enumerate(specs):
      path = tmp_path / str(i)
      path.mkdir()
      spec = spec_lib.PrivacySpec(6000, 100, 180, 1.4, 1.0, **{'delta': 6000**-1.1, **options})
      with ledger_lib.Ledger(
          path / 'privacy_ledger.jsonl', spec, str(i), seed=dict(enumerate(seeds)).get(i),
          data=dict(enumerate(data)).get(i, ''),
      ) as ledger:
        for t in range(rounds):
          ledger.begin(t)
      paths.append(path)
    return paths

  def _account(self, capsys, *arguments):
    return commands.of_module(capsys, account, *map(str, arguments))

  def test_runs_are_composed(self, tmp_path, capsys):
    integers = dict(noise=integer_noise.DiscreteGaussian(9))
    one, other, third = self._runs(tmp_path, (100, {}), (80, dict(delta=1e-5)), (1, integers))
    # A pattern that the shell has left is one too.
    assert (
        self._account(capsys, f'--ledger={tmp_path}/[01]')
        == self._account(capsys, f'--ledger={one}', other)
    )
    for arguments, delta in (([], 1e-5), (['--delta=1e-4'], 1e-4)):  # The smaller, or as given.
      status, out, _ = self._account(capsys, f'--ledger={one}', other, *arguments)
      epsilon = spec_lib.PrivacySpec(6000, 100, 180, 1.4, 1.0, delta).epsilon()
      assert status == 0 and f'at delta = {delta:.4g}:' in out
      assert re.search(rf'^epsilon = {epsilon:.4g} +VALID +poisson_pld', out, re.MULTILINE), out
      assert 'paper' not in out  # The paper's accountant does not cover 150 slots.
      assert 'their number, sigma, r, n' in out
    status, out, err = self._account(capsys, f'--ledger={one}', other, '--delta=1e-3')
    assert status == 2 and '--delta must be at most 1/n = 0.000167' in err and 'VALID' not in out
    status, out, _ = self._account(
        capsys, f'--ledger={one}', other, '--delta=1e-3', '--allow_large_delta'
    )
    assert status == 0 and 'at delta = 0.001:' in out
    # The guarantee of integers depends on their number.
    status, out, _ = self._account(capsys, f'--ledger={third}')
    assert 'sigma = 1.4, discrete_gaussian noise, delta' in out
    assert status == 0 and 'and if\np, sigma, r, n and T were fixed without results of this run' in out

  def test_allocations_compose_with_poisson_sampling(self, tmp_path, capsys):
    few = dict(sampling='allocation')  # Blocks of 60 rounds.
    block, other, poisson, fixed = self._runs(
        tmp_path, (2, few), (2, few), (2, {}), (2, dict(sampling='fixed_size'))
    )
    status, out, _ = self._account(capsys, block, other)
    spec = spec_lib.PrivacySpec(6000, 100, 180, 1.4, 1.0, 6000**-1.1, sampling='allocation')
    # Two begun blocks, though their rounds would be one block and a part.
    assert status == 0 and f'Quote epsilon = {spec.epsilon(rounds=61):.4g}, by allocation_pld' in out
    assert spec.epsilon(rounds=61) > 1.2 * spec.epsilon(rounds=60)
    status, out, _ = self._account(capsys, block, poisson)
    match = re.search('Quote epsilon = (.*), by add_or_remove_pld', out)
    assert status == 0 and float(match[1]) > spec.epsilon(rounds=3)
    assert re.search(r'^epsilon = \S+ +VALID +add_or_remove_pld', out, re.MULTILINE)
    status, _, err = self._account(capsys, block, fixed)
    assert status == 2 and 'use different adjacency' in err

  def test_a_sweep_directory_counts_every_run_once(self, tmp_path, capsys):
    root = tmp_path / 'sweep'
    root.mkdir()
    self._runs(root, (100, {}), (80, {}))
    self._runs(root / '0', (7, {}))  # A run within the directory of a run.
    (root / '.hidden').mkdir()
    self._runs(root / '.hidden', (9, {}))
    (tmp_path / 'elsewhere').mkdir()
    (elsewhere,) = self._runs(tmp_path / 'elsewhere', (11, {}))
    (root / 'link').symlink_to(elsewhere)
    (root / 'logs').mkdir()
    (root / 'logs' / '0.log').touch()
    paths = root / '0', root / '1', root / '0' / '0', root / '.hidden' / '0', root / 'link'
    for number, path in enumerate(paths):  # Two ledgers of one run would not compose.
      ledger = path / 'privacy_ledger.jsonl'
      ledger.unlink()
      spec = spec_lib.PrivacySpec(6000, 100, 207, 1.4, 1.0, 6000**-1.1)
      with ledger_lib.Ledger(ledger, spec, f'run {number}') as opened:
        for t in range((100, 80, 7, 9, 11)[number]):
          opened.begin(t)
    epsilon = spec.epsilon()  # Of 100 + 80 + 7 + 9 + 11 rounds.
    status, out, err = self._account(capsys, f'--ledger={paths[0]}', root, elsewhere)
    assert status == 0, err
    assert re.search(rf'^Quote epsilon = {epsilon:.4g}, by poisson_pld', out, re.MULTILINE), out
    assert out.count(' sampling, r = 100') == 5
    found = run_search.run_dirs([str(root)])
    assert {*found} == {*map(str, paths)} and len(found) == 5

  def test_a_run_of_a_sweep_that_lost_its_ledger_is_refused(self, tmp_path, capsys):
    self._runs(tmp_path, (5, {}), (5, {}))
    for name in ('metrics.csv', 'summary.json', 'weights.npz', 'config.json', 'timings.csv'):
      other = tmp_path / 'lost'
      other.mkdir()
      (other / name).write_text('{"rounds_charged": 0}' if name == 'summary.json' else '')
      status, out, err = self._account(capsys, tmp_path)
      assert status == 2 and 'lost has no privacy_ledger.jsonl' in err and 'VALID' not in out
      (other / name).unlink()
      other.rmdir()
    # It has rounds, of which none says that it counts.
    lost = runs_on_disk.write(tmp_path / 'lost', [0.5, 0.6])
    for name, lost_too in (
        ('weights.npz', ()), ('weights.npz', ('metrics.csv', 'timings.csv')),
        ('checkpoints/round_12.npz', ('weights.npz',)), ('privacy_ledger.1.jsonl', ()),
    ):
      (lost / name).parent.mkdir(exist_ok=True)
      (lost / name).write_bytes(
          (tmp_path / '0' / 'privacy_ledger.jsonl').read_bytes() if 'ledger' in name else b''
      )
      for other in lost_too:
        (lost / other).unlink()
      status, out, err = self._account(capsys, tmp_path)
      assert status == 2 and 'lost has no privacy_ledger.jsonl' in err and 'VALID' not in out

  def test_a_sweep_with_a_run_that_cannot_be_read_is_refused(self, tmp_path, capsys):
    self._runs(tmp_path, (5, {}), (5, {}))
    (tmp_path / 'elsewhere').symlink_to(tmp_path / 'gone')
    status, out, err = self._account(capsys, tmp_path)
    assert status == 2 and 'elsewhere can\'t be read (No such file' in err and 'VALID' not in out
    (tmp_path / 'elsewhere').unlink()

  def test_a_sweep_with_a_directory_that_cannot_be_read_is_refused(self):
    with tempfile.TemporaryDirectory() as root:
      hidden = pathlib.Path(root) / 'hidden'
      hidden.mkdir(mode=0)
      os.chmod(root, 0o755)
      user = os.geteuid()
      try:
        if not user:  # Root may read what modes forbid.
          os.seteuid(65534)
        with pytest.raises(errors.InputError, match=r'hidden can.t be read \(Permission denied\)'):
          run_search.run_dirs([root])
      finally:
        os.seteuid(user)

  def test_a_missing_run_of_a_sweep_is_named(self, tmp_path, capsys):
    sweep = tmp_path / 'sweep'
    sweep.mkdir()
    self._runs(sweep, (5, {}))
    (sweep / 'logs').mkdir()
    (sweep / 'emptied').mkdir()
    for name in ('0', 'removed', 'emptied'):
      (sweep / 'logs' / f'{name}.log').touch()
    for named in (sweep, tmp_path):
      status, out, _ = self._account(capsys, named)
      assert status == 0 and out.count('gone; epsilon does NOT count its rounds') == 2
      for name in ('removed', 'emptied'):
        assert f'{sweep}/{name}: begun, and gone' in out

  def test_an_unbegun_run_of_a_sweep_is_named(self, tmp_path, capsys):
    self._runs(tmp_path, (5, {}))
    runs_on_disk.write(tmp_path / 'begun', [0.5])
    for name in ('metrics.csv', 'timings.csv'):
      (tmp_path / 'begun' / name).unlink()
    status, out, _ = self._account(capsys, tmp_path)
    assert status == 0 and f'{tmp_path / "begun"}: no federated round has begun\n' in out
    assert '0/privacy_ledger.jsonl: ' in out and 'Quote epsilon' in out
    status, out, err = self._account(capsys, tmp_path / 'begun')
    assert status == 2 and 'has no federated run that has begun' in err and 'VALID' not in out

  def test_runs_without_rounds_are_named_and_not_composed(self, tmp_path, capsys):
    # Without rounds, even another sampling or seeded noise is of no matter.
    other = dict(sampling='fixed_size', num_slots=None)
    self._runs(tmp_path, (1, {}), (5, {}), (0, other), (0, {}), seeds=(None, None, 1, 1))
    epsilon = spec_lib.PrivacySpec(6000, 100, 6, 1.4, 1.0, 6000**-1.1).epsilon()
    status, out, err = self._account(capsys, tmp_path)
    assert status == 0, err
    assert re.search(rf'^Quote epsilon = {epsilon:.4g}, by poisson_pld', out, re.MULTILINE), out
    for name in ('2', '3'):
      assert f'{tmp_path / name}: no federated round has begun\n' in out

  def test_different_clients_of_runs_are_named(self, tmp_path, capsys):
    one, same, other = self._runs(tmp_path, *[(3, {})] * 3, data=('a', 'a', 'b'))
    for second, is_told in ((same, False), (other, True)):
      status, out, _ = self._account(capsys, f'--ledger={one}', second)
      told = 'The runs have other clients or data: their epsilons add up only for a client of every run.'
      assert status == 0 and (told in out) == is_told

  def test_seeded_runs_are_not_valid_nor_composed(self, tmp_path, capsys):
    one, other, same, fresh = self._runs(*(tmp_path, *[(3, {})] * 4), seeds=(0, 2, 0, None))
    status, out, _ = self._account(capsys, f'--ledger={one}', other, fresh)
    assert status == 0 and out.count('SIMULATED: the noise has a seed') == 2
    assert re.search(
        r'^epsilon = \S+ +WOULD BE VALID WITH FRESH NOISE +poisson_pld', out, re.MULTILINE
    )
    assert ' VALID  ' not in out and 'Do not quote an epsilon' in out and 'Quote epsilon' not in out
    assert 'fresh noise; initial weights: not recorded\n' in out
    status, out, err = self._account(capsys, f'--ledger={one}', fresh, same)
    assert status == 1 and err.count('\n') == 1
    assert 'with the same seed: their noise is equal' in err and 'epsilon =' not in out

  def test_malformed_ledgers_end_with_a_sentence(self, tmp_path, capsys):
    computable = {
        f'sigma {s}': (dict(spec=dict(noise_multiplier=s)), [0]) for s in (0, 5e-324, 1e-9)
    }
    computable['integers'] = dict(spec=dict(noise='discrete_gaussian', num_values=2**62)), [0]
    for cases, status in ((malformed_ledgers.CASES, 1), (computable, 0)):
      for name, case in cases.items():
        malformed_ledgers.write(tmp_path / 'privacy_ledger.jsonl', *case)
        found, out, err = self._account(capsys, f'--ledger={tmp_path}')
        assert found == status and 'VALID' not in out, (name, err)
        assert err.count('\n') == bool(status) and err.strip().isprintable(), (name, err)

  def test_terminal_controls_in_a_ledger_are_escaped(self, tmp_path, capsys):
    run = tmp_path / 'a\x1b[2J'
    run.mkdir()
    names = dict(data='\x1b[2J\nQuote epsilon = 0.1, by us', initial_weights='\x9b31m\u202e\ud800')
    malformed_ledgers.write(run / 'privacy_ledger.jsonl', names, [0, 1])
    status, out, _ = self._account(capsys, f'--ledger={run}')
    assert status == 0 and out.replace('\n', '').isprintable()
    assert r'privacy_ledger.jsonl: \x1b[2J\nQuote epsilon = 0.1, by us, 2 rounds' in out
    assert r'initial weights: \x9b31m\u202e\ud800' in out and r'a\x1b[2J' in out
    malformed_ledgers.write(run / 'privacy_ledger.jsonl', {'ledger': 2}, [0, 1])
    status, _, err = self._account(capsys, f'--ledger={run}')
    assert status == 1 and err.strip().isprintable() and r'a\x1b[2J' in err

  def test_paths_without_composable_ledgers_are_refused(self, tmp_path, capsys):
    one, other = self._runs(tmp_path, (2, {}), (2, dict(sampling='fixed_size')))
    (empty := tmp_path / 'empty').mkdir()
    (tmp_path / '[x]').mkdir()  # A path that exists is no pattern.
    for arguments, sentence in (
        ([one, other], 'do not compose. Name runs with the same --sampling'),
        ([empty], 'has no privacy_ledger.jsonl'),
        ([one, f'{tmp_path}/x*'], r'/x\* matches no directory\. Correct the pattern'),
        ([f'{tmp_path}/[x]'], r'/\[x\] has no privacy_ledger.jsonl'),
        ([one, '--rounds=3'], '--rounds=3 and --ledger=.* exclude each other'),
    ):
      status, out, err = self._account(capsys, f'--ledger={arguments[0]}', *arguments[1:])
      assert status == 2 and re.search(sentence, err), err
      assert 'VALID' not in out

  def test_a_ledger_that_was_cut_is_refused(self, tmp_path, capsys):
    (one,) = self._runs(tmp_path, (5, {}))
    path = one / 'privacy_ledger.jsonl'
    whole = path.read_text().splitlines(keepends=True)
    rows = 'round,rounds_charged\n' + ''.join(f'{i},{i}\n' for i in range(6))
    (one / 'metrics.csv').write_text(rows)
    assert self._account(capsys, f'--ledger={one}')[0] == 0
    path.write_text(''.join(whole[:-1]))
    status, out, err = self._account(capsys, f'--ledger={one}')
    assert status == 1 and 'is truncated or missing' in err and 'VALID' not in out
    assert 'Restore the latest backup, and add the rounds that it lacks' in err
    (one / 'metrics.csv').unlink()
    (one / 'summary.json').write_text('{"rounds_charged": 5}')
    status, out, err = self._account(capsys, f'--ledger={one}')
    assert status == 1 and 'summary.json has 5 rounds' in err and 'VALID' not in out
    # What counts the rounds is damaged too.
    for damaged in ('\0' * 50, '{"rounds_charged": 5', '[5]', '{"rounds": 5}', *(
        f'{{"rounds_charged": {count}}}'
        for count in ('null', '-1', 'true', 'NaN', '5.0', '"5"', '1' * 5000, '1' * 4000)
    )):
      (one / 'summary.json').write_text(damaged)
      status, out, err = self._account(capsys, f'--ledger={one}')
      assert status == 1 and 'summary.json is damaged' in err and 'VALID' not in out
    (one / 'summary.json').unlink()
    table = rows.encode()
    for damaged in (
        b'\xff\xff' + table, b'\0' * 200_000 + table, b'\0' * 30 + table[30:],
        table[:-8] + b'\0' * 8, table.replace(b'1,1', b'"1,1'), table.replace(b'1,1', b'1'),
        table.replace(b'1,1', b'1,1,1'), table.replace(b'1,1\n', b''),
        table.replace(b'_charged', b'_chargeD'), table.replace(b'5,5', '5,\u00b2'.encode()),
        table.replace(b'5,5', b'5,'), table.replace(b'\n', b'\r'),
    ):
      (one / 'metrics.csv').write_bytes(damaged)
      status, out, err = self._account(capsys, f'--ledger={one}')
      assert status == 1 and 'metrics.csv is damaged' in err and 'VALID' not in out

  def test_a_round_of_a_running_run_is_no_damage(
      self, tmp_path, capsys, monkeypatch
  ):
    (one,) = self._runs(tmp_path, (2, {}))
    read = ledger_lib.read

    def read_and_go_on(path):
      record = read(path)
      (one / 'metrics.csv').write_text('round,rounds_charged\n0,0\n1,1\n2,2\n3,3\n')
      return record

    monkeypatch.setattr(ledger_lib, 'read', read_and_go_on)
    assert self._account(capsys, f'--ledger={one}')[0] == 0
