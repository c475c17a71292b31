"""Flags of no use, flags that exclude each other, and numbers out of range, refused in a sentence."""

import math
import numbers
from typing import Any, Optional

from absl import flags

from fedsmp_tff.mechanism import noise as noise_lib
from fedsmp_tff.privacy import sampling as sampling_lib
from tasks import errors

# What an algorithm may have no use for, so that setting it is an error.
_ONLY_SPARSE = ('p', 'k')
_ONLY_TOPK = ('public_examples', 'public_epochs', 'public_steps', 'released_weight')
_ONLY_RELEASED = ('explore',)
_ONLY_PRIVATE = (
    'noise_multiplier', 'epsilon', 'accounting', 'clip', 'delta', 'population', 'noise',
    'clip_quantile', 'precondition', 'predict', 'clip_schedule',
)


def check_of_use(
    task: str,
    flags_of_others: dict[str, list[str]],
    algorithm: str,
    sparsifier: Optional[str],
    private: bool,
    sampling: str,
    noise: str,
) -> None:
  """Refuses flags that this task or algorithm would ignore, or that exclude each other.

  Args:
    task: The task.
    flags_of_others: The names of the flags of each other task.
    algorithm: The algorithm.
    sparsifier: Its sparsifier: 'randk', 'topk', 'released' or None.
    private: Whether it clips and adds noise.
    sampling: How clients are sampled.
    noise: The kind of noise.

  Raises:
    InputError: If there is such a flag.
  """
  for other, names in flags_of_others.items():
    for flag in names:
      if flags.FLAGS[flag].present:
        raise errors.InputError(
            f'--{flag} is for --task={other} and of no use with --task={task};'
            ' leave it out.'
        )
  useless = []
  if sparsifier is None:
    useless += _ONLY_SPARSE
  if sparsifier != 'topk':
    useless += _ONLY_TOPK
  if sparsifier != 'released':
    useless += _ONLY_RELEASED
  if not private:
    useless += _ONLY_PRIVATE
  for flag in useless:
    if flags.FLAGS[flag].present:
      raise errors.InputError(
          f'--{flag} is of no use with --algorithm={algorithm}; leave it out, or choose'
          ' another algorithm.'
      )
  for one, other in (
      ('p', 'k'),
      ('noise_multiplier', 'epsilon'),
      ('local_epochs', 'local_steps'),
      ('public_epochs', 'public_steps'),
      ('clip_schedule', 'clip_quantile'),
  ):
    if flags.FLAGS[one].present and flags.FLAGS[other].present:
      raise errors.InputError(
          f'--{one}={flags.FLAGS[one].value} and --{other}='
          f'{flags.FLAGS[other].value} exclude each other; set one of them.'
      )
  for flag, needed, met in (
      ('seats', '--sampling=poisson', sampling == sampling_lib.POISSON),
      ('server_filter_decay', '--server_filter', flags.FLAGS['server_filter'].present),
      ('rotate', '--noise=discrete_gaussian or skellam', noise != noise_lib.GAUSSIAN),
  ):
    if flags.FLAGS[flag].present and not met:
      raise errors.InputError(
          f'--{flag}={flags.FLAGS[flag].value} is of use with {needed} only; set that, or'
          ' leave it out.'
      )
  if flags.FLAGS['accounting'].present and not flags.FLAGS['epsilon'].present:
    raise errors.InputError(
        f'--accounting={flags.FLAGS["accounting"].value} says how to reach an --epsilon, and none'
        ' is set; set --epsilon too. Every accounting is printed in any case.'
    )


def check_at_least_one(name: str, value: Optional[int]) -> None:
  """Raises `InputError` if a flag's value is set, and below 1."""
  if value is not None and value < 1:
    raise errors.InputError(f'--{name}={value} is not an integer at least 1; change it.')


# Flag: lowest and highest value, and whether the lowest is excluded.
_RANGES: dict[str, tuple[float, float, bool]] = {
    'p': (0, 1, True),
    'k': (1, math.inf, False),
    'rounds': (1, math.inf, False),
    'clients_per_round': (1, math.inf, False),
    'seed': (0, 2**63 - 1, False),
    'noise_multiplier': (0, math.inf, False),
    'epsilon': (0, math.inf, True),
    'clip': (0, math.inf, True),
    'delta': (0, 1, True),
    'population': (1, math.inf, False),
    'seats': (1, math.inf, False),
    'dropout': (0, 1, False),
    'min_reporting': (1, math.inf, False),
    'clip_quantile': (0, 1, True),
    'learning_rate': (0, math.inf, True),
    'learning_rate_decay': (0, 1, True),
    'learning_rate_decay_rounds': (1, math.inf, False),
    'momentum': (0, 1, False),
    'batch_size': (1, math.inf, False),
    'local_epochs': (1, math.inf, False),
    'local_steps': (1, math.inf, False),
    'server_learning_rate': (0, math.inf, True),
    'explore': (0, 1, False),
    'released_weight': (0, 1, False),
    'precondition': (0, 1, True),
    'predict': (0, 1, True),
    'server_filter_decay': (0, 1, False),
    'average_decay': (0, 1, False),
    'public_examples': (1, math.inf, False),
    'public_epochs': (1, math.inf, False),
    'public_steps': (1, math.inf, False),
    'rounds_per_evaluation': (1, math.inf, False),
    'eval_examples': (1, math.inf, False),
    'held_out': (1, math.inf, False),
}
# These end below their highest value.
_OPEN_ABOVE = ('delta', 'momentum', 'dropout', 'clip_quantile', 'server_filter_decay', 'average_decay')


def check_ranges(settings: dict[str, Any]) -> None:
  """Refuses numbers out of their range, NaN among them; None values are left alone.

  Args:
    settings: Values by the name of their flag.

  Raises:
    InputError: If there is such a number.
  """
  for name, (low, high, open_below) in _RANGES.items():
    value = settings[name]
    if value is None:
      continue
    open_above = math.isinf(high) or name in _OPEN_ABOVE
    # Written so that NaN, which compares false, is refused.
    inside = (low < value if open_below else low <= value) and (
        value < high if open_above else value <= high
    )
    if not inside:
      kind = 'an integer' if isinstance(value, numbers.Integral) else 'a number'
      below = 'greater than' if open_below else 'at least'
      above = 'less than' if open_above else 'at most'
      bounds = f'{below} {low}' + (
          ' and finite' if math.isinf(high) else f' and {above} {high}'
      )
      raise errors.InputError(f'--{name}={value} is not {kind} {bounds}; change it.')
  clients, population = settings['clients_per_round'], settings['population']
  if population and clients > population:
    raise errors.InputError(
        f'--clients_per_round={clients} is more than --population={population};'
        ' lower it, or raise the population.'
    )
