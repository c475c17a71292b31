"""The fields of a ledger's lines: what the first line and an entry may say.

A hash chain shows that a ledger was not changed since it was written. It does not show that a run
wrote it: whoever makes up a ledger can compute the chain too.
"""

from typing import Any

from fedsmp_tff import errors
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import spec as spec_lib

# Fields of the first line, and of `ledger.Record`, that a resumed run must match.
HEAD = ('run', 'data', 'initial_weights', 'seeded', 'seed_digest', 'spec')
ROUND = 'round'
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


def parse_round(entry: dict[str, Any]) -> int:
  """Returns the round of an entry; raises ValueError if it is not the number of a round."""
  errors.check_fields(entry, {ROUND: (int,)})
  if not 0 <= entry[ROUND] <= _MAX_ROUND:
    raise ValueError(f'`{ROUND}` must be from 0 to {_MAX_ROUND}. Found {entry[ROUND]}')
  return entry[ROUND]
