"""`python -m tasks.account`: epsilon by every accountant, or the sigma or the rounds for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import importlib
import math
import os
import pathlib
import sys
from typing import Optional

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=g-import-not-at-top
from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import calibration
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import sampling as sampling_lib
from fedsmp_tff.privacy import spec as spec_lib
from fedsmp_tff.theory import theorem_1
from tasks import errors
from tasks.cli import command
from tasks.cli import options as options_lib
from tasks.training import run_directory

_SEEDED = 'SIMULATED: the noise has a seed, so this run has no guarantee'
_INDENT = ' ' * 46
# Options that ledgers record.
_option = functools.partial(options_lib.option, excludes=('ledger',))


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command."""

  noise_multiplier: Optional[float] = _option(
      None, 'sigma: the noise of a sum over clients has standard deviation sigma C.'
  )
  clients_per_round: Optional[int] = _option(None, 'r, clients per round.')
  population: Optional[int] = _option(None, 'n, clients from which rounds sample.')
  rounds: Optional[int] = _option(
      None, 'T, rounds in all.', at_least=1, at_most=calibration.MOST_ROUNDS
  )
  delta: Optional[float] = options_lib.option(
      None, 'delta (default: n^-1.1; with --ledger, the smallest of the runs).', above=0, below=1
  )
  epsilon: Optional[float] = _option(
      None,
      'A target: with --rounds, finds the sigma that reaches it; with --noise_multiplier, the'
      ' most rounds that stay within it.',
      above=0,
  )
  sampling: str = _option(
      sampling_lib.POISSON,
      'Sampling of clients, which decides the valid accountants. poisson: each with probability'
      ' r/n; fixed_size: exactly r of n, as in Algorithm 1.',
      values=[sampling_lib.POISSON, sampling_lib.FIXED],
  )
  num_slots: Optional[int] = _option(
      None,
      'With Poisson sampling, the most clients that take part in a round (default: no limit;'
      ' tasks.run has one).',
  )
  colluding: Optional[float] = options_lib.option(
      None,
      'Fraction f of the slots, in [0, 1), that leave out their noise, or whose noise the attacker'
      ' knows: also prints epsilon for the noise that remains, sigma sqrt(1 - f); with integer'
      ' noise of a --ledger, for the whole shares that remain.',
      at_least=0, below=1, excludes=('epsilon',),
  )
  accountant: Optional[str] = options_lib.option(
      None,
      'A module on the Python path with an ACCOUNTANT, a fedsmp_tff.privacy.accountants.Accountant,'
      ' whose epsilon is printed next to the others.',
  )
  epsilon_budget: Optional[float] = options_lib.option(
      None, 'With --ledger: prints what is left of this epsilon.', above=0,
      requires=options_lib.Condition('--ledger is set', lambda chosen: bool(chosen['ledger'])),
  )
  ledger: list[str] = options_lib.option(
      [],
      'Instead of numbers: prints what runs about the same clients have spent together, from the'
      ' privacy ledgers of their --output_dir; more directories may follow as arguments.',
      repeated=True,
  )

  def answer(self, accountant: accountants.Accountant, spec: spec_lib.PrivacySpec) -> float:
    """Returns epsilon by an accountant, or the sigma or the rounds that reach --epsilon."""
    if self.epsilon is None:
      return spec.epsilon(accountant)
    if self.noise_multiplier is None:
      return spec.calibrated(self.epsilon, accountant).noise_multiplier
    return spec.most_rounds(self.epsilon, accountant)

  def answer_text(self, answer: float) -> str:
    """Returns an answer with its unit."""
    if self.epsilon is None:
      return f'epsilon = {answer:.4g}'
    return f'sigma = {answer:.5g}' if self.noise_multiplier is None else f'{answer:,} rounds'


