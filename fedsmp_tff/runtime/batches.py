"""Checks and adds the integers of a batch of clients in a worker; needs NumPy alone.

A worker on another machine runs this module, as `graphs`, sent to it with its work.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
from typing import Any, Optional

import numpy as np


class IntegerSum:
  """One tensor of a secure sum: SIMULATED, a plain sum of integers in range.

  Integers are added as those of the tensor's type, which wrap around, or modulo
  `modulus`; so the sum depends neither on the order nor on how it is cut into batches.

  Attributes:
    zero: The sum of nothing.
  """

  def __init__(self, zero: np.ndarray, max_input: np.ndarray, modulus: Optional[int] = None):
    """Initializes the sum.

    Args:
      zero: Zeros of the tensor's shape and type.
      max_input: The largest integer that a client may give, a scalar.
      modulus: Of a modular sum; None: a plain one.
    """
    self.zero = zero
    self._max_input = max_input
    self._modulus = modulus

  def check(self, value: np.ndarray, position: int) -> None:
    """Checks the integers that one client gives.

    Raises:
      ValueError: If one is negative or larger than was declared.
    """
    if np.any(value < 0) or np.any(value > self._max_input):
      raise ValueError(
          f'Client {position} of the round gave secure aggregation integers from'
          f' {np.min(value)} to {np.max(value)}, outside 0 to'
          f' {np.max(self._max_input)}, which it declared.'
      )

  def add(self, total: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Returns `total` with `value` added: a checked client's integers, or a sum of several."""
    if self._modulus is None:
      return np.add(total, value, dtype=self.zero.dtype)
    # Two values below a modulus near 2^31 add up to more than int32 can represent.
    total = np.add(total, value, dtype=np.int64) % self._modulus
    return total.astype(self.zero.dtype)


def run(
    run_client: Callable[[Sequence[Any]], list[np.ndarray]],
    clients: Sequence[Sequence[Any]],
    positions: Sequence[int],
    sums: Sequence[IntegerSum],
) -> list[np.ndarray]:
  """Runs the clients of a batch and adds their integers.

  Args:
    run_client: From a client's leaves to its results.
    clients: The leaves of each.
    positions: Where each is in the round.
    sums: How the last results are checked and added; none are before them if there is more
      than one client.

  Returns:
    The results that are not added, and the sums.

  Raises:
    ValueError: If a client's integers are out of their range.
  """
  totals = [sum_.zero for sum_ in sums]
  for client, position in zip(clients, positions):
    with naming(position):
      results = run_client(client)
    num_plain = len(results) - len(sums)
    for sum_, value in zip(sums, results[num_plain:]):
      sum_.check(value, position)
    totals = [sum_.add(t, v) for sum_, t, v in zip(sums, totals, results[num_plain:])]
  return results[:num_plain] + totals


@contextlib.contextmanager
def naming(position: int) -> Iterator[None]:
  """Adds to an exception's text which client of the round it comes from."""
  try:
    yield
  except Exception as error:
    error.add_note(f'(from client {position} of the round, counted from 0)')
    raise
