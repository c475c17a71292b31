"""Canaries: clients whose updates show most in what a round releases, and their scores.

Canaries know what clients and server have in common: the round's coordinates, factors and
guess. A canary's update makes up for all three and for the d/k scale, so that after the clip
it lies along its direction with norm C. What is scored is the update that the server releases,
with the guess taken off and the factors put on again, which anybody can do.

In `scores_of_run` the aggregator's own TFF process runs; in `AuditedRound`, for speed, its
TensorFlow functions do, in one graph.
"""

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

import fedsmp_tff
from fedsmp_tff import flattening
from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import state as state_lib
from fedsmp_tff.privacy import spec as spec_lib

# A canary before the scale and the clip, in units of C: clipped, whatever the scale.
_LENGTH = 1e3
_RELEASES_AT_ONCE = 1000
# k of d; it does not enter the guarantee.
_RATIO = 0.5
# Rounds before the one that is audited, where releases make factors or a guess: in the first one
# all factors are 1 and the guess is 0.
_ROUNDS_BEFORE = 20


@dataclasses.dataclass(frozen=True, eq=False)
class _HybridTopK(fedsmp_tff.HybridTopK):
  """The hybrid top k of a public update that is random numbers: no model is trained here."""

  public_examples: Any = (np.zeros(1), np.zeros(1))

  def choose(self, known: sparsifiers.Known) -> tf.Tensor:
    dim = flattening.dim(known.shapes)
    return super().choose(
        known._replace(public_update=lambda: tf.random.stateless_normal([dim], known.seed))
    )


_SPARSIFIERS = {
    'randk': fedsmp_tff.RandK,
    'released': fedsmp_tff.ReleasedTopK,
    'hybrid': _HybridTopK,
}


def aggregator(
    spec: spec_lib.PrivacySpec,
    sparsifier: str,
    precondition: Optional[float] = None,
    predict: Optional[float] = None,
    seed: Optional[int] = None,
) -> fedsmp_tff.FedSmpFactory:
  """The aggregator that is audited.

  Args:
    spec: Its noise, C and k.
    sparsifier: How coordinates are chosen: randk, released or hybrid.
    precondition: The exponent of factors; None for none.
    predict: The share of a guess; None for none.
    seed: The masks'.
  """
  post_processing = []
  if precondition is not None:
    post_processing.append(fedsmp_tff.Preconditioner(exponent=precondition))
  if predict is not None:
    post_processing.append(fedsmp_tff.Prediction(share=predict))
  return fedsmp_tff.FedSmpFactory(
      _SPARSIFIERS[sparsifier](num=spec.num_values), spec.mechanism(),
      post_processing=post_processing, seed=seed,
  )


