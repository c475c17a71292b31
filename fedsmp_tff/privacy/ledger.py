"""The privacy ledger: a record on disk of each round before it begins.

A ledger of a seeded run has a digest of the seed, with which `check_independent` finds two runs
with equal noise. The digest has no secret key, on purpose: with a key, ledgers from two places
could not be compared, and anyone who has a release or the initial weights can test a guessed seed
without any ledger. It is slow (scrypt), so that it is the least efficient of these tests.
"""

from collections.abc import Iterator, Sequence
import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import secrets
from typing import Any, NamedTuple, Optional

import numpy as np

from fedsmp_tff import errors
from fedsmp_tff.privacy import budget as budget_lib
from fedsmp_tff.privacy import ledger_fields
from fedsmp_tff.privacy import round as round_lib
from fedsmp_tff.privacy import spec as spec_lib

_SUM, _ENTRY = 'sum', 'entry'
REMEDY = (
    'Restore the latest backup, and add the rounds that it lacks, or epsilon counts too few'
    " (docs/privacy.md, 'A damaged ledger')"
)
_NOTE = {
    True: 'simulation: noise follows from the seed, and who knows it can remove it; not valid',
    False: 'noise from the operating system, fresh for every client and round',
}


class LedgerError(errors.Error):
  """A ledger is damaged, of another run or can't be written; the message has the remedy."""


class Record(NamedTuple):
  """The content of a ledger.

  Attributes:
    spec: The specification, from which the cost of a round follows.
    run: Name of the run.
    seeded: Whether the run's noise follows from a seed, so that its epsilon is not valid.
    rounds: The round of each entry, from 0, in order.
    draws: The number of each entry's draw of clients; see `Ledger.begin`.
    size: Number of bytes of complete lines. A line after them was cut off while it was written, so
      that its round never began.
    seed_digest: Digest of the seed; '' without a seed.
    data: Name of the run's data.
    initial_weights: Initialization of the model, such as 'random', or the public data of its
      pre-training: epsilon covers the rounds alone.
    id: Random name of the ledger, shared by its copies.
    sums: The SHA-256 of each line.
  """

  spec: spec_lib.PrivacySpec
  run: str
  seeded: bool
  rounds: list[int]
  draws: list[int]
  size: int
  seed_digest: str
  data: str
  initial_weights: str
  id: str
  sums: list[str]

  @property
  def rounds_charged(self) -> int:
    """The number of rounds that count for privacy.

    A round counts once it has begun, and again if it is repeated. With a seed the repeated round
    has equal noise, and counts once. Of an allocation, the rest of a block that a resumed run
    abandoned counts too, so that this number tells how many blocks have begun.
    """
    return ledger_fields.count_rounds(self.draws, self.spec, self.seeded)

  @property
  def charged(self) -> tuple[round_lib.Round, int]:
    """(`spec.round`, `rounds_charged`), for `Accountant.epsilon`."""
    return self.spec.round, self.rounds_charged

  @property
  def unbounded(self) -> bool:
    """Whether rounds began without noise: epsilon is infinite, whatever composes with them."""
    return bool(self.rounds) and not self.spec.noise_multiplier


