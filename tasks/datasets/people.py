"""Divides people among the clients and the sets on the server, so that nobody is in two of them.

Whoever is set aside leaves the population with all of their data. Who that is follows from names
and from the data of those set aside, not from a client's data, and not from a seed.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import hashlib

import numpy as np

from tasks import errors
from tasks.datasets import task as task_lib

# The part of the people whom `in_hashed_order` sets apart for the test set.
_TEST_SHARE = 0.05


@dataclasses.dataclass(frozen=True)
class Person:
  """One person's data.

  Attributes:
    name: Who it is, unlike all others.
    train: The examples that a client trains on if tests are per client.
    test: The examples that it is tested on then.
    eligible: Whether the person may be a client.
  """

  name: str
  train: task_lib.Examples
  test: task_lib.Examples
  eligible: bool = True

  @property
  def examples(self) -> task_lib.Examples:
    """All of the person's examples."""
    return concatenated([self.train, self.test])


@dataclasses.dataclass(frozen=True)
class Groups:
  """People in groups, of which each stays whole.

  Attributes:
    members: The people of each group.
    test: The groups that are set apart for the test set, unless tests are per client.
    spare: The groups that may be set aside for public and validation examples, in this order.
    validation: The groups that are set aside in every run and from which validation examples are
      drawn, so that no client of a final run has chosen its settings; empty: `spare` gives them.
    noun: What a person is, in the plural.
    listed: Whether to list groups by name.
  """

  members: Mapping[str, Sequence[Person]]
  test: Sequence[str]
  spare: Sequence[str]
  noun: str
  listed: bool = False
  validation: Sequence[str] = ()


def in_hashed_order(people: Sequence[Person], noun: str) -> Groups:
  """Makes each person a group, in the order of a hash of names.

  Those in the first 5 % of the hash's range (or the first one, if nobody is) are the test set's:
  whether a person is does not depend on who else is in the data.
  """

  def position(name: str) -> float:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) / 2**64

  order = sorted((person.name for person in people), key=position)
  num_test = max(1, sum(position(name) < _TEST_SHARE for name in order))
  return Groups(
      members={person.name: [person] for person in people},
      test=order[:num_test],
      spare=order[num_test:],
      noun=noun,
  )


def divide(
    groups: Groups,
    per_client: bool,
    source: str,
    split: task_lib.Split,
) -> task_lib.TaskData:
  """Divides people into clients and those who are none.

  Public examples are drawn from as few of the spare groups as have enough of them; validation ones
  from the validation groups, or else from further spare groups. The rest of those groups' examples
  is left out.

  Args:
    groups: The people.
    per_client: Whether the test set is a part of each client's own examples, as in the paper.
      If not, clients train on all of their examples.
    source: One sentence on where the data are from.
    split: How many public and validation examples to draw; its seed draws among the examples of
      groups that are set aside.

  Raises:
    InputError: If the groups have too few examples, or nobody is left.
  """
  rng, num_public, num_validation = (
      np.random.default_rng(split.seed), split.num_public, split.num_validation
  )
  spare = list(groups.spare)
  apart = [] if per_client else list(groups.test)
  drawn, aside = [], [apart]
  for num, names in ((num_public, spare), (num_validation, list(groups.validation) or spare)):
    taken = _take(groups, names, num, num_public, num_validation)
    drawn.append(_draw(groups, taken, num, rng) if num else None)
    aside.append(taken)
  aside.append(groups.validation)
  gone = {name for names in aside for name in names}
  clients = [
      person
      for name, members in groups.members.items() if name not in gone
      for person in members if person.eligible
  ]
  if not clients or not (apart or per_client):
    raise errors.InputError(
        f'{source}: too few {groups.noun} to set some aside and to have others as clients; get the'
        ' whole data set, or set smaller numbers.'
    )
  public, validation_examples = drawn
  if num_validation:
    source = f'{source}; {num_validation:,} examples HELD OUT in place of the test set'
    test, owners = validation_examples, _owners(groups, aside[2])
  elif per_client:
    test = concatenated([person.test for person in clients])
    owners = task_lib.Owners(
        'a part of the examples of each client', frozenset(person.name for person in clients)
    )
  else:
    test = concatenated([person.examples for person in _members(groups, apart)])
    owners = _owners(groups, apart)
  return task_lib.TaskData(
      clients=[person.train if per_client else person.examples for person in clients],
      test=test,
      public=public,
      source=source,
      client_ids=tuple(person.name for person in clients),
      test_owners=owners,
      public_owners=_owners(groups, aside[1]) if num_public else None,
      has_validation=bool(num_validation),
      # Of names that are set aside alone: one of all clients' names would depend on each client.
      split_digest=task_lib.digest_of_split(per_client, sorted(gone)),
  )


def concatenated(parts: Iterable[task_lib.Examples]) -> task_lib.Examples:
  """All parts' examples, in order."""
  parts = list(parts)
  return parts[0] if len(parts) == 1 else tuple(map(np.concatenate, zip(*parts)))


def _take(
    groups: Groups, names: list[str], num: int, num_public: int, num_validation: int
) -> list[str]:
  """Takes the first of the named groups that have `num` examples together."""
  taken, found = [], 0
  while found < num:
    if not names:
      may_leave = [*groups.spare, *groups.validation]
      available = sum(_size(groups, name) for name in may_leave)
      raise errors.InputError(
          f'{task_lib.flags_of_sizes(num_public, num_validation)} needs more examples than there'
          f' are: the {len(_members(groups, may_leave)):,} {groups.noun} that may leave the'
          f' population have {available:,}, and each leaves it whole, for one purpose; set a'
          ' smaller number.'
      )
    taken.append(names.pop(0))
    found += _size(groups, taken[-1])
  return taken


def _draw(
    groups: Groups, names: Sequence[str], num: int, rng: np.random.Generator
) -> task_lib.Examples:
  """Draws examples of groups."""
  x, y = concatenated(person.examples for person in _members(groups, names))
  chosen = np.sort(rng.choice(len(x), num, replace=False))
  return x[chosen], y[chosen]


def _owners(groups: Groups, names: Sequence[str]) -> task_lib.Owners:
  people = _members(groups, names)
  which = f' ({", ".join(names)})' if groups.listed else ''
  return task_lib.Owners(
      f'from {len(people):,} {groups.noun}{which} set aside whole, none of them a client',
      frozenset(person.name for person in people),
  )


def _members(groups: Groups, names: Iterable[str]) -> list[Person]:
  return [person for name in names for person in groups.members[name]]


def _size(groups: Groups, name: str) -> int:
  return sum(len(person.train[0]) + len(person.test[0]) for person in groups.members[name])
