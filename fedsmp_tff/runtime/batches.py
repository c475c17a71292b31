"""Checks and adds the integers of a batch of clients in a worker; needs NumPy alone.

The driver sends this module, as `graphs`, by value to workers on other machines.
"""

from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
from typing import Optional

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class IntegerSum:
  """One tensor of a secure sum: SIMULATED, a plain sum of integers in range.

  Integers are added in the tensor's type, which wraps around, or modulo `modulus`; so the sum
  depends neither on the order nor on the division into batches.

  Attributes:
    zero: The empty sum: zeros of the tensor's shape and type.
    max_input: The largest integer that a client may give, a scalar.
    modulus: The modulus; None: a plain sum.
  """

  zero: np.ndarray
  max_input: np.ndarray
  modulus: Optional[int] = None

  def check(self, value: np.ndarray, position: int) -> None:
    """Raises ValueError if an integer of a client is negative or above its declared maximum."""
    if np.any(value < 0) or np.any(value > self.max_input):
      raise ValueError(
          f'Client {position} of the round submitted integers {np.min(value)} to {np.max(value)}'
          f' to secure aggregation, outside its declared range 0 to {np.max(self.max_input)}.'
      )

  def add(self, total: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Returns `total` plus `value`: a checked client's integers, or the sum of a batch."""
    if self.modulus is None:
      return np.add(total, value, dtype=self.zero.dtype)
    # Two values below a modulus near 2^31 add up to more than int32 can represent.
    total = np.add(total, value, dtype=np.int64) % self.modulus
    return total.astype(self.zero.dtype)


def run(
    clients: Iterator[list[np.ndarray]], positions: Sequence[int], sums: Sequence[IntegerSum]
) -> list[np.ndarray]:
  """Runs the clients of a batch and adds their integers.

  Args:
    clients: Runs the next client and yields its results.
    positions: The position of each client in the round.
    sums: The sums of the last results. With more than one client, all results are added.

  Returns:
    The results that are not added, and the sums.

  Raises:
    ValueError: If a client's integers are out of range.
  """
  totals = [sum_.zero for sum_ in sums]
  for position in positions:
    with naming(position):
      results = next(clients)
    num_plain = len(results) - len(sums)
    for sum_, value in zip(sums, results[num_plain:]):
      sum_.check(value, position)
    totals = [sum_.add(t, v) for sum_, t, v in zip(sums, totals, results[num_plain:])]
  return results[:num_plain] + totals


@contextlib.contextmanager
def naming(position: int) -> Iterator[None]:
  """Adds a note to an exception: the position of its client in the round."""
  try:
    yield
  except Exception as error:
    error.add_note(f'(from client {position} of the round, counted from 0)')
    raise
