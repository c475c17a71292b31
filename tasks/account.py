"""`python -m tasks.account`: epsilon under every accounting side by side, or what reaches one."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import pathlib
import sys
from typing import Optional

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=g-import-not-at-top
from fedsmp_tff.privacy import accounting
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import sampling as sampling_lib
from fedsmp_tff.privacy import spec as spec_lib
from fedsmp_tff.theory import theorem_1
from tasks import errors
from tasks.config import command
from tasks.config import options as options_lib
from tasks.training import run_directory

_SEEDED = 'SEEDED: would be valid with fresh noise, simulation only'
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
  colluding: Optional[float] = options_lib.option(
      None,
      'Share f of the seats, in [0, 1), that leave out their noise, or whose noise the attacker'
      ' knows: also prints epsilon for the noise that remains, sigma sqrt(1 - f); with integer'
      ' noise of a --ledger, for the whole shares that remain.',
      at_least=0, below=1, excludes=('epsilon',),
  )
  epsilon_budget: Optional[float] = options_lib.option(
      None, 'With --ledger: prints what is left of this epsilon.', above=0,
      only=options_lib.Condition('--ledger is set', lambda chosen: bool(chosen['ledger'])),
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
        'are valid for the sampling in use. With --epsilon: the sigma or the rounds.',
    ),
    (Options,),
    parse=command.parse_with_arguments,
    failures=lambda: (ledger_lib.LedgerError,),
)


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status."""
  return _COMMAND.main(argv, _main)


def _main(options: Options, rest: list[str]) -> None:
  if options.ledger:
    _account_for([*options.ledger, *rest], options)
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
    )
    # What a run may claim first, the paper's own figure last.
    found = {
        name: _answer(name, how, spec, options)
        for name, how in accounting.ACCOUNTINGS.items()
    }
    colluding = {
        name: accounting.epsilon(
            [(spec.round_without_noise_of(options.colluding), spec.rounds)], name, spec.delta
        )
        for name in found
        if options.colluding is not None and spec.is_valid(name)
    }
  except ValueError as error:
    raise errors.as_flags(error, options_lib.options_of(Options)) from None
  print(
      f'n = {n:,}, r = {options.clients_per_round:,}, delta = {spec.delta:.4g}'
      f'{_known_text(options)}\n'
  )
  # All that are valid are true at once: the best of them is the one to quote.
  best = max if options.epsilon is not None and options.rounds is None else min
  quoted = best((name for name in found if spec.is_valid(name)), key=lambda name: found[name])
  print(
      f'Quote {_answer_text(found[quoted], options)}, by {quoted}: the best that is valid for'
      f' {spec.sampling} sampling{_seats_text(spec)}.'
  )
  print()
  for name, answer in found.items():
    print(_line(name, spec, answer, options))
    if name in colluding:
      print(f'{"":46}{_colluding_text(colluding[name], options.colluding)}')
  if options.epsilon is None:
    print(_theorem_text(spec))
  print(
      '\nAll assume: a client is one unit of privacy; n is public; those who see the model do not'
      ' know\nwho takes part; all participants report and add fresh noise; noise and sums are in\nreal'
      ' arithmetic. Integer noise: see the plan of tasks.run.'
  )


def _account_for(run_dirs: list[str], options: Options) -> None:
  """Prints what the runs in these directories have spent together."""
  runs, seen = [], set()
  for run_dir in run_dirs:
    paths = run_directory.ledgers(run_dir)
    if not paths:
      raise errors.InputError(
          f'--ledger={run_dir} has no privacy ledger; name the --output_dir of a run'
          ' with privacy.'
      )
    if paths[0].resolve() in seen:
      raise errors.InputError(f'--ledger={run_dir} is named twice; name it once.')
    seen.add(paths[0].resolve())
    records = [ledger_lib.read(path) for path in paths]
    recorded, charged = run_directory.rounds_charged(run_dir), records[-1].rounds_charged
    if charged < recorded:
      raise ledger_lib.LedgerError(
          f'{paths[-1]} is truncated: {charged} rounds, but {run_dir}/metrics.csv has {recorded};'
          f' {ledger_lib.REMEDY}.'
      )
    runs += zip(paths, records)
  for path, record in runs:
    spec = record.spec
    print(
        f'{pathlib.Path(path)}: {record.data or "unnamed data"}, {record.rounds_charged} rounds,'
        f' {spec.sampling} sampling, r ='
        f' {spec.clients_per_round}, n = {spec.population:,}, sigma ='
        f' {spec.noise_multiplier:g}, {spec.noise} noise, delta = {spec.delta:.4g};'
        f' {_SEEDED if record.seeded else "fresh noise"}; initial weights:'
        f' {record.initial_weights or "not recorded"}'
    )
  specs = [record.spec for _, record in runs]
  kinds = {spec.sampling for spec in specs}
  if len(kinds) > 1:
    raise errors.InputError(
        'Runs with --sampling=poisson and fixed have guarantees about different neighbours,'
        ' which don\'t add up; name runs of one kind.'
    )
  ledger_lib.check_independent(runs)
  delta = min(spec.delta for spec in specs) if options.delta is None else options.delta
  counted = [record.charged for _, record in runs]
  less = [
      (record.spec.round_without_noise_of(options.colluding or 0), record.rounds_charged)
      for _, record in runs
  ]
  valid = [name for name in accounting.ACCOUNTINGS if all(spec.is_valid(name) for spec in specs)]
  verdict = 'VALID'
  if any(record.seeded for _, record in runs):
    verdict = 'WOULD BE VALID WITH FRESH NOISE'
  print(f'\nall together, about the same clients, at delta = {delta:.4g}:')
  names = {record.data for _, record in runs}
  if len(names) > 1:
    print(
        'These runs are on different data'
        f' ({", ".join(sorted(name or "unnamed" for name in names))}): composing them assumes the'
        ' same people, each a single client in each run.'
    )
  try:
    found = {name: accounting.epsilon(counted, name, delta) for name in valid}
    colluding = {
        name: accounting.epsilon(less, name, delta)
        for name in valid
        if options.colluding is not None
    }
  except ValueError as error:
    raise errors.as_flags(error, options_lib.options_of(Options)) from None
  quoted = min(found, key=found.get)
  if not any(record.seeded for _, record in runs):
    print(f'Quote epsilon = {found[quoted]:.4g}, by {quoted}: the best of those below.')
  else:
    print('Quote none: the noise of a seeded run can be removed.')
  for name, epsilon in found.items():
    how = accounting.ACCOUNTINGS[name]
    means = verdict if epsilon < math.inf else 'no bound here'
    print(f'epsilon = {epsilon:.4g}  {means}  {name}: {how.title}; {how.assumption}')
    if name in colluding:
      print(f'  {_colluding_text(colluding[name], options.colluding)}')
  if options.epsilon_budget is not None:
    print(_left_text(options.epsilon_budget, found[quoted], quoted, counted, delta))
  print(
      'Counted: every round that began, even if it was lost; a round that was run again with'
      ' other noise counts again.'
  )


