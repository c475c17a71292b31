"""Tests of the command `python -m tasks.account`."""

import re

import pytest

from fedsmp_tff import accounting
from tasks import account

_PAPER = ('--clients_per_round=100', '--population=6000')


def _run(capsys, *arguments):
  for name in account._FLAGS:
    account._FLAGS[name].unparse()
  status = account.main(['account', *_PAPER, *arguments])
  captured = capsys.readouterr()
  return status, captured.out, captured.err


class TestComputation:

  @pytest.mark.parametrize(
      'arguments, sentence',
      [
          ([], '--noise_multiplier is not set'),
          (['--noise_multiplier=1'], '--rounds is not set'),
          (['--noise_multiplier=-1', '--rounds=2'], '--noise_multiplier must be'),
          (['--noise_multiplier=nan', '--rounds=2'], '--noise_multiplier must be'),
          (['--noise_multiplier=1', '--rounds=0'], '--rounds=0 is not an integer from 1'),
          (['--noise_multiplier=1', '--rounds=2', '--delta=1'], '--delta must be in'),
          (['--noise_multiplier=1', '--rounds=2', '--population=9'], '--clients_per_round'),
          (['--epsilon=1'], 'needs one of --rounds'),
          (['--epsilon=1', '--rounds=2', '--noise_multiplier=1'], 'needs one of --rounds'),
          (['--epsilon=0', '--rounds=2'], '--epsilon must be positive'),
          (['--epsilon=nan', '--noise_multiplier=2'], '--epsilon=nan is not a number'),
          (['--epsilon=1e-9', '--rounds=9999'], 'No noise multiplier'),
          (['--epsilon=1', '--rounds=2', '--plot=x.png'], '--plot is of no use'),
          (['--sampling=shuffle', '--noise_multiplier=1'], 'sampling.*shuffle'),
          (['--no_such_flag'], 'no_such_flag'),
          (['stray'], "'stray' is not a flag"),
      ],
  )
  def test_one_sentence_and_status_2(self, capsys, arguments, sentence):
    status, out, err = _run(capsys, *arguments)
    assert status == 2 and out.count('HOLDS') == 0
    assert err.startswith('tasks.account: ') and err.count('\n') == 1
    assert re.search(sentence, err), err

  def test_help_names_the_flags(self, capsys):
    status, out, _ = _run(capsys, '--help')
    assert status == 0 and all(f'--{name}:' in out for name in ('rounds', 'plot', 'delta'))


class TestExecution:

  def test_all_side_by_side_and_which_hold(self, capsys, tmp_path):
    plot = tmp_path / 'epsilon.png'
    status, out, _ = _run(
        capsys, '--noise_multiplier=1.4', '--rounds=180', f'--plot={plot}'
    )
    assert status == 0
    lines = {
        match[3]: (match[1], match[2].strip())
        for match in re.finditer(r'^epsilon = (\S+) +(.+?) {2,}(\w+):', out, re.MULTILINE)
    } | {
        match[2]: (match[1], 'short')
        for match in re.finditer(r'^epsilon = (\S+) +no guarantee says less +(\w+):', out, re.MULTILINE)
    }
    assert list(accounting.ACCOUNTINGS) == [n for n in lines if n != 'theorem_1']
    assert list(lines)[0] == 'poisson_pld' and list(accounting.ACCOUNTINGS)[-1] == 'paper'
    assert lines['fixed_size_pld'] == ('3.743', 'HOLDS')
    assert lines['fixed_size'] == ('5.352', 'HOLDS')
    assert lines['poisson_pld'] == ('0.6303', 'not for this sampling')
    assert lines['paper'] == ('1.008', 'not for this sampling')
    assert 'LOWER BOUND' in out and 'CONDITIONS NOT MET' in out
    assert plot.stat().st_size > 1000

  def test_poisson_sampling_turns_what_holds(self, capsys):
    _, out, _ = _run(
        capsys, '--noise_multiplier=1.4', '--rounds=3', '--sampling=poisson'
    )
    assert re.search('HOLDS +poisson_pld', out)
    assert re.search('not for this sampling +fixed_size_pld', out)

  def test_epsilon_finds_sigma(self, capsys):
    # What a true 1.008 takes with each sampling.
    _, out, _ = _run(capsys, '--epsilon=1.008', '--rounds=180')
    found = dict(re.findall(r'^sigma = (\S+) +.+? (\w+): ', out, re.MULTILINE))
    found = {name: float(sigma) for sigma, name in found.items()}
    assert found['poisson_pld'] == pytest.approx(1.086, abs=1e-3)
    assert found['fixed_size_pld'] == pytest.approx(2.965, abs=5e-3)
    assert found['paper'] == pytest.approx(1.4, abs=1e-3)
    assert 'fixed_size_lower' not in found

  def test_epsilon_finds_the_rounds(self, capsys):
    _, out, _ = _run(
        capsys, '--epsilon=1', '--noise_multiplier=1.4', '--sampling=poisson'
    )
    found = dict(re.findall(r'^(\S+) rounds +.+? (\w+): ', out, re.MULTILINE))
    found = {name: int(rounds.replace(',', '')) for rounds, name in found.items()}
    spending = accounting.Spending(1.4, 100, 6000, 6000**-1.1)
    for name in ('poisson_pld', 'poisson', 'paper'):
      assert spending.epsilon(name, found[name]) <= 1
      assert spending.epsilon(name, found[name] + 1) > 1