class Ledger(contextlib.AbstractContextManager):
  """Appends to one run's ledger: lines of JSON, first the specification, then each round.

  Each line contains the SHA-256 of itself and the line before, which reveals lines that were
  changed, left out or moved. A missing end is revealed by checkpoints, which contain the length
  (`state`). For `spec` and `seeded` see `Record`.
  """

  def __init__(
      self, path: os.PathLike[str], spec: spec_lib.PrivacySpec, run: str = '', *,
      seed: Optional[int] = None, data: str = '', initial_weights: str = '',
      budget: Optional[budget_lib.EpsilonBudget] = None,
  ):
    """Begins a ledger, or continues the existing one.

    Args:
      path: The file; its directory must exist.
      spec: See `Record`.
      run: See `Record`.
      seed: Non-negative seed of the run's noise (`seed` of `build_fed_smp`); None: fresh noise.
        Only its digest is written.
      data: See `Record`.
      initial_weights: See `Record`.
      budget: The privacy budget; None: no limit. It may change when the run resumes.

    Raises:
      LedgerError: If the existing file is damaged, of another run, in use, or can't be written.
      ValueError: If `budget` was made for another `spec`, or a name is not a text.
    """
    if budget is not None and budget.spec != spec:
      raise ValueError(
          f'`budget` must be made for `spec`={spec}. Found one for {budget.spec}. Pass'
          ' `EpsilonBudget(epsilon, spec)`.'
      )
    self.spec = spec
    self.seeded = seed is not None
    self._path = pathlib.Path(path)
    self._budget = budget
    self._draws, self._sums, self._size = [], [], 0
    self._block = None  # The block of an allocation that this object began.
    seed_digest = '' if seed is None else _digest_of_seed(seed)
    values = run, data, initial_weights, self.seeded, seed_digest, spec
    head = dict(zip(ledger_fields.HEAD, values))
    existed = self._path.exists()
    with self._writing():
      self._file = open(self._path, 'ab', buffering=0)
    try:
      self._begin(head, existed)
    except BaseException:
      self.close()
      raise

  def _begin(self, head: dict[str, Any], existed: bool) -> None:
    # The lock comes first: what another writer adds after `read` would be cut.
    is_locked = True
    try:
      fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise LedgerError(
          f'{self._path} is open elsewhere, and two writers would each count their own rounds.'
          ' `close()` the other `Ledger`, or wait until its program ends.'
      ) from None
    except OSError:  # A file system without locks.
      is_locked = False
    if existed or self._path.stat().st_size:
      recorded = read(self._path)
      if names := [name for name in ledger_fields.HEAD if getattr(recorded, name) != head[name]]:
        raise LedgerError(
            f"{self._path} belongs to another run (other {', '.join(names)}). Restore this run's"
            ' ledger.'
        )
      self._draws, self._sums, self._size = recorded.draws, recorded.sums, recorded.size
      with self._writing():
        self._file.truncate(recorded.size)
      return
    try:
      first = {'id': secrets.token_hex(8), 'randomness': _NOTE[self.seeded], **head}
      self._append(ledger_fields.first_line(first))
    except BaseException:
      if is_locked:  # Without a first line, the same command would find a damaged ledger.
        with contextlib.suppress(OSError):
          self._path.unlink()
      raise

  def __exit__(self, *unused_error) -> None:
    self.close()

  def close(self) -> None:
    """Closes the file."""
    with contextlib.suppress(OSError):  # If an entry was not written, its round did not begin.
      self._file.close()

  def begin(self, round_num: int) -> int:
    """Records that a round begins; the record is on disk on return.

    Args:
      round_num: The round, from 0.

    Returns:
      The number of the round's draw of clients. Without a seed a repeated round draws
      other clients: two releases on one sample would not be two independent rounds. For the same
      reason the first draw of an allocation by this object is that of a new block: nobody may have
      kept the secret rounds of a block that another object began.

    Raises:
      BudgetSpentError: If the round would exceed the budget; nothing is recorded.
      LedgerError: If the record can't be written. The round counts if its line is in the file.
    """
    entry, before = len(self._draws), self.rounds_charged()
    draw, per_block = round_num if self.seeded else before, self.spec.round.rounds_per_block
    if not self.seeded and draw // per_block != self._block:
      draw = self.spec.round.next_block(draw)
    try:
      self._draws.append(draw)
      if self._budget is not None:
        self._budget.check(round_num, before, self.rounds_charged())
      self._append({
          _ENTRY: entry, **ledger_fields.entry_fields(self.spec.sampling, round_num, draw)
      })
    except BaseException:
      del self._draws[len(self._sums) - 1 :]  # A line in the file counts.
      raise
    self._block = draw // per_block
    return draw

  def rounds_charged(self, rounds_done: int | None = None) -> int:
    """Returns the number of rounds that count for privacy; see `Record.rounds_charged`.

    Args:
      rounds_done: With a seed, only the first `rounds_done` rounds of the run count; None: all.
    """
    limit = rounds_done if self.seeded else None
    draws = [draw for draw in self._draws if limit is None or draw < limit]
    return ledger_fields.count_rounds(draws, self.spec, self.seeded)

  def state(self) -> dict[str, np.ndarray]:
    """Returns the state for `check`: the number of entries and the sum of the last one."""
    return {
        'entries': np.int64(len(self._draws)),
        'sum': np.frombuffer(bytes.fromhex(self._sums[-1]), np.uint8),
    }

  def check(self, state: dict[str, Any]) -> None:
    """Raises `LedgerError` if this ledger does not begin with the entries that `state` records."""
    entries = int(state['entries'])
    if self._sums[entries : entries + 1] != [bytes(np.asarray(state['sum'])).hex()]:
      raise LedgerError(
          f'{self._path} is truncated or was changed: it has {len(self._draws)} entries, and does'
          f' not begin with the {entries} that the checkpoint recorded. {REMEDY}.'
      )

  def _append(self, content: dict[str, Any]) -> None:
    sum_ = _sum(self._sums[-1] if self._sums else '', content)
    line = (json.dumps({**content, _SUM: sum_}) + '\n').encode()
    with self._writing():
      file, size = self._file.fileno(), self._size
      if os.fstat(file).st_size != size:
        raise LedgerError(f'{self._path} was changed since it was opened. Open it again.')
      try:
        if self._file.write(line) < len(line):
          raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file)
      finally:  # After an error or Ctrl-C a whole line counts, and a part of one is removed.
        if os.fstat(file).st_size == size + len(line):
          self._sums.append(sum_)
          self._size += len(line)
        else:
          self._file.truncate(size)

  @contextlib.contextmanager
  def _writing(self) -> Iterator[None]:
    try:
      yield
    except OSError as error:
      is_there = self._path.parent.exists()
      remedy = 'Make room or give access there' if is_there else 'Make its directory'
      raise LedgerError(
          f"{self._path} can't be written ({error.strerror}). {remedy}, and run the command again."
      ) from None


