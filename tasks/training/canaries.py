"""Scores canaries: clients whose updates are most visible in the release of a round.

A canary knows the round's coordinates and the d/k scale, so that after the clip it lies along its
direction with norm C. The score is of the update that the server releases.

For speed, the aggregator's TensorFlow functions run in one graph, without its TFF process, and
with Gaussian noise as XLA compiles them.
"""

from typing import Optional

import numpy as np
import tensorflow as tf
import tqdm

import fedsmp_tff
from fedsmp_tff import randomness
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import spec as spec_lib

# Norm of a canary before the scale and the clip, in units of C: clipped at any scale.
_LENGTH = 1e3
_RELEASES_AT_ONCE = 1000
# k / d, on which the guarantee does not depend.
_RATIO = 0.5
_SPARSIFIERS = {'randk': fedsmp_tff.RandK, 'released': fedsmp_tff.ReleasedTopK}


def scores_of_releases(
    spec: spec_lib.PrivacySpec, sparsifier: str, num: int, seed: Optional[int]
) -> tuple[str, np.ndarray, np.ndarray]:
  """Scores independent releases of one round, from one state, with and without a canary.

  Args:
    spec: The guarantee of the round; each of its participants takes part.
    sparsifier: randk or released.
    num: Number of releases with the canary, and of releases without it.
    seed: Seed of masks and noise; None: fresh randomness.

  Returns:
    The canary's direction, in words, and the scores with and without it, float[num, scores].
  """
  masks, dim = _SPARSIFIERS[sparsifier](num=spec.num_values), round(spec.num_values / _RATIO)
  audited = fedsmp_tff.FedSmpFactory(masks, spec.mechanism(), seed=seed).round([(dim,)])
  state = audited.choose(audited.initial_state(seed))
  coordinates, num_slots = state.coordinates.numpy(), spec.num_slots
  noise_seed = randomness.fresh_seed() if seed is None else tf.constant([seed, 0], tf.int64)

  # XLA takes 0.01 ms per release, TensorFlow 0.5 ms. XLA lacks an inverse Fourier transform of
  # complex128, which integer noise has.
  compiled = tf.function(jit_compile=spec.noise == mechanism_lib.GAUSSIAN)

  def released(updates, seed):
    """Returns the server's update, and the next round's coordinates."""
    total = audited.sum([
        audited.report(update, state, randomness.fold_in(seed, i))
        for i, update in enumerate(updates)
    ])
    update, following, _ = audited.finish(total, state)
    return update, audited.choose(following).coordinates

  def canary_direction():
    """Returns the direction that most reveals wrong code, in words and as a unit vector [k]."""
    if state.memory:  # Masks depend on releases: coordinates that leave the mask without it.
      base = randomness.fold_in(noise_seed, 2)
      _, following = compiled(released)([tf.zeros([dim])] * num_slots, base)
      leaves = ~np.isin(coordinates, following.numpy())
      if np.any(leaves):
        return 'on coordinates that leave the mask', leaves / np.linalg.norm(leaves)
    return 'on all coordinates', np.full(len(coordinates), len(coordinates) ** -0.5)

  where, direction = canary_direction()

  def score(updates, seed):
    mean, following = released(updates, seed)
    values = tf.gather(mean, coordinates) * spec.clients_per_round
    scores = [tf.reduce_sum(values * direction) / spec.clipping_norm]
    if state.memory:  # How far the next coordinates lean towards the canary.
      on_coordinates = tf.scatter_nd(coordinates[:, np.newaxis], direction, [dim])
      scores.append(tf.reduce_sum(tf.gather(on_coordinates, following) ** 2))
    return tf.stack(scores)

  @compiled  # Its arguments are tensors: it is traced once.
  def scores_batch(update, base, start):
    updates = [update] + [tf.zeros([dim])] * (num_slots - 1)
    return tf.map_fn(
        lambda number: score(updates, randomness.fold_in(base, number)),
        start + tf.range(_RELEASES_AT_ONCE, dtype=tf.int64),
        fn_output_signature=tf.float64,
    )

  def scores(is_present):
    update = np.zeros(dim, np.float32)
    if is_present:  # The clip turns it into C times `direction`.
      update[coordinates] = _LENGTH * spec.clipping_norm / masks.scale(dim) * direction
    update = tf.constant(update)
    base = randomness.fold_in(noise_seed, int(is_present))
    title = f'releases {"with" if is_present else "without"} a canary'
    starts = tqdm.trange(0, num, _RELEASES_AT_ONCE, desc=title, disable=None)
    batches = [scores_batch(update, base, tf.constant(start, tf.int64)) for start in starts]
    return np.concatenate(batches)[:num]

  return where, scores(True), scores(False)
