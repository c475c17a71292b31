"""Divides people among the clients and the sets on the server, each into at most one.

People who are set aside leave the population with all of their data. The choice depends on names
and on the data of the people who are set aside, not on a client's data, and not on a seed.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import hashlib
from typing import Optional

import numpy as np

from tasks import errors
from tasks.datasets import task as task_lib

# Fraction of the people whom `in_hashed_order` sets apart for the test set.
_TEST_FRACTION = 0.05


@dataclasses.dataclass(frozen=True)
class Person:
  """One person's data.

  Attributes:
    name: Unique name.
    train: Training examples of a client if tests are per client.
    test: Test examples of a client in that case.
    eligible: Whether the person may be a client.
  """

  name: str
  train: task_lib.Examples
  test: task_lib.Examples
  eligible: bool = True

  @property
  def examples(self) -> task_lib.Examples:
    """All of the person's examples."""
    return _concatenate([self.train, self.test])


@dataclasses.dataclass(frozen=True)
class Groups:
  """People in groups, each of which stays whole.

  Attributes:
    members: The people of each group.
    test: Groups that are set apart for the test set, unless tests are per client.
    spare: Groups that may be set aside for public and validation examples, in this order.
    noun: Noun for the people, in the plural.
    listed: Whether to list groups by name.
    validation: Groups that are set aside in every run and from which validation examples are
      drawn, so that settings are not tuned on clients of a final run; empty: `spare` gives them.
  """

  members: Mapping[str, Sequence[Person]]
  test: Sequence[str]
  spare: Sequence[str]
  noun: str
  listed: bool = False
  validation: Sequence[str] = ()

  def people(self, names: Iterable[str]) -> list[Person]:
    """Returns the people of the named groups."""
    return [person for name in names for person in self.members[name]]

  def num_examples(self, names: Iterable[str]) -> int:
    """Returns the number of examples in the named groups."""
    return sum(len(person.train[0]) + len(person.test[0]) for person in self.people(names))


def in_hashed_order(people: Sequence[Person], noun: str) -> Groups:
  """Makes each person a group, in the order of a hash of names.

  The test set has the people in the first 5 % of the hash's range (or the first person, if the
  range is empty): whether a person is among them does not depend on who else is in the data.
  """

  def position(name: str) -> float:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) / 2**64

  order = sorted((person.name for person in people), key=position)
  num_test = max(1, sum(position(name) < _TEST_FRACTION for name in order))
  members = {person.name: [person] for person in people}
  return Groups(members, test=order[:num_test], spare=order[num_test:], noun=noun)


def divide(
    groups: Groups, per_client: bool, source: str, split: task_lib.Split
) -> task_lib.TaskData:
  """Divides people into clients and people who are set aside.

  Public examples are drawn from the first spare groups that have enough of them; validation
  examples from the validation groups, or else from further spare groups. The other examples of
  these groups are left out.

  Args:
    groups: The people.
    per_client: Whether the test set is a part of each client's own examples, as in the paper.
      If not, clients train on all of their examples.
    source: One sentence on the origin of the data.
    split: Sizes of the public and the validation set; its seed draws among the examples of groups
      that are set aside.

  Raises:
    InputError: If the groups have too few examples or people.
  """
  rng = np.random.default_rng(split.seed)
  spare = list(groups.spare)
  test_groups = [] if per_client else list(groups.test)
  public_groups = _take(groups, spare, split.num_public, 'public_examples')
  validation_groups = _take(
      groups, list(groups.validation) or spare, split.num_validation, 'validation_examples'
  )
  excluded = {*test_groups, *public_groups, *validation_groups, *groups.validation}
  remaining = groups.people(name for name in groups.members if name not in excluded)
  clients = [person for person in remaining if person.eligible]
  if not clients or not (test_groups or per_client):
    raise errors.InputError(
        f'{source}: too few {groups.noun} to set some aside and to have others as clients. Use the'
        ' whole data set, or smaller numbers.'
    )
  client_ids = tuple(person.name for person in clients)
  public, public_owners = _draw(groups, public_groups, split.num_public, rng)
  if split.num_validation:
    source = f'{source}; {split.num_validation:,} VALIDATION examples in place of the test set'
    test, test_owners = _draw(groups, validation_groups, split.num_validation, rng)
  elif per_client:
    test = _concatenate(person.test for person in clients)
    test_owners = task_lib.Owners('a part of each client\'s examples', frozenset(client_ids))
  else:
    test, test_owners = _draw(groups, test_groups, None, rng)
  return task_lib.TaskData(
      clients=[person.train if per_client else person.examples for person in clients],
      test=test,
      public=public,
      source=source,
      client_ids=client_ids,
      test_owners=test_owners,
      public_owners=public_owners,
      has_validation=bool(split.num_validation),
      # Only names that are set aside: a digest of clients' names would depend on each client.
      split_digest=task_lib.digest_of_split(per_client, sorted(excluded)),
  )


def _concatenate(parts: Iterable[task_lib.Examples]) -> task_lib.Examples:
  return tuple(map(np.concatenate, zip(*parts)))


def _take(groups: Groups, names: list[str], num: int, flag: str) -> list[str]:
  """Removes the first of the named groups that have `num` examples together, and returns them."""
  taken = []
  while groups.num_examples(taken) < num:
    if not names:
      raise errors.InputError(
          f'--{flag}={num} needs more examples than there are: the {len(groups.people(taken)):,}'
          f' {groups.noun} that are left for this set have {groups.num_examples(taken):,}. Use a'
          ' smaller number, or a smaller public set.'
      )
    taken.append(names.pop(0))
  return taken


def _draw(
    groups: Groups, names: Sequence[str], num: Optional[int], rng: np.random.Generator
) -> tuple[Optional[task_lib.Examples], Optional[task_lib.Owners]]:
  """Returns random examples of the named groups, or all of them, and their owners."""
  if not names:
    return None, None
  people = groups.people(names)
  x, y = _concatenate(person.examples for person in people)
  if num is not None:
    chosen = np.sort(rng.choice(len(x), num, replace=False))
    x, y = x[chosen], y[chosen]
  names_text = f' ({", ".join(names)})' if groups.listed else ''
  return (x, y), task_lib.Owners(
      f'from {len(people):,} {groups.noun}{names_text} set aside whole, none of them a client',
      frozenset(person.name for person in people),
  )