_COMMAND = command.Command(
    'tasks.account',
    (
        'usage: python -m tasks.account --noise_multiplier=1.4 --clients_per_round=100'
        ' --population=6000 --rounds=180',
        '       python -m tasks.account --ledger=RUN_DIR [RUN_DIR...]',
        '',
        'Prints epsilon by every accountant, each with its assumptions, and which of them',
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
    _account_for_runs([*options.ledger, *rest], options)
  else:
    command.refuse(rest, _COMMAND.program)
    _account_for_numbers(options)


def _account_for_numbers(options: Options) -> None:
  _check_complete(options)
  n, poisson = options.population, options.sampling == sampling_lib.POISSON
  plug_in = _plug_in(options)
  try:
    spec = spec_lib.PrivacySpec(
        population=n,
        clients_per_round=options.clients_per_round,
        rounds=options.rounds or 1,
        noise_multiplier=1.0 if options.noise_multiplier is None else options.noise_multiplier,
        clipping_norm=1.0,
        delta=spec_lib.default_delta(max(n, 1)) if options.delta is None else options.delta,
        sampling=options.sampling,
        num_slots=n if poisson and options.num_slots is None else options.num_slots,
    )
    answers = {a: options.answer(a, spec) for a in (*accountants.ACCOUNTANTS, *plug_in)}
  except ValueError as error:
    raise errors.as_flags(error, options_lib.options_of(Options)) from None
  given = {'sigma': options.noise_multiplier, 'T': options.rounds, 'epsilon': options.epsilon}
  print(
      f'n = {n:,}, r = {options.clients_per_round:,}, delta = {spec.delta:.4g}',
      *(f'{name} = {value:g}' for name, value in given.items() if value is not None),
      sep=', ', end='\n\n',
  )
  # All valid answers hold at once: the tightest is the best to quote.
  slots = f' and {spec.num_slots:,} slots' if poisson and spec.num_slots < n else ''
  print(
      f'Quote {options.answer_text(answers[spec.accountant])}, by {spec.accountant.name}: the best'
      f' that is valid for {spec.sampling} sampling{slots}.\n'
  )
  _print_rows(answers, [(spec, spec.rounds)], spec.delta, options)
  if options.epsilon is None:
    _print_theorem_1(spec)
  print(
      '\nAll assume: a client is one unit of privacy; n is public; those who see the model do not'
      ' know\nwho takes part; all participants report and add fresh noise; noise and sums are in\n'
      'real arithmetic. Integer noise: see the plan of tasks.run.'
  )


def _check_complete(options: Options) -> None:
  """Raises `InputError` if a number is missing."""
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
      raise errors.InputError(f'--{name} is not set; set it (see {_COMMAND.program} --help).')


def _plug_in(options: Options) -> list[accountants.Accountant]:
  """Returns the accountant that --accountant names, if any."""
  if options.accountant is None:
    return []
  try:
    accountant = importlib.import_module(options.accountant).ACCOUNTANT
    if not isinstance(accountant, accountants.Accountant):
      raise TypeError('its ACCOUNTANT is no fedsmp_tff.privacy.accountants.Accountant')
  except (ImportError, AttributeError, TypeError, ValueError) as error:
    raise errors.InputError(
        f'--accountant={options.accountant} is not an accountant ({error}); name an importable'
        ' module that has an ACCOUNTANT.'
    ) from None
  return [accountant]


def _account_for_runs(run_dirs: list[str], options: Options) -> None:
  """Prints what the runs in these directories have spent together."""
  runs = _read_ledgers(run_dirs)
  for path, record in runs:
    _print_run(path, record)
  rounds = [record.charged for _, record in runs]
  try:
    quoted = accountants.claim(rounds)
  except ValueError as error:
    raise errors.InputError(f'{str(error).rstrip(".")}; name runs of one --sampling.') from None
  ledger_lib.check_independent(runs)
  delta = options.delta or min(record.spec.delta for _, record in runs)
  print(f'\nall together, about the same clients, at delta = {delta:.4g}:')
  names = sorted({record.data or 'unnamed' for _, record in runs})
  if len(names) > 1:
    print(
        f'These runs are on different data ({", ".join(names)}): composing them assumes the'
        ' same people, each a single client in each run.'
    )
  sound = [
      accountant for accountant in accountants.ACCOUNTANTS
      if all(accountant.is_sound(round_params) for round_params, _ in rounds)
  ]
  epsilons = {a: a.epsilon(rounds, delta) for a in (*sound, *_plug_in(options))}
  seeded = any(record.seeded for _, record in runs)
  if seeded:
    print('Quote none: the noise of a seeded run can be removed.')
  else:
    print(f'Quote epsilon = {epsilons[quoted]:.4g}, by {quoted.name}: the best of those below.')
  _print_rows(
      epsilons, [(record.spec, record.rounds_charged) for _, record in runs], delta, options,
      valid='WOULD BE VALID WITH FRESH NOISE' if seeded else 'VALID',
  )
  if options.epsilon_budget is not None:
    _print_budget(options.epsilon_budget, quoted, rounds, delta)
  print(
      'Counted: every round that began, even if it was lost; a round that was run again with'
      ' other noise counts again.'
  )


def _read_ledgers(run_dirs: list[str]) -> list[tuple[pathlib.Path, ledger_lib.Record]]:
  """Reads the ledgers of runs; refuses a missing, truncated or repeated ledger."""
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
  return runs


def _print_run(path: pathlib.Path, record: ledger_lib.Record) -> None:
  spec = record.spec
  print(
      f'{path}: {record.data or "unnamed data"}, {record.rounds_charged} rounds,'
      f' {spec.sampling} sampling, r = {spec.clients_per_round}, n = {spec.population:,}, sigma ='
      f' {spec.noise_multiplier:g}, {spec.noise} noise, delta = {spec.delta:.4g};'
      f' {_SEEDED if record.seeded else "fresh noise"}; initial weights:'
      f' {record.initial_weights or "not recorded"}'
  )


def _print_budget(
    budget: float, accountant: accountants.Accountant, rounds: accountants.Rounds, delta: float
) -> None:
  """Prints what is left of a budget, in epsilon and in rounds like those of the last run."""
  left = budget - accountant.epsilon(rounds, delta)
  if left < 0:
    print(f'Of the budget of {budget:g} nothing is left: the runs exceed it by {-left:.4g}.')
    return
  *before, (params, num) = rounds
  more = calibration.most_rounds(
      lambda more: accountant.epsilon([*before, (params, num + more)], delta), budget
  )
  print(
      f'Of the budget of {budget:g}, epsilon = {left:.4g} is left: enough for {more:,} more rounds'
      ' like those of the last run.'
  )


def _print_rows(
    answers: Mapping[accountants.Accountant, float],
    runs: Sequence[tuple[spec_lib.PrivacySpec, int]],
    delta: float,
    options: Options,
    valid: str = 'VALID',
) -> None:
  """Prints the answer of each accountant, and whether it is valid for these rounds."""
  for accountant, answer in answers.items():
    status = valid if answer < math.inf else 'no bound here'
    if not accountant.guarantees:
      status = 'no guarantee'
    elif any(accountant.sampling != spec.sampling for spec, _ in runs):
      status = 'not for this sampling'
    elif not all(accountant.covers(spec.round) for spec, _ in runs):
      status = 'not valid for --num_slots'
    elif accountant not in accountants.ACCOUNTANTS:
      status = 'not checked by us'
    text = options.answer_text(answer)
    print(f'{text:<20} {status:<24} {accountant.name}: {accountant.title};')
    print(f'{_INDENT}{accountant.assumption}')
    if options.colluding is not None and all(accountant.is_sound(spec.round) for spec, _ in runs):
      left = [(spec.round_with_colluders(options.colluding), num) for spec, num in runs]
      print(
          f'{_INDENT}epsilon = {accountant.epsilon(left, delta):.4g} if'
          f' {100 * options.colluding:g} % of the slots leave out their noise'
      )


def _print_theorem_1(spec: spec_lib.PrivacySpec) -> None:
  epsilon, unmet = theorem_1.epsilon(spec)
  status = 'CONDITIONS NOT MET' if unmet else 'conditions met'
  print(
      f'epsilon = {epsilon:<10.4g} {status:<24} theorem_1: the paper\'s closed form,'
      ' exactly r of n clients;',
      'replace-one adjacency, but sensitivity C where it is 2C: no guarantee',
      *(f'not met: {condition}' for condition in unmet), sep=f'\n{_INDENT}',
  )


if __name__ == '__main__':
  sys.exit(main(sys.argv))
