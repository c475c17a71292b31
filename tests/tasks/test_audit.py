"""Tests of the command `python -m tasks.audit`: right code stands, wrong code is refuted."""

import re

import pytest
import tensorflow as tf

from fedsmp_tff import state as state_lib
from fedsmp_tff.mechanism import mechanism
from fedsmp_tff.mechanism import round as round_lib
from tasks import audit
from tests.support import commands


def _run(capsys, *arguments):
  """Runs the command with a seed; returns status, output, and epsilon reported and audited."""
  status, out, _ = commands.of_module(capsys, audit, '--seed=1', '--delta=1e-2', *arguments)
  return status, out, *(
      float(re.search(rf'{word} +epsilon [=>] (\S+)', out)[1]) for word in ('reported', 'audited')
  )


class TestComputation:

  @pytest.mark.parametrize('arguments, sentence', [
      (['--delta=1'], r'--delta must be in \(0, 1\)'),
      (['--noise_multiplier=-1'], r'--noise_multiplier must be .* >= 0; got -1\.0'),
      (['--noise_multiplier=1e-9'], 'above the standard deviation .* Set a larger one'),
      (['--sparsifier=topk'], 'sparsifier.*topk'),
  ])
  def test_bad_flags_get_one_sentence_and_status_2(self, capsys, arguments, sentence):
    err = commands.refused(capsys, audit, *arguments)
    assert re.search(sentence, err), err


class TestExecution:

  @pytest.mark.parametrize('noise, sparsifier, releases', [
      ('gaussian', 'randk', 4000), ('discrete_gaussian', 'randk', 4000),
      pytest.param('discrete_gaussian', 'released', 8000, marks=pytest.mark.slow),
  ])
  def test_correct_code_is_not_refuted(self, noise, sparsifier, releases, capsys):
    status, out, reported, audited = _run(
        capsys, f'--noise={noise}', f'--sparsifier={sparsifier}', f'--releases={releases}'
    )
    assert status == 0 and '  not refuted' in out
    # At sigma = 1.4, by PLD.
    assert reported == pytest.approx(1.478, rel=1e-3)
    # Four audits of 4,000 releases showed 0.49 to 0.67 of it.
    assert 0.3 * 1.478 < audited < reported

  @pytest.mark.parametrize('bug', ['share', 'clip'])
  def test_a_planted_bug_is_refuted(self, bug, capsys, monkeypatch):
    if bug == 'share':  # C sigma / r instead of C sigma / sqrt(r).
      share_stddev = property(lambda m: m.noise_multiplier / m.min_reports)
      monkeypatch.setattr(mechanism.Mechanism, 'share_stddev', share_stddev)
    else:
      monkeypatch.setattr(tf, 'norm', lambda _: tf.constant(1e-3, tf.float64))
    status, out, *_ = _run(capsys, '--releases=2000')
    assert status == 1 and 'REPORTED EPSILON REFUTED' in out

  def test_a_mask_that_sees_more_than_releases_is_refuted(self, capsys, monkeypatch):
    """The server remembers the sum of clients' values without its noise."""
    fed_smp_round = round_lib.FedSmpRound
    report, plain_sum, finish = fed_smp_round.report, fed_smp_round.sum, fed_smp_round.finish

    def with_values(self, update, state, seed):
      made = report(self, update, state, seed)
      kept = tf.cast(tf.gather(update, state.coordinates), tf.float64)
      return made | {'exact': round_lib._clip(kept, state.clipping_norm)[0]}

    def with_sum(self, reports):
      exact = tf.add_n([made['exact'] for made in reports])
      return plain_sum(self, reports) | {'exact': exact}

    def remembering(self, total, state):
      exact = total.pop('exact')
      update, after, measurements = finish(self, total, state)
      seen = state_lib.Release(state.coordinates, exact, tf.zeros_like(exact), True)
      memory = self._sparsifier.remember(state.memory, seen)
      return update, after._replace(memory=memory), measurements

    monkeypatch.setattr(fed_smp_round, 'report', with_values)
    monkeypatch.setattr(fed_smp_round, 'sum', with_sum)
    monkeypatch.setattr(fed_smp_round, 'finish', remembering)
    status, out, *_ = _run(capsys, '--releases=2000', '--sparsifier=released')
    assert status == 1 and 'REPORTED EPSILON REFUTED' in out, out
