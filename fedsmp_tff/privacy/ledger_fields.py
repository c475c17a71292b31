"""The fields of a ledger's lines: what the first line and an entry may say.

A hash chain shows that a ledger was not changed since it was written. It does not show that a run
wrote it: whoever makes up a ledger can compute the chain too.
"""

from collections.abc import Sequence
from typing import Any

from fedsmp_tff import errors
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import sampling as sampling_lib
from fedsmp_tff.privacy import spec as spec_lib

# Fields of the first line, and of `ledger.Record`, that a resumed run must match.
HEAD = ('run', 'data', 'initial_weights', 'seeded', 'seed_digest', 'spec')
ROUND, _DRAW = 'round', 'draw'
_VERSION = 1
_KINDS = {
    **dict.fromkeys(('id', *HEAD), (str,)), 'ledger': (int,), 'seeded': (bool,), 'spec': (dict,),
}
_SPEC_KINDS = {
    **dict.fromkeys(
        ('population', 'clients_per_round', 'rounds', 'num_slots', 'min_reports'), (int,)
    ),
    **dict.fromkeys(('noise_multiplier', 'delta'), (int, float)),
    'clipping_norm': (int, float, type(None)),
    **dict.fromkeys(('sampling', 'noise'), (str,)),
    **dict.fromkeys(('num_values', 'bits'), (int, type(None))), 'allow_large_delta': (bool,),
}
# More than a sum in 32 bits can hold. The time for integer noise grows with the number of slots.
_MAX_SLOTS = 2**23
_MAX_ROUND = 2**31 - 1


def first_line(fields: dict[str, Any]) -> dict[str, Any]:
  """Returns the content of a first line.

  Args:
    fields: The fields of `ledger.Record` in it, and others.

  Raises:
    ValueError: If `parse_first_line` would refuse it.
  """
  content = {'ledger': _VERSION, **fields, 'spec': fields['spec'].record()}
  parse_first_line(content)
  return content


def parse_first_line(content: Any) -> dict[str, Any]:
  """Returns the fields of `ledger.Record` in a first line.

  Raises:
    ValueError: If a field is of another type, or no run has such a field.
    ArithmeticError: If no mechanism can be computed for the specification.
    TypeError: If the specification has a field that `PrivacySpec` has not.
  """
  errors.check_fields(content, _KINDS)
  # Earlier versions had no limit on delta.
  spec = {'allow_large_delta': True, **content['spec']}
  if spec.get('clipping_norm') == 'inf':  # What earlier versions wrote without clipping.
    spec['clipping_norm'] = None
  errors.check_fields(spec, _SPEC_KINDS)
  if content['ledger'] != _VERSION:
    raise ValueError(f'`ledger` must be {_VERSION}. Found {content["ledger"]}')
  if content['seeded'] != bool(content['seed_digest']):
    raise ValueError('`seeded` must be true with a `seed_digest`, and false without one')
  if spec['num_slots'] > _MAX_SLOTS:
    raise ValueError(f'`num_slots` must be at most {_MAX_SLOTS}. Found {spec["num_slots"]}')
  noise = [spec.pop(name) for name in ('noise', 'num_values', 'bits')]
  fields = {name: content[name] for name in ('id', *HEAD)}
  return fields | {'spec': spec_lib.PrivacySpec(**spec, noise=mechanism_lib.make_noise(*noise))}


def entry_fields(sampling: str, round_num: int, draw: int) -> dict[str, int]:
  """Returns the fields of an entry: its round; of an allocation, also the number of its draw."""
  return {ROUND: round_num} | ({_DRAW: draw} if sampling == sampling_lib.ALLOCATION else {})


def count_rounds(draws: Sequence[int], spec: spec_lib.PrivacySpec, seeded: bool) -> int:
  """Returns the number of rounds that count for privacy; see `ledger.Record.rounds_charged`."""
  if seeded and spec.sampling != sampling_lib.ALLOCATION:
    return len(set(draws))
  # Without a seed draws ascend: those that are left out are of abandoned blocks, and count.
  return (max(draws) if seeded else draws[-1]) + 1 if draws else 0


def parse_entries(
    entries: Sequence[dict[str, Any]], spec: spec_lib.PrivacySpec, seeded: bool
) -> tuple[list[int], list[int]]:
  """Returns the round and the number of the draw of each entry.

  Raises:
    ValueError: If a number is none of a round, or if the draws of an allocation, which tell how
      many blocks have begun, are not those that `ledger.Ledger` would write.
  """
  rounds, draws = [], []
  is_allocation = spec.sampling == sampling_lib.ALLOCATION
  for number, entry in enumerate(entries):
    fields = (ROUND, _DRAW) if is_allocation else (ROUND,)
    errors.check_fields(entry, dict.fromkeys(fields, (int,)))
    if not 0 <= entry[ROUND] <= _MAX_ROUND:
      raise ValueError(f'`{ROUND}` must be from 0 to {_MAX_ROUND}. Found {entry[ROUND]}')
    allowed = {entry[ROUND] if seeded else number}
    if is_allocation and not seeded:
      # The next draw, or the first one of the next block.
      following = draws[-1] + 1 if draws else 0
      allowed = {following, spec.round.next_block(following)}
    draw = entry[_DRAW] if is_allocation else allowed.pop()
    if is_allocation and draw not in allowed:
      raise ValueError(f'`{_DRAW}` must be one of {sorted(allowed)}. Found {draw}')
    rounds.append(entry[ROUND])
    draws.append(draw)
  return rounds, draws
