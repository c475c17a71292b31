"""Canaries: clients whose updates show most in what a round releases, and their scores.

A canary knows the round's coordinates and the d/k scale, so that after the clip it lies along its
direction with norm C. What is scored is the update that the server releases.

In `scores_of_run` the aggregator's own TFF process runs; in `AuditedRound`, for speed, its
TensorFlow functions do, in one graph.
"""

import functools
from typing import Any, Optional

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

import fedsmp_tff
from fedsmp_tff import randomness
from fedsmp_tff.privacy import spec as spec_lib

# A canary before the scale and the clip, in units of C: clipped, whatever the scale.
_LENGTH = 1e3
_RELEASES_AT_ONCE = 1000
# k of d; it does not enter the guarantee.
_RATIO = 0.5
_SPARSIFIERS = {'randk': fedsmp_tff.RandK, 'released': fedsmp_tff.ReleasedTopK}


def aggregator(
    spec: spec_lib.PrivacySpec, sparsifier: str, seed: Optional[int] = None
) -> fedsmp_tff.FedSmpFactory:
  """The aggregator that is audited.

  Args:
    spec: Its noise, C and k.
    sparsifier: How coordinates are chosen: randk or released.
    seed: The masks'.
  """
  return fedsmp_tff.FedSmpFactory(
      _SPARSIFIERS[sparsifier](num=spec.num_values), spec.mechanism(), seed=seed
  )


def _update(
    factory: fedsmp_tff.FedSmpFactory, direction: np.ndarray, coordinates: np.ndarray, dim: int
) -> np.ndarray:
  """The update, float32[d], of which a client makes `direction`, a unit vector [k], times C."""
  update = np.zeros(dim, np.float32)
  length = _LENGTH * factory.mechanism.clipping_norm / factory.sparsifier.scale(dim)
  update[coordinates] = length * direction
  return update


class AuditedRound:
  """One round of an aggregator, over and over from one state.

  Attributes:
    coordinates: int32[k], those of the round, which are public before it begins.
  """

  def __init__(
      self, spec: spec_lib.PrivacySpec, factory: fedsmp_tff.FedSmpFactory, seed: Optional[int]
  ):
    """Initializes.

    Args:
      spec: The guarantee of the round.
      factory: See `aggregator`.
      seed: Makes the noise reproducible; None for fresh noise.
    """
    self._spec = spec
    self._factory = factory
    self._dim = round(spec.num_values / _RATIO)
    self._round = factory.round([(self._dim,)])
    self._seed = randomness.fresh_seed() if seed is None else tf.constant([seed, 0], tf.int64)
    self._state = self._round.choose(self._round.initial_state(seed))
    self.coordinates = self._state.coordinates.numpy()

  def _finished(self, reports: list[Any]) -> tuple[tf.Tensor, tf.Tensor]:
    """The update that the server makes of reports, and the next round's coordinates."""
    update, state, _ = self._round.finish(self._round.sum(reports), self._state)
    return update, self._round.choose(state).coordinates

  def direction(self) -> tuple[str, np.ndarray]:
    """Returns where wrong code would show most, in words and as a unit vector [k].

    Where releases choose the next coordinates, that is on what leaves the mask by itself.
    """
    if self._state.memory:
      nothing = tf.zeros([self._dim])
      seed = randomness.fold_in(self._seed, 2)
      _, following = self._finished([
          self._round.report(nothing, self._state, randomness.fold_in(seed, i))
          for i in range(self._spec.num_slots)
      ])
      leaves = ~np.isin(self.coordinates, following.numpy())
      if np.any(leaves):
        return 'on what leaves the mask', leaves / np.linalg.norm(leaves)
    num = len(self.coordinates)
    return 'on all coordinates', np.full(num, num**-0.5)

  def scores(self, direction: np.ndarray, canary: bool, num: int) -> np.ndarray:
    """Scores of independent releases, float[num, number of scores].

    Args:
      direction: The canary's, a unit vector [k].
      canary: Whether the canary is one of the participants; else it sends zero.
      num: How many.
    """
    nothing = np.zeros(self._dim, np.float32)
    update = (
        _update(self._factory, direction, self.coordinates, self._dim) if canary else nothing
    )
    base = randomness.fold_in(self._seed, int(canary))
    scores = functools.partial(
        self._some_scores, tf.constant(update), tf.constant(direction), base
    )
    found = []
    title = f'releases {"with" if canary else "without"} a canary'
    for start in tqdm.trange(0, num, _RELEASES_AT_ONCE, desc=title, disable=None):
      found.append(scores(tf.constant(start, tf.int64)).numpy())
    return np.concatenate(found)[:num]

  @tf.function  # Its arguments are tensors: it is traced once for both.
  def _some_scores(self, update, direction, base, start) -> tf.Tensor:
    num_slots = self._spec.num_slots
    updates = tf.stack([update] + [tf.zeros([self._dim])] * (num_slots - 1))

    def report(number):
      seed = randomness.fold_in(base, start + number // num_slots)
      return self._round.report(
          updates[number % num_slots], self._state, randomness.fold_in(seed, number % num_slots)
      )

    def score(reports):
      reports = [tf.nest.map_structure(lambda t, i=i: t[i], reports) for i in range(num_slots)]
      mean, following = self._finished(reports)
      released = tf.gather(mean, self.coordinates) * self._spec.clients_per_round
      found = [tf.reduce_sum(released * direction) / self._spec.clipping_norm]
      if self._state.memory:  # How far the next coordinates lean towards the canary.
        where = self.coordinates[:, np.newaxis]
        there = tf.gather(tf.scatter_nd(where, direction, [self._dim]), following)
        found.append(tf.reduce_sum(there**2))
      return tf.stack(found)

    # One by one the reports, whose noise is a thousand small operations, take 1.7 ms a release.
    numbers = tf.range(_RELEASES_AT_ONCE * num_slots, dtype=tf.int64)
    reports = tf.nest.map_structure(
        lambda t: tf.reshape(t, [_RELEASES_AT_ONCE, num_slots, *t.shape[1:]]),
        tf.vectorized_map(report, numbers, warn=False),
    )
    return tf.map_fn(score, reports, fn_output_signature=tf.float64)


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
    coordinates = np.asarray(state.coordinates)
    cohort = [
        _update(factory, directions[i], coordinates, dim)
        if 0 <= i < num and included[i] else nothing
        for i in sampler.sample(t)
    ]
    result = process.next(state, cohort)
    state = result.state
    released = np.asarray(result.result)[coordinates] * spec.clients_per_round
    along = directions @ released / spec.clipping_norm
    scores += np.log1p(
        rate * np.expm1((2 * along - 1) / (2 * spec.noise_multiplier**2))
    )
  return scores, included
