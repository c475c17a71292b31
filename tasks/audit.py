"""`python -m tasks.audit`: canaries through the real aggregator, lower bounds from their scores.

Two audits, each next to the claim:

  release  one round without sampling: the canary takes part or not, many times over. Its
           scores are the released sum along it and, if the next round's coordinates follow
           from releases, how far these lean towards it.
  run      a whole run: a coin per canary decides whether it is a client of the population,
           sampled like the others. Its score adds up, over the rounds, the log-likelihood
           ratio of the released sum with and without it.

`tasks/training/canaries.py` has the canaries.
"""

import dataclasses
import os
import sys
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

_CLIP = 1.0
# One release: small, for speed; k and d do not enter its guarantee.
_RELEASE_PARTICIPANTS, _RELEASE_VALUES = 4, 8

_option = options_lib.option


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command."""

  part: list[str] = _option(
      ['release', 'run'], 'Audit; may be given twice.', values=['release', 'run'], repeated=True
  )
  noise_multiplier: float = _option(1.4, 'sigma.', at_least=0)
  clients_per_round: int = _option(100, 'r, clients per round.')
  population: int = _option(6000, 'n, clients in all, canaries included.')
  rounds: int = _option(180, 'T, rounds of the run.')
  delta: Optional[float] = _option(None, 'delta (default: n^-1.1).')
  sampling: str = _option(
      sampling_lib.POISSON, 'Sampling of clients.',
      values=[sampling_lib.POISSON, sampling_lib.FIXED],
  )
  noise: str = _option(mechanism_lib.GAUSSIAN, 'Kind of noise.', values=list(mechanism_lib.KINDS))
  num_values: int = _option(
      4000, 'k of the run; d is twice as large. With fewer values, canaries disturb one another.',
      at_least=2,
  )
  sparsifier: str = _option(
      'randk', 'Choice of coordinates. randk: random; released: by past releases.',
      values=['randk', 'released'],
  )
  releases: int = _option(400_000, 'Releases with a canary, and without one.', at_least=100)
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

  audits = {'release': _release, 'run': _run}
  with runtime.local_context():
    refuted = [audits[part](spec, options) for part in audits if part in options.part]
  return int(any(refuted))


def _spec(options: Options) -> spec_lib.PrivacySpec:
  n = options.population
  if 2 * options.canaries > n:
    raise errors.InputError(
        f'--canaries={options.canaries} is more than half of --population={n}; lower it.'
    )
  try:
    return spec_lib.PrivacySpec(
        population=n, clients_per_round=options.clients_per_round, rounds=options.rounds,
        noise_multiplier=options.noise_multiplier, clipping_norm=_CLIP,
        delta=spec_lib.default_delta(n) if options.delta is None else options.delta,
        sampling=options.sampling, noise=options.noise, num_values=options.num_values,
    )
  except ValueError as error:
    raise errors.as_flags(error, options_lib.options_of(Options)) from None


def _release(spec: spec_lib.PrivacySpec, options: Options) -> bool:
  """Audits one release; returns whether the claim is refuted."""
  from tasks.training import canaries

  release = dataclasses.replace(
      spec, population=_RELEASE_PARTICIPANTS, clients_per_round=_RELEASE_PARTICIPANTS, rounds=1,
      sampling=sampling_lib.FIXED, num_slots=None, min_reports=None, num_values=_RELEASE_VALUES,
  )
  # Add or remove one client: if all clients are sampled, that is the guarantee of the sum itself.
  claim = dataclasses.replace(release, sampling=sampling_lib.POISSON).epsilon()
  where, present, absent = canaries.scores_of_releases(
      release, options.sparsifier, options.releases, options.seed
  )
  audit = auditing.epsilon_of_one_release(present, absent, spec.delta, options.confidence)
  audit = audit._replace(method=f'canary {where}; {audit.method}')
  return _is_refuted(
      'one release, nobody sampled, one client added or removed', claim, audit, spec, options
  )


def _run(spec: spec_lib.PrivacySpec, options: Options) -> bool:
  """Audits a whole run; returns whether the claim is refuted."""
  from tasks.training import canaries

  scores, included = canaries.scores_of_run(
      spec, options.sparsifier, options.canaries, options.seed
  )
  audit = auditing.epsilon_of_one_run(scores, included, spec, options.confidence)
  title = (
      f'a run of {spec.rounds} rounds, {spec.sampling} sampling of {spec.clients_per_round}'
      f' in {spec.population:,} clients'
  )
  return _is_refuted(title, spec.epsilon(), audit, spec, options)


def _is_refuted(
    title: str, claim: float, audit: auditing.Audit, spec: spec_lib.PrivacySpec, options: Options
) -> bool:
  """Prints a claim and its audit; returns whether the claim is refuted."""
  refuted = audit.epsilon > claim
  percentage = f' ({100 * audit.epsilon / claim:.0f} % of the claim)' if claim else ''
  print(
      f'{title}\n  claimed  epsilon = {claim:.4g} at delta = {spec.delta:.3g}, sigma ='
      f' {spec.noise_multiplier:g}, {spec.noise} noise; {options.sparsifier} coordinates\n'
      f'  audited  epsilon > {audit.epsilon:.4g}{percentage}, confidence'
      f' {options.confidence:g}: {audit.method}\n'
      f'  {"CLAIM REFUTED" if refuted else "the claim stands"}',
      flush=True,
  )
  return refuted


if __name__ == '__main__':
  command.end(main(sys.argv))
