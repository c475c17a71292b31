"""`python -m tasks.account`: epsilon under every accounting side by side, or what reaches one."""

import dataclasses
import math
import os
import pathlib
import sys
from typing import Optional

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=g-import-not-at-top
from absl import flags
from absl import logging

from fedsmp_tff.mechanism import noise as noise_lib
from fedsmp_tff.privacy import accounting
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import sampling
from fedsmp_tff.privacy import spec as spec_lib
from fedsmp_tff.theory import theorem_1
from tasks import errors
from tasks.config import command
from tasks.training import run_directory

_PROGRAM = 'python -m tasks.account'
_FLAGS = command.OwnFlags(_PROGRAM)


_SIGMA = _FLAGS.define(
    flags.DEFINE_float, 'noise_multiplier', None,
    'sigma: the noise of a sum over clients has standard deviation sigma C.',
)
_R = _FLAGS.define(flags.DEFINE_integer, 'clients_per_round', None, 'r, clients of a round.')
_N = _FLAGS.define(flags.DEFINE_integer, 'population', None, 'n, from which they are sampled.')
_T = _FLAGS.define(flags.DEFINE_integer, 'rounds', None, 'T, rounds in all.')
_DELTA = _FLAGS.define(flags.DEFINE_float, 'delta', None, 'delta (default: n^-1.1).')
_EPSILON = _FLAGS.define(
    flags.DEFINE_float, 'epsilon', None,
    'A target: with --rounds, the sigma that reaches it; with --noise_multiplier, the'
    ' most rounds that stay within it.',
)
_SAMPLING = _FLAGS.define(
    flags.DEFINE_enum, 'sampling', sampling.POISSON,
    'How clients are sampled, and so which figures hold. poisson: each with probability'
    ' r/n; fixed: exactly r of n, as in Algorithm 1.',
    enum_values=[sampling.POISSON, sampling.FIXED],
)
_SEATS = _FLAGS.define(
    flags.DEFINE_integer, 'seats', None,
    'With Poisson sampling, the most clients that take part in a round (default: no'
    ' limit; tasks.run has one).',
)
_NOISE = _FLAGS.define(
    flags.DEFINE_enum, 'noise', noise_lib.GAUSSIAN,
    'Kind of noise; integers need --num_values too.', enum_values=list(noise_lib.KINDS),
)
_NUM_VALUES = _FLAGS.define(
    flags.DEFINE_integer, 'num_values', None, 'With integer noise: k, values of a client.'
)
_BITS = _FLAGS.define(
    flags.DEFINE_integer, 'bits', None, 'With integer noise: bits of a value (default: 16).'
)
_PLOT = _FLAGS.define(
    flags.DEFINE_string, 'plot', None, 'A picture of epsilon over rounds to write (PNG).'
)
_LEDGER = _FLAGS.define(
    flags.DEFINE_multi_string, 'ledger', [],
    'Instead of numbers: what runs about the same clients have spent together, from the'
    ' privacy ledgers of their --output_dir; more directories may follow as arguments.',
)

