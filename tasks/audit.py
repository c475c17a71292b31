"""`python -m tasks.audit`: canaries through the real aggregator, and what their scores betray.

Two audits, each beside the claim:

  release  one round, nobody sampled: the canary takes part or not, many times over. Its
           scores are the released sum along it and, where the next round's coordinates,
           factors or guess follow from releases, how far these lean towards it.
  run      a whole run: every canary is a client of the population or not, by a coin of its
           own, and is sampled as the others are. Its score adds up, over the rounds, how
           much likelier the released sum is if it may have taken part.

Canaries know what clients and server have in common: the round's coordinates, factors and
guess. A canary's update makes up for all three and for the d/k scale, so that after the clip
it lies along its direction with norm C. What is scored is the update that the server releases,
with the guess taken off and the factors put on again, which anybody can do.

Where releases make factors or a guess, `release` lets a few rounds pass first, which are the
same with the canary and without it: a round's guarantee is valid whatever was released before it.
In `run` the aggregator's own TFF process runs; in `release`, for speed, its TensorFlow functions
do, in one graph.
"""

from collections.abc import Sequence
import dataclasses
import functools
import os
import sys
from typing import Any, Optional

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=g-import-not-at-top
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

import fedsmp_tff
from fedsmp_tff import flattening
from fedsmp_tff import randomness
from fedsmp_tff import runtime
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import noise as noise_lib
from fedsmp_tff.mechanism import state as state_lib
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
# Rounds before the one that is audited, where releases make factors or a guess: in the first one
# all factors are 1 and the guess is 0.
_ROUNDS_BEFORE = 20

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
  sparsifier: str = _option(
      'randk',
      'How the coordinates of a round are chosen. randk: at random; released: by past releases;'
      ' hybrid: by past releases and a public update, for which random numbers stand here: any'
      ' function of public data has the same guarantee.',
      values=['randk', 'released', 'hybrid'],
  )
  precondition: Optional[float] = _option(
      None, "Exponent of tasks.run's --precondition (default: off).", above=0, at_most=1
  )
  predict: Optional[float] = _option(
      None, "Share of tasks.run's --predict (default: off).", above=0, at_most=1
  )
  releases: int = _option(
      400_000, 'Releases with a canary, and as many without.', at_least=100
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


def _factory(
    spec: spec_lib.PrivacySpec, options: Options, seed: Optional[int] = None
) -> fedsmp_tff.FedSmpFactory:
  """The aggregator that is audited; `seed` is the masks'."""
  post_processing = []
  if options.precondition is not None:
    post_processing.append(fedsmp_tff.Preconditioner(exponent=options.precondition))
  if options.predict is not None:
    post_processing.append(fedsmp_tff.Prediction(share=options.predict))
  return fedsmp_tff.FedSmpFactory(
      _SPARSIFIERS[options.sparsifier](num=spec.num_values), spec.mechanism(),
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
  """

  coordinates: np.ndarray
  factors: np.ndarray
  guess: np.ndarray
  dim: int
  scale: float

  @classmethod
  def of(cls, state: state_lib.FedSmpState, sparsifier: sparsifiers.Sparsifier, dim: int):
    choice = tf.nest.map_structure(np.asarray, state.choice)
    num = len(choice.coordinates)
    return cls(
        choice.coordinates,
        choice.factors.astype(np.float64) if choice.has_factors else np.ones(num),
        choice.guess.astype(np.float64) if choice.has_guess else np.zeros(num),
        dim, sparsifier.scale(dim),
    )

  def update(self, direction: np.ndarray) -> np.ndarray:
    """The update, float32[d], of which clients make `direction`, a unit vector [k], times C."""
    shaped = self.guess + _LENGTH * _CLIP * direction / self.factors
    update = np.zeros(self.dim, np.float32)
    update[self.coordinates] = shaped / self.scale
    return update

  def shaped(self, mean: Any) -> Any:
    """The mean [d] that was released as clients' values are after guess and factors, [k]."""
    values = tf.gather(mean, self.coordinates) if tf.is_tensor(mean) else mean[self.coordinates]
    return (values - self.guess) * self.factors

  def directions(self, following: np.ndarray) -> dict[str, np.ndarray]:
    """Where wrong code would show most, as unit vectors by name.

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
  audited = _AuditedRound(one, options)
  directions = audited.directions()
  # All bounds are right at once with the confidence that is asked for.
  confidence = 1 - (1 - options.confidence) / len(directions)
  audits = []
  for name, direction in directions.items():
    present, absent = (
        audited.scores(direction, canary, options.releases) for canary in (True, False)
    )
    audit = auditing.epsilon_of_one_release(present, absent, spec.delta, confidence)
    audits.append(audit._replace(how=f'canary {name}; {audit.how}'))
  return _say(
      'one release, nobody sampled, one client added or removed', claim,
      max(audits, key=lambda audit: audit.epsilon), spec, options,
  )


class _AuditedRound:
  """One round of an aggregator, over and over from one state.

  Attributes:
    choice: What is public of the round before it begins.
  """

  def __init__(self, spec: spec_lib.PrivacySpec, options: Options):
    self._spec = spec
    dim = round(_RELEASE_VALUES / _RATIO)
    factory = _factory(spec, options)
    self._round = factory.round([(dim,)])
    seed = options.seed
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
    self.choice = _Choice.of(state, factory.sparsifier, dim)

  def _next(
      self, state: state_lib.FedSmpState, updates: Sequence[tf.Tensor], seed: tf.Tensor
  ) -> tuple[tf.Tensor, state_lib.FedSmpState]:
    """The update that the server makes of clients', and the state with the next choice."""
    reports = [
        self._round.report(update, state, randomness.fold_in(seed, i))
        for i, update in enumerate(updates)
    ]
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
    updates = [update] + [tf.zeros([self.choice.dim])] * (self._spec.seats - 1)

    def one(number):
      mean, state = self._next(self._state, updates, randomness.fold_in(base, number))
      released = self.choice.shaped(mean) * self._spec.clients_per_round
      along = [tf.reduce_sum(released * direction) / _CLIP]
      if self._state.memory:
        along += self._leanings(state.choice, direction)
      return tf.stack(along)

    numbers = start + tf.range(_RELEASES_AT_ONCE, dtype=tf.int64)
    return tf.map_fn(one, numbers, fn_output_signature=tf.float64)

  def _leanings(self, choice: state_lib.Choice, direction: tf.Tensor) -> list[tf.Tensor]:
    """How far the next round's coordinates, factors and guess lean towards a direction."""
    where = self.choice.coordinates[:, np.newaxis]
    there = tf.gather(tf.scatter_nd(where, direction, [self.choice.dim]), choice.coordinates)
    found = [tf.reduce_sum(there**2)]
    if choice.has_factors:  # The larger the energy, the smaller is the factor.
      found.append(-tf.reduce_sum(there**2 * tf.math.log(tf.cast(choice.factors, tf.float64))))
    if choice.has_guess:
      found.append(tf.reduce_sum(there * tf.cast(choice.guess, tf.float64)))
    return found


def _run(spec: spec_lib.PrivacySpec, options: Options) -> bool:
  """Audits a whole run; whether the claim is refuted."""
  scores, included = _scores_of_run(spec, options)
  audit = auditing.epsilon_of_one_run(scores, included, spec, options.confidence)
  return _say(
      f'a run of {spec.rounds} rounds, {spec.sampling} sampling of {spec.clients_per_round}'
      f' in {spec.population:,} clients',
      spec.epsilon(), audit, spec, options,
  )


def _scores_of_run(
    spec: spec_lib.PrivacySpec, options: Options
) -> tuple[np.ndarray, np.ndarray]:
  """Scores of a run's canaries, the first of the population, and which of them were in it.

  Returns:
    float[canaries] and bool[canaries].
  """
  rng = np.random.default_rng(options.seed)
  num = options.canaries
  included = rng.random(num) < 0.5
  values = spec.num_values
  dim = round(values / _RATIO)
  factory = _factory(spec, options, options.seed)
  process = factory.create(tff.TensorType(np.float32, [dim]))
  sampler = spec.sampler(None if options.seed is None else int(rng.integers(2**63)))
  rate = spec.clients_per_round / spec.population
  scores = np.zeros(num)
  nothing = np.zeros(dim, np.float32)
  state = process.initialize()
  for t in tqdm.trange(spec.rounds, desc='rounds with canaries', disable=None):
    directions = rng.standard_normal((num, values)).astype(np.float32)
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    choice = _Choice.of(state, factory.sparsifier, dim)
    cohort = [
        choice.update(directions[i]) if 0 <= i < num and included[i] else nothing
        for i in sampler.sample(t)
    ]
    result = process.next(state, cohort)
    state = result.state
    released = choice.shaped(np.asarray(result.result)) * spec.clients_per_round
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
  shaping = ''.join(
      f', {name} {value:g}'
      for name, value in (('precondition', options.precondition), ('predict', options.predict))
      if value is not None
  )
  print(
      f'{what}\n  claimed  epsilon = {claim:.4g} at delta = {spec.delta:.3g}, sigma ='
      f' {spec.noise_multiplier:g}, {spec.noise} noise;'
      f' {options.sparsifier} coordinates{shaping}\n'
      f'  audited  epsilon > {audit.epsilon:.4g}{share}, confidence'
      f' {options.confidence:g}: {audit.how}\n'
      f'  {"CLAIM REFUTED" if refuted else "the claim stands"}',
      flush=True,
  )
  return refuted


if __name__ == '__main__':
  sys.exit(main(sys.argv))
