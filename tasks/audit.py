"""`python -m tasks.audit`: a lower bound on epsilon, from a canary sent through the aggregator."""

import dataclasses
import sys
from typing import Optional

from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import auditing
from fedsmp_tff.privacy import spec as spec_lib
from tasks import errors
from tasks.cli import command
from tasks.cli import options as options_lib

# Small, for speed; the guarantee does not depend on k and d.
_PARTICIPANTS, _VALUES = 4, 8
# n of Fashion-MNIST, for the default of delta.
_POPULATION = 6000

_option = options_lib.option


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command."""

  noise_multiplier: float = _option(1.4, 'sigma.', at_least=0)
  delta: float = _option(
      spec_lib.default_delta(_POPULATION), f'delta (default: n^-1.1 for n = {_POPULATION}).'
  )
  noise: str = _option(mechanism_lib.GAUSSIAN, 'Kind of noise.', values=list(mechanism_lib.KINDS))
  sparsifier: str = _option(
      'randk', 'Choice of coordinates. randk: random; released: by past releases.',
      values=['randk', 'released'],
  )
  releases: int = _option(400_000, 'Number of releases with the canary and without.', at_least=100)
  confidence: float = _option(
      0.95, 'Confidence level of the lower bound.', at_least=0.5, at_most=0.9999
  )
  seed: Optional[int] = _option(
      None, 'Seed of coordinates and noise (default: fresh randomness).',
      at_least=0, at_most=2**63 - 1,
  )


def _main(options: Options) -> int:
  """Returns the exit status: 1 if the reported epsilon is refuted."""
  with errors.naming_flags(options_lib.options_of(Options)):
    # If all clients are sampled, the guarantee is the guarantee of the sum itself.
    spec = spec_lib.PrivacySpec(
        population=_PARTICIPANTS, clients_per_round=_PARTICIPANTS, rounds=1,
        noise_multiplier=options.noise_multiplier, clipping_norm=1.0, delta=options.delta,
        noise=options.noise, num_values=_VALUES,
    )
    spec.mechanism().encoding(_VALUES)  # Raises if it would round the noise to zero.
  # These modules import TensorFlow, which --help and wrong flags need not wait for.
  from fedsmp_tff import runtime
  from tasks.training import canaries

  with runtime.local_context():
    where, present, absent = canaries.scores_of_releases(
        spec, options.sparsifier, options.releases, options.seed
    )
  claim = spec.epsilon()
  audit = auditing.epsilon_of_one_release(present, absent, spec.delta, options.confidence)
  refuted = audit.epsilon > claim
  percentage = f' ({100 * audit.epsilon / claim:.0f} % of it)' if claim else ''
  print(
      'one release without sampling, one client added or removed\n'
      f'  reported  epsilon = {claim:.4g} at delta = {spec.delta:.3g}, sigma ='
      f' {spec.noise_multiplier:g}, {spec.noise} noise; {options.sparsifier} coordinates\n'
      f'  audited   epsilon > {audit.epsilon:.4g}{percentage}, confidence'
      f' {options.confidence:g}: canary {where}; {audit.method}\n'
      f'  {"REPORTED EPSILON REFUTED" if refuted else "not refuted"}',
      flush=True,
  )
  return int(refuted)


main = command.Command(
    'tasks.audit',
    (
        'usage: python -m tasks.audit [flags]',
        '',
        'Prints a lower confidence bound on epsilon, from a canary sent through the aggregator,',
        'next to the reported epsilon. Exit status 1 if the bound exceeds the reported epsilon.',
    ),
    _main,
    (Options,),
).main


if __name__ == '__main__':
  command.end(main(sys.argv))