_USAGE = (
    f'usage: {_PROGRAM} --noise_multiplier=1.4 --clients_per_round=100'
    ' --population=6000 --rounds=180',
    f'       {_PROGRAM} --ledger=RUN_DIR [RUN_DIR...]',
    '',
    'Prints epsilon under every accounting, each with what it takes for granted, and',
    'which of them hold for the sampling in use. With --epsilon: what reaches it.',
    '',
)


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status."""
  logging.set_verbosity(logging.ERROR)  # dp-accounting's notes on orders it leaves out.
  try:
    rest = _FLAGS.parse(argv)
    if rest is None:
      print(_FLAGS.help_text(_USAGE))
      return 0
    if _LEDGER.value:
      _account_for([*_LEDGER.value, *rest])
      return 0
    _FLAGS.refuse(rest)
    _account()
  except errors.InputError as error:
    print(f'tasks.account: {error}', file=sys.stderr)
    return 2
  except ledger_lib.LedgerError as error:
    print(f'tasks.account: {error}', file=sys.stderr)
    return 1
  return 0


def _account() -> None:
  needed = ['clients_per_round', 'population']
  if _EPSILON.value is None:
    needed += ['noise_multiplier', 'rounds']
  elif (_SIGMA.value is None) == (_T.value is None):
    raise errors.InputError(
        '--epsilon needs one of --rounds, for which it finds sigma, and'
        ' --noise_multiplier, for which it finds the rounds; set one of them.'
    )
  for name in needed:
    if _FLAGS.values[name].value is None:
      raise errors.InputError(f'--{name} is not set; set it (see {_PROGRAM} --help).')
  if _T.value is not None and not 1 <= _T.value <= spec_lib.MOST_ROUNDS:
    raise errors.InputError(
        f'--rounds={_T.value} is not an integer from 1 to {spec_lib.MOST_ROUNDS}; change it.'
    )
  if _PLOT.value is not None and _EPSILON.value is not None:
    raise errors.InputError('--plot is of no use with --epsilon; leave one out.')
  n, poisson = _N.value, _SAMPLING.value == sampling.POISSON
  try:
    spec = spec_lib.PrivacySpec(
        population=n,
        clients_per_round=_R.value,
        rounds=_T.value or 1,
        noise_multiplier=1.0 if _SIGMA.value is None else _SIGMA.value,
        clipping_norm=1.0,
        delta=spec_lib.default_delta(max(n, 1)) if _DELTA.value is None else _DELTA.value,
        sampling=_SAMPLING.value,
        seats=n if poisson and _SEATS.value is None else _SEATS.value,
        noise=_NOISE.value,
        num_values=_NUM_VALUES.value,
        bits=_BITS.value,
    )
    # What a run may claim first, the paper's own figure last.
    lines = [
        _line(name, spec, found)
        for name, how in accounting.ACCOUNTINGS.items()
        if how.any_noise or spec.lattice is None
        if (found := _found(name, how, spec)) is not None
    ]
  except ValueError as error:
    raise errors.as_flags(error, _FLAGS.names) from None
  print(f'n = {n:,}, r = {_R.value:,}, delta = {spec.delta:.4g}' + _known_text() + '\n')
  print(*lines, sep='\n')
  if _EPSILON.value is None:
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
  if _PLOT.value is not None:
    _plot(spec)


def _account_for(run_dirs: list[str]) -> None:
  """What the runs in some directories have spent together."""
  for name in _FLAGS.names:
    if _FLAGS.values[name].present and name not in ('ledger', 'delta'):
      raise errors.InputError(f'--{name} is of no use with --ledger; leave one out.')
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
  delta = _DELTA.value
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
    raise errors.as_flags(error, _FLAGS.names) from None
  print(
      'Counted: every round that was begun, also if it was lost, and again if it was run'
      ' again with other noise.'
  )


def _known_text() -> str:
  parts = []
  if _SIGMA.value is not None:
    parts.append(f'sigma = {_SIGMA.value:g}')
  if _T.value is not None:
    parts.append(f'T = {_T.value:,}')
  if _EPSILON.value is not None:
    parts.append(f'epsilon = {_EPSILON.value:g}')
  return ''.join(f', {part}' for part in parts)


def _found(
    name: str, how: accounting.Accounting, spec: spec_lib.PrivacySpec
) -> Optional[str]:
  """What is asked for, under one accounting; None if it has no answer."""
  if _EPSILON.value is None:
    return f'epsilon = {spec.epsilon(name):.4g}'
  if not how.guarantees:
    return None
  # For the other sampling: what that would take, with as many clients.
  if how.sampling != spec.sampling:
    spec = dataclasses.replace(
        spec, sampling=how.sampling, min_reporting=None,
        seats=spec.population if how.sampling == sampling.POISSON else None,
    )
  if _SIGMA.value is None:
    sigma = spec.calibrated(_EPSILON.value, name).noise_multiplier
    return f'sigma = {sigma:.5g}'
  return f'{spec.most_rounds(_EPSILON.value, name):,} rounds'


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


def _plot(spec: spec_lib.PrivacySpec) -> None:
  # Not needed by who asks for numbers.
  import matplotlib  # pylint: disable=g-import-not-at-top

  matplotlib.use('Agg')
  from matplotlib import pyplot  # pylint: disable=g-import-not-at-top

  steps = min(_T.value, 25)
  rounds = sorted({math.ceil(_T.value * (i + 1) / steps) for i in range(steps)})
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
    figure.savefig(_PLOT.value, dpi=120)
  except (OSError, ValueError) as error:
    raise errors.InputError(
        f'--plot={_PLOT.value} can\'t be written ({error}); name a .png file that can.'
    ) from None
  print(f'wrote {_PLOT.value}')


if __name__ == '__main__':
  sys.exit(main(sys.argv))
