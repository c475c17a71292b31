"""Passes the numbers of each round to a `tff.program.ReleaseManager`: to MLflow, W&B or a file."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent import futures
import threading
from typing import Any
import warnings

import tensorflow_federated as tff

from fedsmp_tff.program import loop


def numbers_of(report: loop.RoundReport) -> dict[str, Any]:
  """Returns the numbers of a report: process metrics, evaluation, rounds charged."""
  return {
      'rounds_charged': report.rounds_charged,
      'metrics': report.metrics,
      'evaluation': report.evaluation,
  }


class Releases(loop.Reporter):
  """A reporter that releases numbers of each round, keyed by the number of finished rounds.

  Privacy: epsilon covers neither the counts `participants` and `released`, nor the time of a
  release, nor an evaluation on clients' data.

  A failed release gives a warning, and the run continues: an unreachable metrics server must not
  cost a round. A resumed run releases the rounds after its checkpoint again, under the same keys.
  """

  def __init__(
      self,
      manager: tff.program.ReleaseManager,
      numbers: Callable[[loop.RoundReport], Mapping[str, Any]] = numbers_of,
  ):
    """Initializes the reporter: `numbers` maps a report to the mapping that `manager` receives."""
    self._manager = manager
    self._numbers = numbers

  def __call__(self, report: loop.RoundReport) -> None:
    value, key = self._numbers(report), report.rounds_done
    released = futures.Future()

    def release():
      try:
        released.set_result(asyncio.run(self._manager.release(value, key)))
      except BaseException as error:  # pylint: disable=broad-exception-caught
        released.set_exception(error)

    # A thread has its own event loop: in a notebook, the main thread's loop is already running. A
    # daemon: an interrupt, or the interpreter's end, should not wait for a server that hangs.
    try:
      threading.Thread(target=release, daemon=True).start()
      released.result()
    except (Exception, asyncio.CancelledError) as error:  # pylint: disable=broad-exception-caught
      warnings.warn(
          f'{type(self._manager).__name__} did not release round {key}: {error!r}', stacklevel=2
      )
