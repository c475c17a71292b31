"""Tests that a release manager receives each round, and that its failures end nothing."""

import asyncio
import collections
import re
import signal
import threading

import pytest
import tensorflow_federated as tff

from fedsmp_tff.program import loop
from fedsmp_tff.program import releases


class _Failing(tff.program.ReleaseManager):

  def __init__(self, error):
    self._error = error

  async def release(self, value, key):
    raise self._error


def _report(rounds_done):
  return loop.RoundReport(
      rounds_done, rounds_charged=rounds_done + 1, weights=object(),
      metrics=collections.OrderedDict(aggregator=collections.OrderedDict(participants=3)),
      evaluation={'accuracy': 0.5},
  )


class TestReleases:

  def test_each_round_is_released_under_its_number(self):
    manager = tff.program.MemoryReleaseManager()
    report = releases.Releases(manager)
    for rounds_done in (0, 1, 2):
      report(_report(rounds_done))
    assert list(manager.values()) == [0, 1, 2]
    assert manager.values()[2] == {
        'rounds_charged': 3, 'metrics': {'aggregator': {'participants': 3}},
        'evaluation': {'accuracy': 0.5},
    }
    releases.Releases(manager, lambda report: {'charged': report.rounds_charged})(_report(4))
    assert manager.values()[4] == {'charged': 5}

  @pytest.mark.parametrize('error', [ConnectionError('no server'), asyncio.CancelledError()])
  def test_a_failed_release_is_a_warning(self, error):
    text = re.escape(f'_Failing did not release round 1: {error!r}')
    with pytest.warns(UserWarning, match=text):
      releases.Releases(_Failing(error))(_report(1))

  def test_an_interrupt_does_not_wait_for_a_hung_server(self):
    answer, ended = threading.Event(), []

    class Hanging(tff.program.ReleaseManager):

      async def release(self, value, key):
        ended.append(answer.wait(30))

    def interrupt(*_):
      raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
      with pytest.raises(KeyboardInterrupt):
        releases.Releases(Hanging())(_report(1))
      assert not ended
    finally:
      signal.setitimer(signal.ITIMER_REAL, 0)
      answer.set()
      signal.signal(signal.SIGALRM, previous)

  def test_releases_work_inside_a_running_event_loop(self):
    manager = tff.program.MemoryReleaseManager()

    async def cell():  # As in a notebook.
      releases.Releases(manager)(_report(1))

    asyncio.run(cell())
    assert list(manager.values()) == [1]
