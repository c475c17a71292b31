"""`python -m tasks.account`: epsilon under every accounting side by side, or what reaches one."""

import dataclasses
import functools
import math
import os
import pathlib
import sys
from typing import Optional

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=g-import-not-at-top
from fedsmp_tff.mechanism import noise as noise_lib
from fedsmp_tff.privacy import accounting
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import sampling as sampling_lib
from fedsmp_tff.privacy import spec as spec_lib
from fedsmp_tff.theory import theorem_1
from tasks import errors
from tasks.config import command
from tasks.config import options as options_lib
from tasks.training import run_directory

# What takes numbers; the ledgers have their own.
_option = functools.partial(options_lib.option, excludes=('ledger',))


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command."""

  noise_multiplier: Optional[float] = _option(
      None, 'sigma: the noise of a sum over clients has standard deviation sigma C.'
  )
  clients_per_round: Optional[int] = _option(None, 'r, clients in a round.')
  population: Optional[int] = _option(None, 'n, clients from which they are sampled.')
  rounds: Optional[int] = _option(
      None, 'T, rounds in all.', at_least=1, at_most=spec_lib.MOST_ROUNDS
  )
  delta: Optional[float] = options_lib.option(
      None, 'delta (default: n^-1.1; with --ledger, the smallest of the runs).'
  )
  epsilon: Optional[float] = _option(
      None,
      'A target: with --rounds, finds the sigma that reaches it; with --noise_multiplier, the'
      ' most rounds that stay within it.',
      above=0,
  )
  sampling: str = _option(
      sampling_lib.POISSON,
      'How clients are sampled, and so which figures are valid. poisson: each with probability'
      ' r/n; fixed: exactly r of n, as in Algorithm 1.',
      values=[sampling_lib.POISSON, sampling_lib.FIXED],
  )
  seats: Optional[int] = _option(
      None,
      'With Poisson sampling, the most clients that take part in a round (default: no limit;'
      ' tasks.run has one).',
  )
  noise: str = _option(
      noise_lib.GAUSSIAN, 'Kind of noise; integers need --num_values too.',
      values=list(noise_lib.KINDS),
  )
  num_values: Optional[int] = _option(None, 'With integer noise: k, values of a client.')
  bits: Optional[int] = _option(
      None, 'With integer noise: bits of a value (default: 16).'
  )
  plot: Optional[str] = _option(
      None, 'Writes a picture of epsilon over rounds to this file (PNG).',
      excludes=('epsilon', 'ledger'),
  )
  ledger: list[str] = options_lib.option(
      [],
      'Instead of numbers: prints what runs about the same clients have spent together, from the'
      ' privacy ledgers of their --output_dir; more directories may follow as arguments.',
      repeated=True,
  )


_COMMAND = command.Command(
    'tasks.account',
    (
        'usage: python -m tasks.account --noise_multiplier=1.4 --clients_per_round=100'
        ' --population=6000 --rounds=180',
        '       python -m tasks.account --ledger=RUN_DIR [RUN_DIR...]',
        '',
        'Prints epsilon under every accounting, each with what it assumes, and which of them',
        'are valid for the sampling in use. With --epsilon: what reaches it.',
    ),
    (Options,),
    parse=command.parse_with_arguments,
    failures=(ledger_lib.LedgerError,),
)


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status."""
  return _COMMAND.main(argv, _main)


def _main(options: Options, rest: list[str]) -> None:
  if options.ledger:
    _account_for([*options.ledger, *rest], options.delta)
  else:
    command.refuse(rest, _COMMAND.program)
    _account(options)


