"""Tests of `python -m tasks.tune`: a suggestion from public data, and what it refuses."""

import json
import re

import pytest

from tasks import tune
from tests.support import commands


def _run(capsys, *arguments):
  return commands.of_module(capsys, tune, *arguments)


class TestComputation:

  @pytest.mark.parametrize('arguments, sentence', [
      ([], '--task is not set'),
      (['--task=fashion_mnist', '--algorithm=fedavg'], 'adds no noise'),
      (
          ['--task=fashion_mnist', '--algorithm=fedsmp_randk', '--warm_start=none'],
          'sets no public examples aside',
      ),
      (
          ['--task=fashion_mnist', '--tune_rounds=0'],
          '--tune_rounds must be an integer >= 1; got 0',
      ),
  ])
  def test_one_sentence_and_status_2(self, capsys, arguments, sentence):
    err = commands.refused(capsys, tune, *arguments)
    assert sentence in err


class TestExecution:

  @pytest.fixture
  def arguments(self, data_dir, tmp_path):
    tiny = commands.tiny(data_dir, tmp_path, '--algorithm=fedsmp_topk', '--public_examples=24')
    kept = [a for a in tiny[1:] if 'output_dir' not in a and a != '--public_examples=8']
    return [
        *kept, '--seed=0', '--tune_rounds=2', '--client_examples=3', '--noise_multiplier=3',
    ]

  @pytest.mark.slow
  def test_suggests_p_from_the_public_examples_of_the_run_with_its_flags(
      self, capsys, arguments, tmp_path
  ):
    status, out, _ = _run(capsys, *arguments)
    assert status == 0 and 'set the same examples aside: --seed=0 --public_examples=24,\n' in out
    for name in ('rand-k', 'top-k'):
      assert 0 < float(re.search(f'^{name}: p = (.*)$', out, re.M)[1]) <= 1
    # From lr 0.125 and momentum 0.5; one epoch of three examples.
    assert 'step eta_l/(1 - momentum) = 0.25, tau = 1, ' in out and 'sigma = 3\n' in out
    digest = re.search('public_digest = (.*) in their config.json', out)[1]
    flags = [a for a in arguments if not a.startswith(('--tune', '--client_examples'))]
    for seed in ('0', '2'):
      run = [*flags, '--rounds=1', f'--seed={seed}', f'--output_dir={tmp_path / seed}']
      assert commands.main(['run', *run]) == 0
      config = json.loads((tmp_path / seed / 'config.json').read_text())
      assert (config['public_digest'] == digest) == (seed == '0')

  def test_without_a_seed_only_where_no_seed_draws_the_public_set(
      self, capsys, arguments
  ):
    unseeded = [a for a in arguments if a != '--seed=0']
    assert "may be its clients'. Set --seed" in commands.refused(capsys, tune, *unseeded)
    status, out, err = _run(
        capsys, '--task=tests.support.people_task', '--tune_rounds=1', '--client_examples=3',
        '--public_examples=24',
    )
    assert status == 0, err
    assert 'set the same examples aside: --public_examples=24,\n' in out

  def test_too_few_public_examples(self, capsys, arguments):
    err = commands.refused(capsys, tune, *arguments, '--client_examples=20')
    assert '--client_examples must be lower: with 20, half of the 24' in err
