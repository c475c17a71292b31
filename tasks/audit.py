"""`python -m tasks.audit`: canaries through the real aggregator, and what their scores betray.

Two audits, each beside the claim:

  release  one round, nobody sampled: the canary takes part or not, many times over. Its
           score is the released sum along it.
  run      a whole run: every canary is a client of the population or not, by a coin of its
           own, and is sampled as the others are. Its score adds up, over the rounds, how
           much likelier the released sum is if it may have taken part.

A canary's update lies on the round's mask, which is public, so all of it survives: after the
d/k scale and the clip its norm is C. In `run` the aggregator's own TFF process runs; in
`release`, for speed, its TensorFlow functions do, in one graph.
"""

import dataclasses
import os
import sys

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=g-import-not-at-top
from absl import flags
from absl import logging
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

import fedsmp_tff
from fedsmp_tff import randomness
from fedsmp_tff import runtime
from fedsmp_tff.mechanism import noise as noise_lib
from fedsmp_tff.privacy import auditing
from fedsmp_tff.privacy import sampling
from fedsmp_tff.privacy import spec as spec_lib
from tasks import errors
from tasks.config import command

_PROGRAM = 'python -m tasks.audit'
_FLAGS = command.OwnFlags(_PROGRAM)
_CLIP = 1.0
# A canary before the scale and the clip, in units of C: clipped, whatever the scale.
_LENGTH = 1e3
# Of the one round: small, for speed; k and d don't enter its guarantee.
_RELEASE_PARTICIPANTS, _RELEASE_VALUES = 4, 8
_RELEASES_AT_ONCE = 1000
_RATIO = 0.5


_PART = _FLAGS.define(
    flags.DEFINE_multi_enum, 'part', ['release', 'run'],
    'What to audit; may be repeated.', enum_values=['release', 'run'],
)
_SIGMA = _FLAGS.define(flags.DEFINE_float, 'noise_multiplier', 1.4, 'sigma.', lower_bound=0.0)
_R = _FLAGS.define(flags.DEFINE_integer, 'clients_per_round', 100, 'r, clients of a round.')
_N = _FLAGS.define(flags.DEFINE_integer, 'population', 6000, 'n, canaries among them.')
_T = _FLAGS.define(flags.DEFINE_integer, 'rounds', 180, 'T, rounds of the run.')
_DELTA = _FLAGS.define(flags.DEFINE_float, 'delta', None, 'delta (default: n^-1.1).')
_SAMPLING = _FLAGS.define(
    flags.DEFINE_enum, 'sampling', sampling.POISSON, 'How clients are sampled.',
    enum_values=[sampling.POISSON, sampling.FIXED],
)
_NOISE = _FLAGS.define(
    flags.DEFINE_enum, 'noise', noise_lib.GAUSSIAN, 'Kind of noise.',
    enum_values=list(noise_lib.KINDS),
)
_BITS = _FLAGS.define(flags.DEFINE_integer, 'bits', None, 'Bits of an encoded value.')
_VALUES = _FLAGS.define(
    flags.DEFINE_integer, 'num_values', 4000,
    'k of the run; d is twice as much. Fewer, and canaries disturb one another.',
    lower_bound=2,
)
_RELEASES = _FLAGS.define(
    flags.DEFINE_integer, 'releases', 400_000,
    'Releases with the canary, and as many without.', lower_bound=100,
)
_CANARIES = _FLAGS.define(
    flags.DEFINE_integer, 'canaries', 1000,
    'Canaries of the run, of which half take part.', lower_bound=10,
)
_CONFIDENCE = _FLAGS.define(
    flags.DEFINE_float, 'confidence', 0.95, 'Of the lower bounds.',
    lower_bound=0.5, upper_bound=0.9999,
)
_SEED = _FLAGS.define(
    flags.DEFINE_integer, 'seed', None,
    'Makes canaries, sampling and (release) noise reproducible (default: fresh).',
    lower_bound=0,
)