def _account(options: Options) -> None:
  needed = ['clients_per_round', 'population']
  if options.epsilon is None:
    needed += ['noise_multiplier', 'rounds']
  elif (options.noise_multiplier is None) == (options.rounds is None):
    raise errors.InputError(
        '--epsilon needs one of --rounds, for which it finds sigma, and'
        ' --noise_multiplier, for which it finds the rounds; set one of them.'
    )
  for name in needed:
    if getattr(options, name) is None:
      raise errors.InputError(
          f'--{name} is not set; set it (see {_COMMAND.program} --help).'
      )
  n, poisson = options.population, options.sampling == sampling_lib.POISSON
  try:
    spec = spec_lib.PrivacySpec(
        population=n,
        clients_per_round=options.clients_per_round,
        rounds=options.rounds or 1,
        noise_multiplier=1.0 if options.noise_multiplier is None else options.noise_multiplier,
        clipping_norm=1.0,
        delta=spec_lib.default_delta(max(n, 1)) if options.delta is None else options.delta,
        sampling=options.sampling,
        seats=n if poisson and options.seats is None else options.seats,
        noise=options.noise,
        num_values=options.num_values,
        bits=options.bits,
    )
    # What a run may claim first, the paper's own figure last.
    lines = [
        _line(name, spec, found)
        for name, how in accounting.ACCOUNTINGS.items()
        if how.any_noise or spec.lattice is None
        if (found := _found(name, how, spec, options)) is not None
    ]
  except ValueError as error:
    raise errors.as_flags(error, options_lib.options_of(Options)) from None
  print(
      f'n = {n:,}, r = {options.clients_per_round:,}, delta = {spec.delta:.4g}'
      f'{_known_text(options)}\n'
  )
  print(*lines, sep='\n')
  if options.epsilon is None:
    print(_theorem_text(spec))
  print(
      '\nAll take for granted: a client is one unit of privacy; who takes part is not'
      ' known to those\nwho see the model; all participants report and add their noise'
      + (
          '; noise and sums are in real arithmetic.'
          if spec.lattice is None
          else '.\nThe figures are of the integers that leave a client.'
      )
  )
  if options.plot is not None:
    _plot(spec, options.plot)


def _account_for(run_dirs: list[str], delta: Optional[float]) -> None:
  """Prints what the runs in these directories have spent together."""
  runs, seen = [], set()
  for run_dir in run_dirs:
    paths = run_directory.ledgers(run_dir)
    if not paths:
      raise errors.InputError(
          f'--ledger={run_dir} holds no privacy ledger; name the --output_dir of a run'
          ' with privacy.'
      )
    if paths[0].resolve() in seen:
      raise errors.InputError(f'--ledger={run_dir} is named twice; name it once.')
    seen.add(paths[0].resolve())
    records = [ledger_lib.read(path) for path in paths]
    told = run_directory.rounds_charged(run_dir)
    if records[-1].rounds_charged < told:
      raise ledger_lib.LedgerError(
          f'{paths[-1]} was cut: it has {records[-1].rounds_charged} rounds where'
          f' {run_dir}/metrics.csv tells of {told}; put it back as it was.'
      )
    runs += zip(paths, records)
  for path, record in runs:
    spec = record.spec
    print(
        f'{pathlib.Path(path)}: {record.rounds_charged} rounds, {spec.sampling} sampling, r ='
        f' {spec.clients_per_round}, n = {spec.population:,}, sigma ='
        f' {spec.noise_multiplier:g}, {spec.noise} noise, delta = {spec.delta:.4g};'
        f' {"SEEDED: simulation" if record.seeded else "fresh noise"}'
    )
  specs = [record.spec for _, record in runs]
  kinds = {spec.sampling for spec in specs}
  if len(kinds) > 1:
    raise errors.InputError(
        'Runs with --sampling=poisson and fixed have guarantees about other neighbours,'
        ' which don\'t add up; name those of one kind.'
    )
  if delta is None:
    delta = min(spec.delta for spec in specs)
  counted = [(record.spec.round, record.rounds_charged) for _, record in runs]
  print(f'\nall together, about the same clients, at delta = {delta:.4g}:')
  try:
    for name, how in accounting.ACCOUNTINGS.items():
      if all(spec.holds(name) for spec in specs):
        epsilon = accounting.epsilon(counted, name, delta)
        print(f'epsilon = {epsilon:.4g}  HOLDS  {name}: {how.title}; {how.assumption}')
  except ValueError as error:
    raise errors.as_flags(error, options_lib.options_of(Options)) from None
  print(
      'Counted: every round that was begun, also if it was lost, and again if it was run'
      ' again with other noise.'
  )