def check_independent(ledgers: Sequence[tuple[Any, Record]]) -> None:
  """Checks that no two of these runs share noise or rounds, so that they compose.

  The noise of a seeded run is a function of the seed, the round and the client. In the difference
  of two runs with one seed it cancels, and the updates of clients are left. A copied ledger begins
  with the rounds of the original; the files do not say where they part.

  Args:
    ledgers: Pairs of a name, such as the path, and the ledger's record.

  Raises:
    LedgerError: If two have the same seed, or one is a copy of another.
  """
  by_seed, by_id = {}, {}
  for name, record in ledgers:
    if record.spec.noise_multiplier and record.seeded and record.seed_digest in by_seed:
      raise LedgerError(
          f'{by_seed[record.seed_digest]} and {name} are of runs with the same seed: their noise is'
          ' equal and cancels in the difference, so no epsilon covers both. Use one of them, or'
          ' another seed.'
      )
    if record.id in by_id:
      raise LedgerError(
          f'{by_id[record.id]} and {name} are copies of one ledger, and do not record which'
          ' rounds they share. Name the longer one if the other run ended where it was copied; if'
          ' both continued, no epsilon computed here covers both.'
      )
    by_seed[record.seed_digest] = by_id[record.id] = name


def read(path: os.PathLike[str]) -> Record:
  """Reads a ledger; raises `LedgerError` if it is missing, changed, or can't be read."""
  try:
    content = pathlib.Path(path).read_bytes()
  except OSError as error:
    raise LedgerError(f'{path} can\'t be read ({error.strerror}). {REMEDY}.') from None
  lines = [line + b'\n' for line in content.split(b'\n')[:-1]]  # The last may be incomplete.
  sums, parsed = [], []
  for number, line in enumerate(lines, 1):
    try:
      entry = json.loads(line)
      sum_ = entry.pop(_SUM)
      expected = _sum(sums[-1] if sums else '', entry)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
      sum_, expected, entry = None, '', {}
    if sum_ != expected or entry.get(_ENTRY, -1) != number - 2:
      raise LedgerError(
          f'{path} was changed: line {number} does not continue the line before it. {REMEDY}.'
      )
    sums.append(sum_)
    parsed.append(entry)
  try:
    head, *entries = parsed
    fields = ledger_fields.parse_first_line(head)
    rounds, draws = ledger_fields.parse_entries(entries, fields['spec'], fields['seeded'])
    return Record(**fields, rounds=rounds, draws=draws, size=sum(map(len, lines)), sums=sums)
  # ArithmeticError: a specification that no encoding and no accountant can compute with.
  except (ValueError, KeyError, TypeError, RecursionError, ArithmeticError) as error:
    raise LedgerError(
        f'{path} is not a ledger of this version ({type(error).__name__}: {str(error).rstrip(".")}).'
        f' {REMEDY}.'
    ) from None


@functools.lru_cache
def _digest_of_seed(seed: int) -> str:
  """Returns a slow digest without a key; see the module's docstring."""
  return hashlib.scrypt(
      str(seed).encode(), salt=b'fedsmp_tff: seed of a ledger', n=2**14, r=8, p=1, dklen=16
  ).hex()


def _sum(before: str, content: dict[str, Any]) -> str:
  return hashlib.sha256((before + json.dumps(content)).encode()).hexdigest()
