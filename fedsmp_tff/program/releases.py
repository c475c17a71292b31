"""Hands the numbers of each round to a `tff.program.ReleaseManager`: to MLflow, W&B or a file."""

import asyncio
from collections.abc import Callable, Mapping
from concurrent import futures
from typing import Any
import warnings

import tensorflow_federated as tff

from fedsmp_tff.program import loop


def numbers_of(report: loop.RoundReport) -> dict[str, Any]:
  """Returns what a report has, by name: the process's metrics, the evaluation, rounds charged."""
  return {
      'rounds_charged': report.rounds_charged,
      'metrics': report.metrics,
      'evaluation': report.evaluation,
  }


class Releases(loop.Reporter):
  """A reporter that releases numbers of each round, keyed by the number of rounds that ended.

  Privacy: what it hands on are numbers that the loop has, and nothing else of clients: those that
  the process releases, which the ledger covers, and those of the evaluation.

  A release that fails is a warning, and the run continues: a round that ended is not lost, and
  charged again, since a server of metrics was down. A run that resumes releases the rounds after
  its checkpoint again, under the same keys.
  """

  def __init__(
      self,
      manager: tff.program.ReleaseManager,
      numbers: Callable[[loop.RoundReport], Mapping[str, Any]] = numbers_of,
  ):
    """Initializes.

    Args:
      manager: Receives a mapping and, as the key, an int.
      numbers: Maps a report to that mapping.
    """
    self._manager = manager
    self._numbers = numbers

  def __call__(self, report: loop.RoundReport) -> None:
    value, key = self._numbers(report), report.rounds_done
    try:
      # In a thread with an event loop of its own: a notebook's thread has one that runs.
      with futures.ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(self._manager.release(value, key))).result()
    except Exception as error:  # pylint: disable=broad-exception-caught
      warnings.warn(
          f'{type(self._manager).__name__} did not release round {key}: {error}', stacklevel=2
      )
