"""A run's streams of randomness: from its seed, or fresh."""

import secrets
from typing import Any, NamedTuple, Optional

import numpy as np

_SECRET = ('sampling', 'process')


class Seeds(NamedTuple):
  """One seed a stream, each of 32 bits.

  Attributes:
    partition: Of the data among clients, and of the public set.
    weights: Of the initial weights.
    evaluation: Of the test examples that are measured between rounds.
    sampling: Of who takes part in a round; None: the sampler's own entropy.
    process: Of masks, the order of examples and the noise; None: all of it fresh.
  """

  partition: int
  weights: int
  evaluation: int
  sampling: Optional[int]
  process: Optional[int]

  def public(self) -> dict[str, int]:
    """Those that protect nobody, for config.json: the same when the run resumes."""
    return {n: v for n, v in self._asdict().items() if n not in _SECRET}


def make(seed: Optional[int], config: Optional[dict[str, Any]]) -> Seeds:
  """The seeds of a run.

  Args:
    seed: The run's; None: from the operating system's entropy.
    config: The contents of config.json, if the run resumes.
  """
  if seed is None and config is not None:
    return Seeds(**config['seeds'], **dict.fromkeys(_SECRET))
  sequence = np.random.SeedSequence(secrets.randbits(128) if seed is None else seed)
  partition, weights, sampling, process, evaluation = (
      int(word) for word in sequence.generate_state(5, np.uint32)
  )
  made = Seeds(partition, weights, evaluation, sampling, process)
  return made if seed is not None else made._replace(**dict.fromkeys(_SECRET))
