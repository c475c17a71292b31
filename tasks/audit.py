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
from typing import Optional

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=g-import-not-at-top
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

import fedsmp_tff
from fedsmp_tff import randomness
from fedsmp_tff import runtime
from fedsmp_tff.mechanism import noise as noise_lib
from fedsmp_tff.privacy import auditing
from fedsmp_tff.privacy import sampling as sampling_lib
from fedsmp_tff.privacy import spec as spec_lib
from tasks import errors
from tasks.config import command
from tasks.config import options as options_lib

_CLIP = 1.0
# A canary before the scale and the clip, in units of C: clipped, whatever the scale.
_LENGTH = 1e3
# Of the one round: small, for speed; k and d don't enter its guarantee.
_RELEASE_PARTICIPANTS, _RELEASE_VALUES = 4, 8
_RELEASES_AT_ONCE = 1000
_RATIO = 0.5

_option = options_lib.option


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command."""

  part: list[str] = _option(
      ['release', 'run'], 'What to audit; may be given twice.',
      values=['release', 'run'], repeated=True,
  )
  noise_multiplier: float = _option(1.4, 'sigma.', at_least=0)
  clients_per_round: int = _option(100, 'r, clients in a round.')
  population: int = _option(6000, 'n, clients in all, canaries included.')
  rounds: int = _option(180, 'T, rounds of the run.')
  delta: Optional[float] = _option(None, 'delta (default: n^-1.1).')
  sampling: str = _option(
      sampling_lib.POISSON, 'How clients are sampled.',
      values=[sampling_lib.POISSON, sampling_lib.FIXED],
  )
  noise: str = _option(noise_lib.GAUSSIAN, 'Kind of noise.', values=list(noise_lib.KINDS))
  bits: Optional[int] = _option(None, 'Bits of an encoded value.')
  num_values: int = _option(
      4000, 'k of the run; d is twice as much. With fewer, canaries disturb one another.',
      at_least=2,
  )
  releases: int = _option(
      400_000, 'Releases with the canary, and as many without.', at_least=100
  )
  canaries: int = _option(1000, 'Canaries of the run, of which half take part.', at_least=10)
  confidence: float = _option(
      0.95, 'Confidence level of the lower bounds.', at_least=0.5, at_most=0.9999
  )
  seed: Optional[int] = _option(
      None, 'Makes canaries, sampling and (release) noise reproducible (default: fresh).',
      at_least=0,
  )


_COMMAND = command.Command(
    'tasks.audit',
    (
        'usage: python -m tasks.audit [flags]',
        '',
        'Prints lower confidence bounds on epsilon, from canaries sent through the aggregator,',
        'next to the claim. Exit status 1 if a bound is above the claim.',
    ),
    (Options,),
)


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status: 1 if a claim is refuted."""
  return _COMMAND.main(argv, _main)


def _main(options: Options) -> int:
  spec = _spec(options)
  with runtime.local_context() as context:
    with tff.framework.get_context_stack().install(context):
      refuted = [
          audit(spec, options)
          for part, audit in (('release', _release), ('run', _run))
          if part in options.part
      ]
  return int(any(refuted))


def _spec(options: Options) -> spec_lib.PrivacySpec:
  if not 2 * options.canaries <= options.population:
    raise errors.InputError(
        f'--canaries={options.canaries} is more than half of --population={options.population};'
        ' lower it.'
    )
  try:
    return spec_lib.PrivacySpec(
        population=options.population,
        clients_per_round=options.clients_per_round,
        rounds=options.rounds,
        noise_multiplier=options.noise_multiplier,
        clipping_norm=_CLIP,
        delta=(
            spec_lib.default_delta(options.population) if options.delta is None else options.delta
        ),
        sampling=options.sampling,
        noise=options.noise,
        num_values=options.num_values,
        bits=options.bits,
    )
  except ValueError as error:
    raise errors.as_flags(error, options_lib.options_of(Options)) from None


def _release(spec: spec_lib.PrivacySpec, options: Options) -> bool:
  """Audits one release; whether the claim is refuted."""
  one = dataclasses.replace(
      spec,
      population=_RELEASE_PARTICIPANTS,
      clients_per_round=_RELEASE_PARTICIPANTS,
      rounds=1,
      sampling=sampling_lib.FIXED,
      seats=None,
      min_reporting=None,
      num_values=_RELEASE_VALUES,
  )
  # A client added or removed; with nobody sampled that is the sum's own guarantee.
  claim = dataclasses.replace(one, sampling=sampling_lib.POISSON).epsilon()
  present, absent = (
      scores_of_releases(one, canary, options.releases, options.seed)
      for canary in (True, False)
  )
  audit = auditing.epsilon_of_one_release(
      present, absent, spec.delta, options.confidence
  )
  return _say(
      'one release, nobody sampled, one client added or removed', claim, audit, spec, options
  )


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


def _run(spec: spec_lib.PrivacySpec, options: Options) -> bool:
  """Audits a whole run; whether the claim is refuted."""
  scores, included = scores_of_run(spec, options.canaries, options.seed)
  audit = auditing.epsilon_of_one_run(scores, included, spec, options.confidence)
  return _say(
      f'a run of {spec.rounds} rounds, {spec.sampling} sampling of {spec.clients_per_round}'
      f' in {spec.population:,} clients',
      spec.epsilon(), audit, spec, options,
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
  values = spec.num_values
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
    what: str, claim: float, audit: auditing.Audit, spec: spec_lib.PrivacySpec, options: Options
) -> bool:
  refuted = audit.epsilon > claim
  share = f' ({100 * audit.epsilon / claim:.0f} % of the claim)' if claim else ''
  print(
      f'{what}\n  claimed  epsilon = {claim:.4g} at delta = {spec.delta:.3g}, sigma ='
      f' {spec.noise_multiplier:g}, {spec.noise} noise\n'
      f'  audited  epsilon > {audit.epsilon:.4g}{share}, confidence'
      f' {options.confidence:g}: {audit.how}\n'
      f'  {"CLAIM REFUTED" if refuted else "the claim stands"}',
      flush=True,
  )
  return refuted


if __name__ == '__main__':
  sys.exit(main(sys.argv))