_USAGE = (
    f'usage: {_PROGRAM} [flags]',
    '',
    'Lower confidence bounds on epsilon, from canaries sent through the aggregator, beside',
    'the claim. Exit status 1 if a bound is above the claim.',
    '',
)


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status: 1 if a claim is refuted."""
  logging.set_verbosity(logging.ERROR)
  try:
    rest = _FLAGS.parse(argv)
    if rest is None:
      print(_FLAGS.help_text(_USAGE))
      return 0
    _FLAGS.refuse(rest)
    spec = _spec()
  except errors.InputError as error:
    print(f'tasks.audit: {error}', file=sys.stderr)
    return 2
  with runtime.local_context() as context:
    with tff.framework.get_context_stack().install(context):
      refuted = [
          audit(spec)
          for part, audit in (('release', _release), ('run', _run))
          if part in _PART.value
      ]
  return int(any(refuted))


def _spec() -> spec_lib.PrivacySpec:
  if not 2 * _CANARIES.value <= _N.value:
    raise errors.InputError(
        f'--canaries={_CANARIES.value} is more than half of --population={_N.value};'
        ' lower it.'
    )
  try:
    return spec_lib.PrivacySpec(
        population=_N.value,
        clients_per_round=_R.value,
        rounds=_T.value,
        noise_multiplier=_SIGMA.value,
        clipping_norm=_CLIP,
        delta=(
            spec_lib.default_delta(_N.value) if _DELTA.value is None else _DELTA.value
        ),
        sampling=_SAMPLING.value,
        noise=_NOISE.value,
        num_values=_VALUES.value,
        bits=_BITS.value,
    )
  except ValueError as error:
    raise errors.as_flags(error, _FLAGS.names) from None


def _release(spec: spec_lib.PrivacySpec) -> bool:
  """Audits one release; whether the claim is refuted."""
  one = dataclasses.replace(
      spec,
      population=_RELEASE_PARTICIPANTS,
      clients_per_round=_RELEASE_PARTICIPANTS,
      rounds=1,
      sampling=sampling.FIXED,
      seats=None,
      min_reporting=None,
      num_values=_RELEASE_VALUES,
  )
  # A client added or removed; with nobody sampled that is the sum's own guarantee.
  claim = dataclasses.replace(one, sampling=sampling.POISSON).epsilon()
  present, absent = (
      scores_of_releases(one, canary, _RELEASES.value, _SEED.value)
      for canary in (True, False)
  )
  audit = auditing.epsilon_of_one_release(
      present, absent, spec.delta, _CONFIDENCE.value
  )
  return _say('one release, nobody sampled, one client added or removed', claim, audit, spec)


def scores_of_releases(
    spec: spec_lib.PrivacySpec, canary: bool, num: int, seed: int | None
) -> np.ndarray:
  """Scores of independent releases, float[num].

  Args:
    spec: Of the release.
    canary: Whether the canary is one of the participants; else it sends zero.
    num: How many.
    seed: Of the noise; None: fresh.
  """
  values = _RELEASE_VALUES
  dim = round(values / _RATIO)
  factory = fedsmp_tff.FedSmpFactory(fedsmp_tff.RandK(num=values), spec.mechanism())
  round_ = factory.round([(dim,)])
  state = round_.choose(round_.initial_state(seed=None))
  direction = np.ones(values) / np.sqrt(values)
  update = _canary_update(direction, state.choice.coordinates.numpy(), dim)
  updates = tf.stack(
      [update if canary else tf.zeros([dim])] + [tf.zeros([dim])] * (spec.seats - 1)
  )
  base = randomness.fresh_seed() if seed is None else tf.constant([seed, 0], tf.int64)
  base = randomness.fold_in(base, int(canary))

  @tf.function
  def scores(start):
    def one(number):
      reports = [
          round_.report(
              updates[i], state, randomness.fold_in(randomness.fold_in(base, number), i)
          )
          for i in range(spec.seats)
      ]
      release, _, _ = round_.release(round_.sum(reports), state)
      released = release.values * spec.clients_per_round
      return tf.reduce_sum(released * direction) / _CLIP

    return tf.map_fn(
        one, start + tf.range(_RELEASES_AT_ONCE, dtype=tf.int64),
        fn_output_signature=tf.float64,
    )

  found = []
  title = f'releases {"with" if canary else "without"} a canary'
  for start in tqdm.trange(0, num, _RELEASES_AT_ONCE, desc=title, disable=None):
    found.append(scores(tf.constant(start, tf.int64)).numpy())
  return np.concatenate(found)[:num]


def _canary_update(
    direction: np.ndarray, coordinates: np.ndarray, dim: int
) -> np.ndarray:
  """The update, float32[dim], of which clients make `direction` times C on the mask."""
  update = np.zeros(dim, np.float32)
  update[coordinates] = _LENGTH * _CLIP * direction
  return update


def _run(spec: spec_lib.PrivacySpec) -> bool:
  """Audits a whole run; whether the claim is refuted."""
  scores, included = scores_of_run(spec, _CANARIES.value, _SEED.value)
  audit = auditing.epsilon_of_one_run(scores, included, spec, _CONFIDENCE.value)
  return _say(
      f'a run of {spec.rounds} rounds, {spec.sampling} sampling of {spec.clients_per_round}'
      f' in {spec.population:,} clients',
      spec.epsilon(), audit, spec,
  )


def scores_of_run(
    spec: spec_lib.PrivacySpec, num_canaries: int, seed: int | None
) -> tuple[np.ndarray, np.ndarray]:
  """Scores of a run's canaries, float[num_canaries], and which of them were in it.

  Args:
    spec: Of the run.
    num_canaries: The first of the population.
    seed: Of canaries and sampling; None: fresh.
  """
  rng = np.random.default_rng(seed)
  included = rng.random(num_canaries) < 0.5
  values = _VALUES.value
  dim = round(values / _RATIO)
  process = fedsmp_tff.FedSmpFactory(
      fedsmp_tff.RandK(num=values), spec.mechanism()
  ).create(tff.TensorType(np.float32, [dim]))
  sampler = spec.sampler(None if seed is None else int(rng.integers(2**63)))
  rate = spec.clients_per_round / spec.population
  scores = np.zeros(num_canaries)
  nothing = np.zeros(dim, np.float32)
  state = process.initialize()
  for t in tqdm.trange(spec.rounds, desc='rounds with canaries', disable=None):
    directions = rng.standard_normal((num_canaries, values)).astype(np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    coordinates = np.asarray(state.choice.coordinates)
    cohort = [
        _canary_update(directions[i], coordinates, dim)
        if 0 <= i < num_canaries and included[i]
        else nothing
        for i in sampler.sample(t)
    ]
    result = process.next(state, cohort)
    state = result.state
    released = np.asarray(result.result)[coordinates] * spec.clients_per_round
    along = directions @ released / _CLIP
    scores += np.log1p(
        rate * np.expm1((2 * along - 1) / (2 * spec.noise_multiplier**2))
    )
  return scores, included


def _say(
    what: str, claim: float, audit: auditing.Audit, spec: spec_lib.PrivacySpec
) -> bool:
  refuted = audit.epsilon > claim
  share = f' ({100 * audit.epsilon / claim:.0f} % of the claim)' if claim else ''
  print(
      f'{what}\n  claimed  epsilon = {claim:.4g} at delta = {spec.delta:.3g}, sigma ='
      f' {spec.noise_multiplier:g}, {spec.noise} noise\n'
      f'  audited  epsilon > {audit.epsilon:.4g}{share}, confidence'
      f' {_CONFIDENCE.value:g}: {audit.how}\n'
      f'  {"CLAIM REFUTED" if refuted else "the claim stands"}',
      flush=True,
  )
  return refuted


if __name__ == '__main__':
  sys.exit(main(sys.argv))