def _left_text(
    budget: float,
    spent: float,
    name: str,
    counted: list[tuple[accounting.Round, int]],
    delta: float,
) -> str:
  """Describes what is left of a budget, in epsilon and in rounds like the last run's."""
  if spent > budget:
    return f'Of the budget of {budget:g} nothing is left: the runs exceed it by {spent - budget:.4g}.'
  *before, (one, num) = counted

  def spent_with(more):
    return accounting.epsilon([*before, (one, num + more)], name, delta)

  low, high = 0, 1
  while high < spec_lib.MOST_ROUNDS and spent_with(high) <= budget:
    low, high = high, 2 * high
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if spent_with(middle) <= budget else (low, middle)
  return (
      f'Of the budget of {budget:g}, epsilon = {budget - spent:.4g} is left: enough for {low:,} more'
      ' rounds like those of the last run.'
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


def _answer(
    name: str, how: accounting.Accounting, spec: spec_lib.PrivacySpec, options: Options
) -> float:
  """Returns the figure that was asked for, under one accounting."""
  if options.epsilon is None:
    return spec.epsilon(name)
  # For the other sampling: what that would take, with as many clients.
  if how.sampling != spec.sampling:
    spec = dataclasses.replace(
        spec, sampling=how.sampling, min_reporting=None,
        seats=spec.population if how.sampling == sampling_lib.POISSON else None,
    )
  if options.noise_multiplier is None:
    return spec.calibrated(options.epsilon, name).noise_multiplier
  return spec.most_rounds(options.epsilon, name)


def _answer_text(answer: float, options: Options) -> str:
  if options.epsilon is None:
    return f'epsilon = {answer:.4g}'
  if options.noise_multiplier is None:
    return f'sigma = {answer:.5g}'
  return f'{answer:,} rounds'


def _line(name: str, spec: spec_lib.PrivacySpec, answer: float, options: Options) -> str:
  how = accounting.ACCOUNTINGS[name]
  text = _answer_text(answer, options)
  return (
      f'{text:<20} {_verdict(name, spec, answer):<24} {name}: {how.title};\n'
      f'{"":46}{how.assumption}'
  )


def _verdict(name: str, spec: spec_lib.PrivacySpec, answer: float) -> str:
  """Returns the verdict on an accounting's answer for this run."""
  how = accounting.ACCOUNTINGS[name]
  if how.sampling != spec.sampling:
    return 'not for this sampling'
  if spec.is_valid(name):
    return 'VALID' if answer < math.inf else 'no bound here'
  return 'not valid for --seats'


def _seats_text(spec: spec_lib.PrivacySpec) -> str:
  limited = spec.sampling == sampling_lib.POISSON and spec.seats < spec.population
  return f' and {spec.seats:,} seats' if limited else ''


def _colluding_text(epsilon: float, colluding: float) -> str:
  return f'epsilon = {epsilon:.4g} if {100 * colluding:g} % of the seats leave out their noise'


def _theorem_text(spec: spec_lib.PrivacySpec) -> str:
  epsilon, unmet = theorem_1.epsilon(spec)
  verdict = 'conditions met' if not unmet else 'CONDITIONS NOT MET'
  text = (
      f'epsilon = {epsilon:<10.4g} {verdict:<24} theorem_1: the paper\'s closed form,'
      ' exactly r of n clients;\n'
      f'{"":46}replace-one adjacency, but sensitivity C where it is 2C: no guarantee'
  )
  return text + ''.join(f'\n{"":46}not met: {condition}' for condition in unmet)


if __name__ == '__main__':
  sys.exit(main(sys.argv))
