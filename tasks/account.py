"""`python -m tasks.account`: epsilon by every accountant, or the sigma or the rounds for it."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import itertools
import math
import os
import sys
from typing import Any, Optional

from fedsmp_tff import errors as library_errors
from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import calibration
from fedsmp_tff.privacy import ledger as ledger_lib
from fedsmp_tff.privacy import round as round_lib
from fedsmp_tff.privacy import sampling as sampling_lib
from fedsmp_tff.privacy import spec as spec_lib
from fedsmp_tff.theory import theorem_1
from tasks import errors
from tasks.cli import command
from tasks.cli import options as options_lib
from tasks.cli import plugins
from tasks.experiments import run_search
from tasks.training import run_directory

_NAME = 'tasks.account'
_SEEDED = 'SIMULATED: the noise has a seed, so this run has no guarantee'
_ACCOUNTANTS = {accountant.name: accountant for accountant in accountants.ACCOUNTANTS}
# Options that ledgers record.
_option = functools.partial(options_lib.option, excludes=('ledger',))


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command."""

  noise_multiplier: Optional[float] = _option(
      None,
      'Noise multiplier sigma: the standard deviation of the noise in the sum over clients, divided'
      ' by C.',
  )
  clients_per_round: Optional[int] = _option(
      None, 'Number of clients per round r; with Poisson sampling, the mean.'
  )
  population: Optional[int] = _option(None, 'Number of clients n in the data.')
  rounds: Optional[int] = _option(
      None, 'Number of rounds T.', at_least=1, at_most=calibration.MAX_ROUNDS
  )
  delta: Optional[float] = options_lib.option(
      None, 'The delta of (epsilon, delta) (default: n^-1.1; of runs, the smallest of theirs).',
      above=0, below=1,
  )
  allow_large_delta: bool = options_lib.option(
      False, 'Accept a delta above 1/n, with which a guarantee means little.'
  )
  epsilon: Optional[float] = _option(
      None,
      'Target epsilon. With --rounds, the command finds the sigma that reaches it; with'
      ' --noise_multiplier, the largest number of rounds within it.',
      above=0,
  )
  sampling: str = _option(
      sampling_lib.POISSON,
      'Sampling of clients. poisson: each with probability r/n. fixed_size: exactly r of n, as in'
      ' Algorithm 1. allocation: each in one secret round of each block of n/r rounds; a block that'
      ' has begun counts whole.',
      values=list(sampling_lib.KINDS),
  )
  num_slots: Optional[int] = _option(
      None,
      'Maximum number of clients in a round with --sampling=poisson or allocation, which tasks.run'
      ' --dry_run prints as slots (default: no limit).',
  )
  accountant: list[str] = options_lib.option(
      [], 'Module with an ACCOUNTANT of your own, as in docs/extending.md, to compare with.',
      repeated=True,
  )
  ledger: list[str] = options_lib.option(
      [],
      'Directory of a run, or of many. In place of numbers, the command reads the privacy ledgers'
      ' of all runs in it, and prints their joint epsilon. An argument without --ledger= means the'
      ' same. Patterns such as runs/* are expanded.',
      repeated=True, is_path=True,
  )

  def answer(
      self, accountant: accountants.Accountant, spec: spec_lib.PrivacySpec, numbers: dict[str, Any]
  ) -> float:
    """Returns epsilon by an accountant, or the sigma or the rounds that reach --epsilon.

    The sigma is infinite if none reaches it by this accountant. `numbers` are the fields of `spec`
    but for sigma.
    """
    if self.epsilon is None:
      return spec.epsilon(accountant)
    if self.noise_multiplier is not None:
      return spec.max_rounds(self.epsilon, accountant)
    if accountant == spec.accountant:
      return spec.noise_multiplier  # It was found by this accountant.
    try:
      return spec_lib.PrivacySpec.for_epsilon(
          self.epsilon, accountant=accountant, **numbers
      ).noise_multiplier
    except ValueError:
      return math.inf

  def answer_text(self, answer: float) -> str:
    """Returns an answer with its unit."""
    if self.epsilon is None:
      return f'epsilon = {answer:.4g}'
    return f'sigma = {answer:.5g}' if self.noise_multiplier is None else f'{answer:,} rounds'


def _parse(arguments: Sequence[str], *tables: type, program: str) -> list[Options]:
  """Parses a command line; an argument that is not a flag is a directory, as of --ledger."""
  options, rest = command.parse_with_arguments(arguments, *tables, program=program)
  if rest:  # What excludes --ledger excludes a directory too.
    command.parse_with_arguments([f'--ledger={rest[0]}', *arguments], *tables, program=program)
  return [dataclasses.replace(options, ledger=[*options.ledger, *rest])]


def _main(options: Options) -> None:
  if options.ledger:
    _account_for_runs(options)
  else:
    _account_for_numbers(options)


def _find_accountant(name: str) -> accountants.Accountant:
  return plugins.find('accountant', name, _ACCOUNTANTS, 'ACCOUNTANT', accountants.Accountant)


