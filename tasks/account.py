"""`python -m tasks.account`: epsilon under every accounting side by side, or what reaches one."""

import math
import os
import sys
from typing import Optional

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=g-import-not-at-top
from absl import flags
from absl import logging

from fedsmp_tff import accounting
from tasks import errors

_PROGRAM = 'python -m tasks.account'
# Of their own: tasks.run has flags of the same names.
_FLAGS = flags.FlagValues()
_MOST_ROUNDS = 10**6


def _define(kind, name, default, text, **options):
  return kind(name=name, default=default, help=text, flag_values=_FLAGS, **options)


_SIGMA = _define(
    flags.DEFINE_float, 'noise_multiplier', None,
    'sigma: the noise of a sum over clients has standard deviation sigma C.',
)
_R = _define(flags.DEFINE_integer, 'clients_per_round', None, 'r, clients of a round.')
_N = _define(flags.DEFINE_integer, 'population', None, 'n, from which they are sampled.')
_T = _define(flags.DEFINE_integer, 'rounds', None, 'T, rounds in all.')
_DELTA = _define(flags.DEFINE_float, 'delta', None, 'delta (default: n^-1.1).')
_EPSILON = _define(
    flags.DEFINE_float, 'epsilon', None,
    'A target: with --rounds, the sigma that reaches it; with --noise_multiplier, the'
    ' most rounds that stay within it.',
)
_SAMPLING = _define(
    flags.DEFINE_enum, 'sampling', 'fixed_size',
    'How clients are sampled, and so which figures hold. fixed_size: exactly r of n, as'
    ' tasks.run does; poisson: each with probability r/n.',
    enum_values=['fixed_size', 'poisson'],
)
_PLOT = _define(
    flags.DEFINE_string, 'plot', None, 'A picture of epsilon over rounds to write (PNG).'
)


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status."""
  logging.set_verbosity(logging.ERROR)  # dp-accounting's notes on orders it leaves out.
  try:
    if any(argument in ('--help', '-h', '-help') for argument in argv[1:]):
      print(_help())
      return 0
    try:
      rest = _FLAGS(argv)[1:]
    except flags.Error as error:
      raise errors.InputError(f'{error} (see {_PROGRAM} --help)') from None
    if rest:
      raise errors.InputError(f'{rest[0]!r} is not a flag; see {_PROGRAM} --help.')
    _account()
  except errors.InputError as error:
    print(f'tasks.account: {error}', file=sys.stderr)
    return 2
  return 0


def _help() -> str:
  lines = [
      f'usage: {_PROGRAM} --noise_multiplier=1.4 --clients_per_round=100'
      ' --population=6000 --rounds=180',
      '',
      'Prints epsilon under every accounting, each with what it takes for granted, and',
      'which of them hold for the sampling in use. With --epsilon: what reaches it.',
      '',
  ]
  for holder in (_SIGMA, _R, _N, _T, _DELTA, _EPSILON, _SAMPLING, _PLOT):
    text = f'--{holder.name}: {_FLAGS[holder.name].help}'
    lines.append(flags.text_wrap(text, 90, '      ', '  '))
  return '\n'.join(lines)


def _account() -> None:
  if _EPSILON.value is None:
    needed = ('clients_per_round', 'population', 'noise_multiplier', 'rounds')
  else:
    needed = ('clients_per_round', 'population')
    if (_SIGMA.value is None) == (_T.value is None):
      raise errors.InputError(
          '--epsilon needs one of --rounds, for which it finds sigma, and'
          ' --noise_multiplier, for which it finds the rounds; set one of them.'
      )
  for name in needed:
    if _FLAGS[name].value is None:
      raise errors.InputError(f'--{name} is not set; set it (see {_PROGRAM} --help).')
  if _T.value is not None and not 1 <= _T.value <= _MOST_ROUNDS:
    raise errors.InputError(
        f'--rounds={_T.value} is not an integer from 1 to {_MOST_ROUNDS}; change it.'
    )
  if _PLOT.value is not None and _EPSILON.value is not None:
    raise errors.InputError('--plot is of no use with --epsilon; leave one out.')
  n, r = _N.value, _R.value
  delta = _DELTA.value
  if delta is None:
    delta = accounting.default_delta(max(n, 1))
  try:
    spending = accounting.Spending(
        1.0 if _SIGMA.value is None else _SIGMA.value, r, n, delta
    )
  except ValueError as error:
    raise errors.InputError(_as_flags(str(error))) from None
  print(f'n = {n:,}, r = {r:,}, delta = {delta:.4g}' + _known_text() + '\n')
  # What a run of this sampling may claim first, the paper's own figure last.
  for name, how in accounting.ACCOUNTINGS.items():
    found = _found(name, how, spending)
    if found is not None:
      print(_line(name, how, found))
  if _EPSILON.value is None:
    print(_theorem_text(spending))
  print(
      '\nAll take for granted: a client is one unit of privacy; who takes part is not'
      ' known to those\nwho see the model; all r clients report and add their noise;'
      ' noise and sums are in real arithmetic.'
  )
  if _PLOT.value is not None:
    _plot(spending)


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
    name: str, how: accounting.Accounting, spending: accounting.Spending
) -> Optional[str]:
  """What is asked for, under one accounting; None if it has no answer."""
  if _EPSILON.value is None:
    return f'epsilon = {spending.epsilon(name, _T.value):.4g}'
  if not how.guarantees:
    return None
  try:
    if _SIGMA.value is None:
      sigma = accounting.calibrate_noise_multiplier(
          _EPSILON.value,
          name,
          spending.clients_per_round,
          spending.population,
          spending.delta,
          _T.value,
      )
      return f'sigma = {sigma:.5g}'
  except ValueError as error:
    raise errors.InputError(_as_flags(str(error))) from None
  return f'{_most_rounds(name, spending):,} rounds'


def _most_rounds(name: str, spending: accounting.Spending) -> int:
  """The most rounds, up to a million, that stay within --epsilon."""
  if not 0 < _EPSILON.value < math.inf:
    raise errors.InputError(
        f'--epsilon={_EPSILON.value} is not a number greater than 0 and finite;'
        ' change it.'
    )
  low, high = 0, 1
  while high < _MOST_ROUNDS and spending.epsilon(name, high) <= _EPSILON.value:
    low, high = high, min(2 * high, _MOST_ROUNDS)
  if spending.epsilon(name, high) <= _EPSILON.value:
    return high
  while high - low > 1:
    middle = (low + high) // 2
    if spending.epsilon(name, middle) <= _EPSILON.value:
      low = middle
    else:
      high = middle
  return low


def _line(name: str, how: accounting.Accounting, found: str) -> str:
  if how.sampling != _SAMPLING.value:
    verdict = 'not for this sampling'
  elif how.guarantees:
    verdict = 'HOLDS'
  else:
    verdict = 'no guarantee says less'
  return f'{found:<20} {verdict:<24} {name}: {how.title};\n{"":46}{how.assumption}'


def _theorem_text(spending: accounting.Spending) -> str:
  epsilon, unmet = accounting.theorem_1(spending, _T.value)
  verdict = 'conditions met' if not unmet else 'CONDITIONS NOT MET'
  text = (
      f'epsilon = {epsilon:<10.4g} {verdict:<24} theorem_1: the paper\'s closed form,'
      ' exactly r of n clients;\n'
      f'{"":46}replace-one adjacency, but sensitivity C where it is 2C: no guarantee'
  )
  return text + ''.join(f'\n{"":46}not met: {condition}' for condition in unmet)


def _plot(spending: accounting.Spending) -> None:
  # Not needed by who asks for numbers.
  import matplotlib  # pylint: disable=g-import-not-at-top

  matplotlib.use('Agg')
  from matplotlib import pyplot  # pylint: disable=g-import-not-at-top

  steps = min(_T.value, 25)
  rounds = sorted({math.ceil(_T.value * (i + 1) / steps) for i in range(steps)})
  figure, axes = pyplot.subplots(figsize=(7, 4), layout='constrained')
  for name, how in accounting.ACCOUNTINGS.items():
    axes.plot(
        rounds,
        [spending.epsilon(name, t) for t in rounds],
        '-' if how.sampling == _SAMPLING.value else ':',
        label=f'{name}' + ('' if how.sampling == _SAMPLING.value else ' (does not hold)'),
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


def _as_flags(text: str) -> str:
  """The library's sentence, with flags where it names arguments."""
  for name in _FLAGS:
    text = text.replace(f'`{name}`', f'--{name}')
  return f'{text.rstrip(".")}; change it.'


if __name__ == '__main__':
  sys.exit(main(sys.argv))