def _known_text(options: Options) -> str:
  parts = []
  if options.noise_multiplier is not None:
    parts.append(f'sigma = {options.noise_multiplier:g}')
  if options.rounds is not None:
    parts.append(f'T = {options.rounds:,}')
  if options.epsilon is not None:
    parts.append(f'epsilon = {options.epsilon:g}')
  return ''.join(f', {part}' for part in parts)


def _found(
    name: str, how: accounting.Accounting, spec: spec_lib.PrivacySpec, options: Options
) -> Optional[str]:
  """What is asked for, under one accounting; None if it has no answer."""
  if options.epsilon is None:
    return f'epsilon = {spec.epsilon(name):.4g}'
  if not how.guarantees:
    return None
  # For the other sampling: what that would take, with as many clients.
  if how.sampling != spec.sampling:
    spec = dataclasses.replace(
        spec, sampling=how.sampling, min_reporting=None,
        seats=spec.population if how.sampling == sampling_lib.POISSON else None,
    )
  if options.noise_multiplier is None:
    sigma = spec.calibrated(options.epsilon, name).noise_multiplier
    return f'sigma = {sigma:.5g}'
  return f'{spec.most_rounds(options.epsilon, name):,} rounds'


def _line(name: str, spec: spec_lib.PrivacySpec, found: str) -> str:
  how = accounting.ACCOUNTINGS[name]
  if how.sampling != spec.sampling:
    verdict = 'not for this sampling'
  elif spec.holds(name):
    verdict = 'HOLDS'
  else:
    verdict = 'no guarantee says less'
  return f'{found:<20} {verdict:<24} {name}: {how.title};\n{"":46}{how.assumption}'


def _theorem_text(spec: spec_lib.PrivacySpec) -> str:
  epsilon, unmet = theorem_1.epsilon(spec)
  verdict = 'conditions met' if not unmet else 'CONDITIONS NOT MET'
  text = (
      f'epsilon = {epsilon:<10.4g} {verdict:<24} theorem_1: the paper\'s closed form,'
      ' exactly r of n clients;\n'
      f'{"":46}replace-one adjacency, but sensitivity C where it is 2C: no guarantee'
  )
  return text + ''.join(f'\n{"":46}not met: {condition}' for condition in unmet)


def _plot(spec: spec_lib.PrivacySpec, path: str) -> None:
  # Not needed by who asks for numbers.
  import matplotlib  # pylint: disable=g-import-not-at-top

  matplotlib.use('Agg')
  from matplotlib import pyplot  # pylint: disable=g-import-not-at-top

  steps = min(spec.rounds, 25)
  rounds = sorted({math.ceil(spec.rounds * (i + 1) / steps) for i in range(steps)})
  figure, axes = pyplot.subplots(figsize=(7, 4), layout='constrained')
  for name, how in accounting.ACCOUNTINGS.items():
    if not how.any_noise and spec.lattice is not None:
      continue
    axes.plot(
        rounds,
        [spec.epsilon(name, t) for t in rounds],
        '-' if how.sampling == spec.sampling else ':',
        label=f'{name}' + ('' if how.sampling == spec.sampling else ' (does not hold)'),
    )
  axes.set(xlabel='rounds', ylabel='epsilon', ylim=(0, None))
  axes.grid(alpha=0.3)
  axes.legend()
  try:
    figure.savefig(path, dpi=120)
  except (OSError, ValueError) as error:
    raise errors.InputError(
        f'--plot={path} can\'t be written ({error}); name a .png file that can.'
    ) from None
  print(f'wrote {path}')


if __name__ == '__main__':
  sys.exit(main(sys.argv))