def _account_for_numbers(options: Options) -> None:
  needed = ['clients_per_round', 'population']
  if options.epsilon is None:
    needed += ['noise_multiplier', 'rounds']
  elif (options.noise_multiplier is None) == (options.rounds is None):
    raise errors.InputError(
        '--epsilon needs either --rounds, for which it finds sigma, or --noise_multiplier, for'
        ' which it finds the number of rounds. Set exactly one of them.'
    )
  for name in needed:
    if getattr(options, name) is None:
      raise errors.InputError(f'--{name} is not set. Set it (see python -m {_NAME} --help).')
  n, has_slots = options.population, options.sampling != sampling_lib.FIXED
  shown = [
      # It takes half a minute.
      *(a for a in accountants.ACCOUNTANTS
        if a is not accountants.ALLOCATION_PLD or options.sampling == a.sampling),
      *map(_find_accountant, options.accountant),
  ]
  numbers = dict(
      population=n, clients_per_round=options.clients_per_round, rounds=options.rounds or 1,
      clipping_norm=1.0,
      delta=spec_lib.default_delta(max(n, 1)) if options.delta is None else options.delta,
      sampling=options.sampling,
      num_slots=n if has_slots and options.num_slots is None else options.num_slots,
      allow_large_delta=options.allow_large_delta,
  )
  with _computing():
    if options.noise_multiplier is None:
      spec = spec_lib.PrivacySpec.for_epsilon(options.epsilon, **numbers)
    else:
      spec = spec_lib.PrivacySpec(noise_multiplier=options.noise_multiplier, **numbers)
    answers = {a: options.answer(a, spec, numbers) for a in shown}
    theorem = theorem_1.epsilon(spec)
  print(f'delta = {spec.delta:.4g}')
  _print_answers(answers, [(spec.round, spec.rounds)], options)
  if options.epsilon is None:
    epsilon, unmet = theorem
    _print_row(
        f'epsilon = {epsilon:.4g}', 'no guarantee',
        "theorem_1: the paper's closed form, exactly r of n clients",
        'replace-one adjacency, but sensitivity C instead of 2C',
        *(f'CONDITION NOT MET: {condition}' for condition in unmet),
    )
  print(
      '\nAll assume: a client is one unit of privacy; n is public; recipients of the model do not'
      ' know\nwho takes part; all participants report and add fresh noise; noise and sums are in\n'
      'real arithmetic. For integer noise see what tasks.run --dry_run prints.'
  )


def _check_has_ledger(run_dir: str, has_others: bool) -> None:
  """Refuses a run whose rounds have begun, but which has no ledger; `has_others`: of other runs."""
  has_own, has_config = (
      os.path.exists(os.path.join(run_dir, name))
      for name in (run_directory.LEDGER, run_directory.CONFIG)
  )
  if not has_own and not run_search.is_without_rounds(run_dir):
    raise errors.InputError(
        f'{run_dir} has ledgers, but its {run_directory.CONFIG} (or {run_directory.TUNING}, if'
        ' tasks.tune was choosing) is lost. Restore it, or use tasks.run --overwrite there.'
        if has_others and not has_config else
        f'{run_dir} has no {run_directory.LEDGER}. Name the --output_dir of a federated run,'
        ' or a directory of such runs; separate several by spaces.'
    )


