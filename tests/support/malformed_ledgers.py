"""Ledgers with a right hash chain that no run wrote, as whoever makes one up can write them."""

import copy
import hashlib
import json

_SPEC = {
    'population': 6000, 'clients_per_round': 100, 'rounds': 180, 'noise_multiplier': 1.4,
    'clipping_norm': 1.0, 'delta': 1e-5, 'sampling': 'poisson', 'num_slots': 150,
    'min_reports': 150, 'noise': 'gaussian', 'num_values': None, 'bits': None,
}
_HEAD = {
    'ledger': 1, 'id': '0123456789abcdef', 'randomness': '', 'run': 'a', 'data': 'people',
    'initial_weights': 'random', 'seeded': False, 'seed_digest': '', 'spec': _SPEC,
}
_DEEP = '[' * 100_000 + ']' * 100_000
_INTEGERS = dict(noise='discrete_gaussian', num_values=9, bits=16)
_DELETED = object()


def _specs(name, *values):
  return {f'{name} {i}': (dict(spec={name: value}), [0, 1]) for i, value in enumerate(values)}


def _heads(name, *values):
  return {f'{name} {i}': ({name: value}, [0, 1]) for i, value in enumerate(values)}


# What differs from a ledger of two rounds: fields of its first line, and the rounds of its entries.
CASES = {
    **_specs('population', '6000', True, None, 6000.0, 0, -1, 10**30, 10**400, _DELETED),
    **_specs('clients_per_round', '100', 1e2, 0, -5, 10**30, [100]),
    **_specs('rounds', 'all', -1, 10**400, float('inf')),
    **_specs('noise_multiplier', '1.4', True, None, -1.4, float('nan'), float('inf'), 1e300, 10**400),
    **_specs('clipping_norm', None, 'inf', '1.0', 'nan', 0, -1.0, float('nan'), float('inf'), False, {}),
    **_specs('delta', '1e-5', 0, 1, -1e-5, float('nan'), 10**30, True),
    **_specs('sampling', 'all', 3, None), **_specs('noise', '\x1b[31m', 0),
    **_specs('num_slots', 1, 149.5, '150', 10**10, None, False),
    **_specs('min_reports', 0, -3, 151, 1.5, None), **_specs('num_values', 'k', 1.0),
    **_specs('bits', 1000, -1, 16.0), **_specs('payload', 3),
    **_heads('spec', [], None, 'spec', 3), **_heads('seeded', 'no', 0, None, True),
    **_heads('ledger', 2, True, '1'), **_heads('seed_digest', 'ab', None, 7),
    **_heads('id', 5, None, ['a'], _DELETED), **_heads('run', 5, None), **_heads('data', {}, 3),
    **_heads('initial_weights', [], 2.5),
    'too many slots for integers': (
        dict(spec={**_INTEGERS, 'population': 2**40, 'num_slots': 2**39, 'min_reports': 2**39}), [0]
    ),
    'a slot per client of the planet': (dict(spec=dict(population=2**40, num_slots=2**33)), [0]),
    'integers of infinite length': (dict(spec={**_INTEGERS, 'num_values': 10**400}), [0]),
    'integers of no length': (dict(spec={**_INTEGERS, 'num_values': None}), [0]),
    'integers of negative length': (dict(spec={**_INTEGERS, 'num_values': -1}), [0]),
    'integers without room': (dict(spec={**_INTEGERS, 'bits': 8}), [0]),
    **{f'round {i}': ({}, [0, entry]) for i, entry in enumerate(
        (-1, True, 1.0, '1', None, 2**31, 10**400, float('nan'), {}, [1])
    )},
    'nested first line': (f'{{"id": {_DEEP}}}', []),
    'nested entry': ({}, [f'{{"entry": 0, "round": {_DEEP}}}']),
    'a list': ('[]', []), 'a number': ('3', []), 'no first line': ('', []),
}


def write(path, head, rounds):
  """Writes the ledger of one of `CASES`, which may have a whole line as a text."""
  if isinstance(head, dict):
    changed = copy.deepcopy(_HEAD)
    for name, value in head.items():
      changed[name] = {**_SPEC, **value} if name == 'spec' and isinstance(value, dict) else value
    for record in (changed, changed['spec'] if isinstance(changed['spec'], dict) else {}):
      for name in [name for name, value in record.items() if value is _DELETED]:
        del record[name]
    head = json.dumps(changed)
  texts, before = [head] if head else [], ''
  for number, entry in enumerate(rounds):
    is_line = isinstance(entry, str) and entry.startswith('{')
    texts.append(entry if is_line else json.dumps({'entry': number, 'round': entry}))
  with open(path, 'w', encoding='utf-8') as file:
    for text in texts:
      before = hashlib.sha256((before + text).encode()).hexdigest()
      file.write(f'{text[:-1]}, "sum": "{before}"}}\n' if text.startswith('{') else f'{text}\n')
