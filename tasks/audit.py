"""`python -m tasks.audit`: canaries through the real aggregator, and what their scores betray.

Two audits, each beside the claim:

  release  one round, nobody sampled: the canary takes part or not, many times over. Its
           scores are the released sum along it and, where the next round's coordinates
           follow from releases, how far these lean towards it.
  run      a whole run: every canary is a client of the population or not, by a coin of its
           own, and is sampled as the others are. Its score adds up, over the rounds, how
           much likelier the released sum is if it may have taken part.

`tasks/training/canaries.py` has the canaries.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import typing
from typing import Optional

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=g-import-not-at-top
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import auditing
from fedsmp_tff.privacy import sampling as sampling_lib
from fedsmp_tff.privacy import spec as spec_lib
from tasks import errors
from tasks.cli import command
from tasks.cli import options as options_lib

if typing.TYPE_CHECKING:
  import fedsmp_tff

_CLIP = 1.0
# Of the one round: small, for speed; k and d don't enter its guarantee.
_RELEASE_PARTICIPANTS, _RELEASE_VALUES = 4, 8

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
  noise: str = _option(mechanism_lib.GAUSSIAN, 'Kind of noise.', values=list(mechanism_lib.KINDS))
  bits: Optional[int] = _option(None, 'Bits of an encoded value.')
  num_values: int = _option(
      4000, 'k of the run; d is twice as much. With fewer, canaries disturb one another.',
      at_least=2,
  )
  sparsifier: str = _option(
      'randk',
      'How the coordinates of a round are chosen. randk: at random; released: by past releases.',
      values=['randk', 'released'],
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
  # It imports TensorFlow, which --help and wrong flags need not wait for.
  from fedsmp_tff import runtime

  with runtime.local_context():
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


def _aggregator(
    spec: spec_lib.PrivacySpec, options: Options, seed: Optional[int] = None
) -> fedsmp_tff.FedSmpFactory:
  from tasks.training import canaries

  return canaries.aggregator(spec, options.sparsifier, seed)


def _release(spec: spec_lib.PrivacySpec, options: Options) -> bool:
  """Audits one release; whether the claim is refuted."""
  one = dataclasses.replace(
      spec,
      population=_RELEASE_PARTICIPANTS,
      clients_per_round=_RELEASE_PARTICIPANTS,
      rounds=1,
      sampling=sampling_lib.FIXED,
      num_slots=None,
      min_reports=None,
      num_values=_RELEASE_VALUES,
  )
  # A client added or removed; with nobody sampled that is the sum's own guarantee.
  claim = dataclasses.replace(one, sampling=sampling_lib.POISSON).epsilon()
  from tasks.training import canaries

  audited = canaries.AuditedRound(one, _aggregator(one, options), options.seed)
  where, direction = audited.direction()
  present, absent = (
      audited.scores(direction, canary, options.releases) for canary in (True, False)
  )
  audit = auditing.epsilon_of_one_release(present, absent, spec.delta, options.confidence)
  return _say(
      'one release, nobody sampled, one client added or removed', claim,
      audit._replace(method=f'canary {where}; {audit.method}'), spec, options,
  )


def _run(spec: spec_lib.PrivacySpec, options: Options) -> bool:
  """Audits a whole run; whether the claim is refuted."""
  from tasks.training import canaries

  scores, included = canaries.scores_of_run(
      spec, _aggregator(spec, options, options.seed), options.canaries, options.seed
  )
  audit = auditing.epsilon_of_one_run(scores, included, spec, options.confidence)
  return _say(
      f'a run of {spec.rounds} rounds, {spec.sampling} sampling of {spec.clients_per_round}'
      f' in {spec.population:,} clients',
      spec.epsilon(), audit, spec, options,
  )


def _say(
    what: str, claim: float, audit: auditing.Audit, spec: spec_lib.PrivacySpec, options: Options
) -> bool:
  refuted = audit.epsilon > claim
  share = f' ({100 * audit.epsilon / claim:.0f} % of the claim)' if claim else ''
  print(
      f'{what}\n  claimed  epsilon = {claim:.4g} at delta = {spec.delta:.3g}, sigma ='
      f' {spec.noise_multiplier:g}, {spec.noise} noise;'
      f' {options.sparsifier} coordinates\n'
      f'  audited  epsilon > {audit.epsilon:.4g}{share}, confidence'
      f' {options.confidence:g}: {audit.method}\n'
      f'  {"CLAIM REFUTED" if refuted else "the claim stands"}',
      flush=True,
  )
  return refuted


if __name__ == '__main__':
  command.end(main(sys.argv))