def _account_for_runs(options: Options) -> None:
  """Prints what the runs in these directories have spent together; refuses a missing ledger."""
  runs = []
  paths = [*itertools.chain.from_iterable(map(run_search.expand, options.ledger))]
  for run_dir in run_search.run_dirs(paths):
    found = run_directory.ledgers(run_dir)
    _check_has_ledger(run_dir, bool(found))
    begun = [(path, record) for path, record in found if record.rounds]
    if not begun:
      print(library_errors.printable(f'{run_dir}: no federated round has begun'))
    runs += begun
  if not runs:
    raise errors.InputError(
        f'{options.ledger[0]} has no federated run that has begun. Name the --output_dir of one.'
    )
  for path in itertools.chain.from_iterable(map(run_search.find_runs_with_logs_alone, paths)):
    print(library_errors.printable(f'{path}: begun, and gone; epsilon does NOT count its rounds'))
  for path, record in runs:
    spec, noise = record.spec, _SEEDED if record.seeded else 'fresh noise'
    print(library_errors.printable(
        f'{path}: {record.data or "unnamed data"}, {_rounds_text(record)},'
        f' {spec.sampling} sampling, r = {spec.clients_per_round}, n = {spec.population:,}, sigma ='
        f' {spec.noise_multiplier:g}, {spec.noise.name} noise, delta = {spec.delta:.4g};'
        f' {noise if spec.noise_multiplier else "no noise"}; initial weights:'
        f' {record.initial_weights or "not recorded"}'
    ))
  if unbounded := [path for path, record in runs if record.unbounded]:
    path = library_errors.printable(unbounded[0])
    print(f'\nDo not quote an epsilon: {path} is of a run without noise, so it is infinite.')
    return
  with _computing():
    rounds = [record.charged for _, record in runs]
  try:
    accountants.tightest_sound_accountant(rounds)
  except ValueError as error:
    raise errors.InputError(f'{error} Name runs with the same --sampling.') from None
  ledger_lib.check_independent(runs)
  delta = options.delta or min(record.spec.delta for _, record in runs)
  if not options.allow_large_delta:
    spec_lib.check_delta(delta, max(record.spec.population for _, record in runs))
  if len({record.data for _, record in runs}) > 1:
    print(
        '\nThe runs have other clients or data: their epsilons add up only for a client of every run.'
        ' Name\nthe runs on the same people together.'
    )
  # The guarantee of integer noise depends on the number of values.
  p = ' p,' if any(record.spec.noise.num_values for _, record in runs) else ''
  whose = 'all runs together, if they are on the same people, each a single client in each run, and if'
  which = f'their number,{p} sigma, r, n and T were fixed without results of these runs'
  if len(runs) == 1:
    whose = 'this run, if each person is a single client, and if'
    which = f'{p} sigma, r, n and T were fixed without results of this run'.lstrip()
  print(f'\n{whose}\n{which}, at delta = {delta:.4g}:')
  shown = [a for a in accountants.ACCOUNTANTS if all(a.is_sound(params) for params, _ in rounds)]
  shown = shown or [accountants.tightest_sound_accountant(rounds)]  # Of two samplings.
  shown += map(_find_accountant, options.accountant)
  with _computing():
    epsilons = {accountant: accountant.epsilon(rounds, delta) for accountant in shown}
  _print_answers(epsilons, rounds, options, seeded=any(record.seeded for _, record in runs))


def _rounds_text(record: ledger_lib.Record) -> str:
  """Returns how many rounds of a run count, and of an allocation how many blocks."""
  num = record.rounds_charged
  text = f'{num} round{"s" * (num != 1)}'
  if record.spec.sampling == sampling_lib.ALLOCATION:
    text += f', {record.spec.round.in_blocks(num)[1]} blocks begun'
  return text


@contextlib.contextmanager
def _computing() -> Iterator[None]:
  """Raises `InputError` if numbers are beyond what the block can compute."""
  try:
    yield
  except library_errors.Error:
    raise
  except (ArithmeticError, MemoryError, TypeError, ValueError) as error:
    raise errors.InputError(
        f'epsilon of these numbers can\'t be computed ({type(error).__name__}: {error}). Either no run'
        ' of tasks.run has them, or an accountant of --accountant is wrong. Correct them, or name'
        ' other runs.'
    ) from None


def _print_answers(
    answers: Mapping[accountants.Accountant, float], rounds: round_lib.Rounds, options: Options,
    seeded: bool = False,
) -> None:
  """Prints which answer to quote, then each with its status for these rounds."""
  if seeded:
    print('Do not quote an epsilon: anyone who knows the seed can remove the noise.\n')
  else:
    # All sound answers hold at the same time: the tightest is the best to quote.
    quoted = accountants.tightest_sound_accountant(rounds)
    text = 'Do not quote an epsilon: no accountant has a bound'
    if answers[quoted] < math.inf:
      answer = options.answer_text(answers[quoted])
      text = f'Quote {answer}, by {quoted.name}: the tightest sound accountant'
    print(f'{text}.\n')
  for accountant, answer in answers.items():
    status = 'WOULD BE VALID WITH FRESH NOISE' if seeded else 'VALID'
    if not accountant.guarantees:
      status = 'no guarantee'
    elif any(
        accountant.sampling != params.sampling and not accountant.supports(params)
        for params, _ in rounds
    ):
      status = 'not for this sampling'
    elif not all(accountant.supports(params) for params, _ in rounds):
      status = 'not valid for --num_slots'
    elif accountant not in (*accountants.ACCOUNTANTS, accountants.ADD_OR_REMOVE_PLD):
      status = 'not checked by us'
    elif answer == math.inf:
      status = 'no bound here'
    _print_row(
        options.answer_text(answer), status, f'{accountant.name}: {accountant.title}',
        accountant.assumption,
    )


def _print_row(answer: str, status: str, title: str, *assumptions: str) -> None:
  print(f'{answer:<20} {status:<24} {title};', *assumptions, sep='\n' + ' ' * 46)


main = command.Command(
    _NAME,
    (
        'usage: python -m tasks.account --noise_multiplier=1.4 --clients_per_round=100'
        ' --population=6000 --rounds=180',
        '       python -m tasks.account RUN_DIR|SWEEP_DIR...',
        '',
        'Prints the epsilon to quote, and that of every accountant with what it assumes. The',
        'first form is for a setting that you plan. With --epsilon it finds sigma, or the number',
        'of rounds. The second form is for runs that were made.',
    ),
    _main,
    (Options,),
    parse=_parse,
).main


if __name__ == '__main__':
  sys.exit(main(sys.argv))