@dataclasses.dataclass(frozen=True)
class _Choice:
  """A round's choice as canaries and those who look for them know it, in NumPy.

  Attributes:
    coordinates: int32[k].
    factors: float64[k]; ones for none.
    guess: float64[k]; zeros for none.
    dim: d.
    scale: That of the sparsifier.
    clipping_norm: C.
  """

  coordinates: np.ndarray
  factors: np.ndarray
  guess: np.ndarray
  dim: int
  scale: float
  clipping_norm: float

  @classmethod
  def of(cls, state: state_lib.FedSmpState, factory: fedsmp_tff.FedSmpFactory, dim: int):
    choice = tf.nest.map_structure(np.asarray, state.choice)
    num = len(choice.coordinates)
    return cls(
        choice.coordinates,
        choice.factors.astype(np.float64) if choice.has_factors else np.ones(num),
        choice.guess.astype(np.float64) if choice.has_guess else np.zeros(num),
        dim, factory.sparsifier.scale(dim), factory.mechanism.clipping_norm,
    )

  def update(self, direction: np.ndarray) -> np.ndarray:
    """The update, float32[d], of which clients make `direction`, a unit vector [k], times C."""
    shaped = self.guess + _LENGTH * self.clipping_norm * direction / self.factors
    update = np.zeros(self.dim, np.float32)
    update[self.coordinates] = shaped / self.scale
    return update

  def shaped(self, mean: Any) -> Any:
    """The mean [d] that was released as clients' values are after guess and factors, [k]."""
    values = tf.gather(mean, self.coordinates) if tf.is_tensor(mean) else mean[self.coordinates]
    return (values - self.guess) * self.factors

  def directions(self, following: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the directions in which wrong code would show most, as unit vectors by name.

    Along the guess, at the extremes of the factors, and on what leaves the mask by itself.

    Args:
      following: The coordinates of a next round after noise alone.
    """
    found = {}
    leaves = ~np.isin(self.coordinates, following)
    if np.any(leaves):
      found['on what leaves the mask'] = leaves / np.linalg.norm(leaves)
    towards = self.guess * self.factors
    if np.any(towards):
      towards /= np.linalg.norm(towards)
      found |= {'along the guess': towards, 'against the guess': -towards}
    if np.ptp(self.factors):
      one = np.eye(len(self.factors))
      found['at the largest factor'] = one[np.argmax(self.factors)]
      found['at the least factor'] = one[np.argmin(self.factors)]
    return found or {'on all coordinates': np.full(len(self.guess), len(self.guess) ** -0.5)}


class AuditedRound:
  """One round of an aggregator, over and over from one state.

  Attributes:
    choice: What is public of the round before it begins.
  """

  def __init__(
      self, spec: spec_lib.PrivacySpec, factory: fedsmp_tff.FedSmpFactory, seed: Optional[int]
  ):
    """Lets a few rounds pass where releases make factors or a guess.

    They are the same with the canary and without it: a round's guarantee is valid whatever was
    released before it.

    Args:
      spec: The guarantee of the round.
      factory: See `aggregator`.
      seed: Makes the noise reproducible; None for fresh noise.
    """
    self._spec = spec
    dim = round(spec.num_values / _RATIO)
    self._round = factory.round([(dim,)])
    self._seed = randomness.fresh_seed() if seed is None else tf.constant([seed, 0], tf.int64)
    state = self._round.choose(self._round.initial_state(seed))
    # Of clients whose coordinates differ, so that guess and factors do.
    usual = tf.constant(_LENGTH * 2.0 ** -np.arange(dim), tf.float32)
    after = tf.function(lambda state, seed: self._next(state, [usual] * spec.seats, seed)[1])
    # Where releases choose coordinates alone, one release moves them most at the start.
    shaped = state.choice.has_factors or state.choice.has_guess
    for number in range(_ROUNDS_BEFORE if shaped else 0):
      state = after(state, randomness.fold_in(self._seed, -1 - number))
    self._state = state
    self.choice = _Choice.of(state, factory, dim)

  def _next(
      self, state: state_lib.FedSmpState, updates: Sequence[tf.Tensor], seed: tf.Tensor
  ) -> tuple[tf.Tensor, state_lib.FedSmpState]:
    """The update that the server makes of clients', and the state with the next choice."""
    reports = [
        self._round.report(update, state, randomness.fold_in(seed, i))
        for i, update in enumerate(updates)
    ]
    return self._finished(reports, state)

  def _finished(
      self, reports: Sequence[Any], state: state_lib.FedSmpState
  ) -> tuple[tf.Tensor, state_lib.FedSmpState]:
    update, state, _ = self._round.finish(self._round.sum(reports), state)
    return update, self._round.choose(state)

  def directions(self) -> dict[str, np.ndarray]:
    """See `_Choice.directions`."""
    if not self._state.memory:
      return self.choice.directions(self.choice.coordinates)
    nothing = [tf.zeros([self.choice.dim])] * self._spec.seats
    _, state = self._next(self._state, nothing, randomness.fold_in(self._seed, 2))
    return self.choice.directions(state.choice.coordinates.numpy())

  def scores(self, direction: np.ndarray, canary: bool, num: int) -> np.ndarray:
    """Scores of independent releases, float[num, number of scores].

    Args:
      direction: The canary's, a unit vector [k].
      canary: Whether the canary is one of the participants; else it sends zero.
      num: How many.
    """
    nothing = np.zeros(self.choice.dim, np.float32)
    update = self.choice.update(direction) if canary else nothing
    base = randomness.fold_in(self._seed, int(canary))
    scores = functools.partial(
        self._some_scores, tf.constant(update), tf.constant(direction), base
    )
    found = []
    title = f'releases {"with" if canary else "without"} a canary'
    for start in tqdm.trange(0, num, _RELEASES_AT_ONCE, desc=title, disable=None):
      found.append(scores(tf.constant(start, tf.int64)).numpy())
    return np.concatenate(found)[:num]

  @tf.function  # Its arguments are tensors: it is traced once for all canaries.
  def _some_scores(self, update, direction, base, start) -> tf.Tensor:
    seats = self._spec.seats
    updates = tf.stack([update] + [tf.zeros([self.choice.dim])] * (seats - 1))

    def report(number):
      seed = randomness.fold_in(base, start + number // seats)
      return self._round.report(
          updates[number % seats], self._state, randomness.fold_in(seed, number % seats)
      )

    def score(reports):
      reports = [tf.nest.map_structure(lambda t, i=i: t[i], reports) for i in range(seats)]
      mean, state = self._finished(reports, self._state)
      released = self.choice.shaped(mean) * self._spec.clients_per_round
      along = [tf.reduce_sum(released * direction) / self._spec.clipping_norm]
      if self._state.memory:
        along += self._leanings(state.choice, direction)
      return tf.stack(along)

    # One by one the reports, whose noise is a thousand small operations, take 1.7 ms a release.
    numbers = tf.range(_RELEASES_AT_ONCE * seats, dtype=tf.int64)
    reports = tf.nest.map_structure(
        lambda t: tf.reshape(t, [_RELEASES_AT_ONCE, seats, *t.shape[1:]]),
        tf.vectorized_map(report, numbers, warn=False),
    )
    return tf.map_fn(score, reports, fn_output_signature=tf.float64)

  def _leanings(self, choice: state_lib.Choice, direction: tf.Tensor) -> list[tf.Tensor]:
    """Measures how far the next round's coordinates, factors and guess lean towards a direction."""
    where = self.choice.coordinates[:, np.newaxis]
    there = tf.gather(tf.scatter_nd(where, direction, [self.choice.dim]), choice.coordinates)
    found = [tf.reduce_sum(there**2)]
    if choice.has_factors:  # The larger the energy, the smaller is the factor.
      found.append(-tf.reduce_sum(there**2 * tf.math.log(tf.cast(choice.factors, tf.float64))))
    if choice.has_guess:
      found.append(tf.reduce_sum(there * tf.cast(choice.guess, tf.float64)))
    return found


def scores_of_run(
    spec: spec_lib.PrivacySpec,
    factory: fedsmp_tff.FedSmpFactory,
    num: int,
    seed: Optional[int],
) -> tuple[np.ndarray, np.ndarray]:
  """Scores of a run's canaries, the first of the population, and which of them were in it.

  Args:
    spec: The guarantee of the run.
    factory: See `aggregator`.
    num: How many canaries.
    seed: Makes canaries and sampling reproducible; None for fresh ones.

  Returns:
    float[num] and bool[num].
  """
  rng = np.random.default_rng(seed)
  included = rng.random(num) < 0.5
  values = spec.num_values
  dim = round(values / _RATIO)
  process = factory.create(tff.TensorType(np.float32, [dim]))
  sampler = spec.sampler(None if seed is None else int(rng.integers(2**63)))
  rate = spec.clients_per_round / spec.population
  scores = np.zeros(num)
  nothing = np.zeros(dim, np.float32)
  state = process.initialize()
  for t in tqdm.trange(spec.rounds, desc='rounds with canaries', disable=None):
    directions = rng.standard_normal((num, values)).astype(np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    choice = _Choice.of(state, factory, dim)
    cohort = [
        choice.update(directions[i]) if 0 <= i < num and included[i] else nothing
        for i in sampler.sample(t)
    ]
    result = process.next(state, cohort)
    state = result.state
    released = choice.shaped(np.asarray(result.result)) * spec.clients_per_round
    along = directions @ released / spec.clipping_norm
    scores += np.log1p(
        rate * np.expm1((2 * along - 1) / (2 * spec.noise_multiplier**2))
    )
  return scores, included
