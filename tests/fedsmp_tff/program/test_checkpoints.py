"""Tests of checkpoints: what is read is what was saved, or an error that names it."""

import itertools
import os
import pathlib
import pickle
import random
import resource
import shutil
import stat
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tree

from fedsmp_tff import state as state_lib
from fedsmp_tff.program import checkpoints as checkpoints_lib

_WEIGHTS = np.arange(4, 9, dtype=np.float32)  # Of `_state(4, value=4)`.


def _state(rounds_done, num=5, value=0.0):
  weights = np.arange(num, dtype=np.float32) + np.float32(value)
  return checkpoints_lib.ProgramState(
      rounds_done=np.int32(rounds_done),
      process=tff.learning.templates.LearningAlgorithmState(
          tff.learning.models.ModelWeights(
              (weights, np.float64(1 / 3)),
              (np.array([0.5, 3], tf.bfloat16.as_numpy_dtype), np.zeros([0, 2], np.float32)),
          ),
          (),
          {'learning_rate': np.float32(0.1), 'adapts': np.bool_(True)},
          state_lib.FedSmpState(
              np.int32(3), np.array([2**62, 1]), np.float64(0.5),
              np.arange(2, dtype=np.int32),
              (np.arange(4, dtype=np.float32), np.float32(0.5)),
          ),
          (),
      ),
      ledger={'entries': np.int64(3), 'sum': np.arange(32, dtype=np.uint8)},
      reporters={
          'own': {'best': np.float64(0.1), 'x.csv': np.arange(3, dtype=np.uint8)}, 'none': (),
      },
  )


@pytest.fixture(scope='module')
def saved_once(tmp_path_factory):
  path = tmp_path_factory.mktemp('saved') / 'lr[0.1]'  # Not a pattern.
  c = checkpoints_lib.Checkpoints(path, b'run')
  assert c.rounds_done() is None and c.latest(_state(0)) is None
  for t in range(5):
    c.save(_state(t, value=t))
  return path


@pytest.fixture
def saved(saved_once, tmp_path):
  return pathlib.Path(shutil.copytree(saved_once, tmp_path / 'saved[0]'))


def _latest(path, like=None, run_id=b'run'):
  return checkpoints_lib.Checkpoints(path, run_id).latest(_state(0) if like is None else like)


def _assert_equal(state, expected):
  tree.assert_same_structure(state, expected)
  for leaf, expected_leaf in zip(tree.flatten(state), tree.flatten(expected)):
    assert type(leaf) is type(expected_leaf) and leaf.dtype == expected_leaf.dtype
    np.testing.assert_array_equal(leaf, expected_leaf)


class TestCheckpoints:

  def test_latest_returns_the_last_state_bit_for_bit(self, saved):
    assert sorted(os.listdir(saved)) == ['round_2.npz', 'round_3.npz', 'round_4.npz']
    assert checkpoints_lib.Checkpoints(saved, b'run').rounds_done() == 4
    _assert_equal(_latest(saved), _state(4, value=4))

  def test_latest_is_by_rounds_and_not_by_name(self, tmp_path):
    c = checkpoints_lib.Checkpoints(tmp_path)
    for t in range(8, 12):
      c.save(_state(t))
    assert sorted(os.listdir(tmp_path)) == ['round_10.npz', 'round_11.npz', 'round_9.npz']
    assert _latest(tmp_path, run_id=b'').rounds_done == c.rounds_done() == 11

  def test_names_of_arrays_do_not_collide(self, tmp_path):
    def state(value):
      reporters = {'a/b': np.float32(value), 'a': {'b': np.float32(2 * value)}, 'a%2Fb': np.int8(0)}
      return checkpoints_lib.ProgramState(np.int32(0), (), (), reporters)

    checkpoints_lib.Checkpoints(tmp_path).save(state(1))
    _assert_equal(_latest(tmp_path, state(0), b''), state(1))

  def test_only_the_owner_can_read_checkpoints(self, tmp_path):
    before = os.umask(0)
    try:
      checkpoints_lib.Checkpoints(tmp_path / 'a').save(_state(0))
    finally:
      os.umask(before)
    made = tmp_path / 'a', *(tmp_path / 'a').iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o700, 0o600]

  def test_an_unfinished_file_is_ignored_and_replaced(self, saved):
    (saved / '.unfinished').write_bytes((saved / 'round_4.npz').read_bytes()[:-9])
    assert _latest(saved).rounds_done == 4
    checkpoints_lib.Checkpoints(saved, b'run').save(_state(5))
    assert sorted(os.listdir(saved)) == ['round_3.npz', 'round_4.npz', 'round_5.npz']

  def test_saving_a_round_twice_saves_it_once(self, saved):
    c = checkpoints_lib.Checkpoints(saved, b'run')
    state = c.latest(_state(0))
    before = (saved / 'round_4.npz').stat()
    c.save(state)
    assert (saved / 'round_4.npz').stat() == before
    c.save(state._replace(rounds_done=np.int32(6)))
    c.save(state._replace(rounds_done=np.int32(6)))
    assert sorted(os.listdir(saved)) == ['round_3.npz', 'round_4.npz', 'round_6.npz']

  def test_due_bounds_the_cost_to_a_twentieth_of_the_time(self, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoints_lib.time, 'monotonic', lambda: now[0])
    c = checkpoints_lib.Checkpoints(tmp_path)
    write = c._write

    def write_for_two_seconds(*args):
      write(*args)
      now[0] += 2.0

    monkeypatch.setattr(c, '_write', write_for_two_seconds)
    assert c.due()
    c.save(_state(0))
    now[0] += 39.9
    assert not c.due()
    now[0] += 0.2
    assert c.due()

  @pytest.mark.parametrize('value', [None, 'text', b'bytes'])
  def test_saving_a_state_without_numbers_is_refused(self, tmp_path, value):
    c = checkpoints_lib.Checkpoints(tmp_path)
    with pytest.raises(checkpoints_lib.CheckpointError, match='reporters/own/best of the state is'):
      c.save(_state(0)._replace(reporters={'own': {'best': value}}))

  def test_a_full_disk_leaves_earlier_checkpoints(self, saved):
    """No file may grow beyond a size: a real error of the operating system."""
    c = checkpoints_lib.Checkpoints(saved, b'run')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
      with pytest.raises(
          checkpoints_lib.CheckpointError, match=r"round_5.npz can't be written \(File too large\)"
      ):
        c.save(_state(5))
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(os.listdir(saved)) == ['round_2.npz', 'round_3.npz', 'round_4.npz']
    _assert_equal(_latest(saved), _state(4, value=4))

  def test_an_interrupt_at_any_line_leaves_whole_checkpoints(self, tmp_path):
    states = [checkpoints_lib.ProgramState(np.int32(t), np.float32(t), (), ()) for t in range(5)]
    found = []
    for number in itertools.count():
      c = checkpoints_lib.Checkpoints(path := tmp_path / str(number))
      for state in states[:-1]:
        c.save(state)
      if not _interrupted(c.save, states[4], number):
        break
      state = _latest(path, states[0], b'')
      _assert_equal(state, states[int(state.rounds_done)])
      found.append(int(state.rounds_done))
      c.save(states[4])
      _assert_equal(_latest(path, states[0], b''), states[4])
      assert sorted(os.listdir(path)) == ['round_2.npz', 'round_3.npz', 'round_4.npz']
    assert found == sorted(found) and {*found} == {3, 4}


def _interrupted(save, state, number):
  """Saves a state, with Ctrl-C at a line of the module; returns whether there were so many."""
  left = [number]

  def trace(frame, event, _):
    if frame.f_code.co_filename != checkpoints_lib.__file__:
      return None
    if event == 'line':
      if not left[0]:
        sys.settrace(None)
        raise KeyboardInterrupt
      left[0] -= 1
    return trace

  before = sys.gettrace()
  sys.settrace(trace)
  try:
    save(state)
  except KeyboardInterrupt:
    return True
  finally:
    sys.settrace(before)
  return False


def _cut(path, fraction):
  os.truncate(path, int(fraction * path.stat().st_size))


def _change(path, position):
  content = bytearray(path.read_bytes())
  content[position] ^= 1 << position % 8
  path.write_bytes(content)


class _Program:
  """A pickle that runs a program: it makes a file."""

  def __init__(self, path):
    self._path = str(path)

  def __reduce__(self):
    return open, (self._path, 'w')


class TestDamage:

  @pytest.mark.parametrize('damage', [
      lambda path: _cut(path, 0), lambda path: _cut(path, 0.5), lambda path: _cut(path, 0.99),
      lambda path: _change(path, path.read_bytes().index(_WEIGHTS.tobytes())),
      lambda path: path.write_bytes(b'other'),
  ], ids=['empty', 'half', 'cut', 'changed', 'other'])
  def test_a_damaged_file_is_named_with_the_remedy(self, saved, damage):
    damage(saved / 'round_4.npz')
    with pytest.raises(
        checkpoints_lib.CheckpointError,
        match=r"round_4.npz can't be read .*\. Remove it to resume from round 3\.$",
    ):
      _latest(saved)
    (saved / 'round_4.npz').unlink()
    assert _latest(saved).rounds_done == 3

  def test_no_changed_bit_changes_a_state(self, saved):
    path, refused = saved / 'round_4.npz', 0
    content = path.read_bytes()
    for position in random.Random(1).sample(range(len(content)), 200):
      _change(path, position)
      try:
        _assert_equal(_latest(saved), _state(4, value=4))
      except checkpoints_lib.CheckpointError:
        refused += 1
      path.write_bytes(content)
    assert refused > 100  # The others are bits without a meaning, such as dates.

  def test_reading_runs_no_program(self, saved, tmp_path):
    made = tmp_path / 'made'
    with np.load(saved / 'round_4.npz') as file:
      arrays = dict(file)
    arrays['rounds_done'] = np.array(_Program(made), object)
    np.savez(saved / 'round_4.npz', **arrays)
    with pytest.raises(checkpoints_lib.CheckpointError, match="can't be read .*allow_pickle=False"):
      _latest(saved)
    assert not made.exists()
    pickle.loads(pickle.dumps(_Program(made))).close()
    assert made.exists()

  def test_damage_to_the_only_checkpoint_says_start_over(self, saved):
    (saved / 'round_2.npz').unlink()
    (saved / 'round_3.npz').unlink()
    _cut(saved / 'round_4.npz', 0.5)
    with pytest.raises(checkpoints_lib.CheckpointError, match='or start over without'):
      _latest(saved)

  @pytest.mark.parametrize('like, difference', [
      (_state(0, num=6), r'weights/trainable/0 is float32\[5\], not float32\[6\]'),
      # Earlier versions had the reporters' states by position.
      *(
          (_state(0)._replace(reporters=reporters),
           'round_4.npz has other parts .* an earlier version .* start over')
          for reporters in ({}, tuple(_state(0).reporters.values()))
      ),
      (_state(0)._replace(rounds_done=np.int64(0)), r'rounds_done is int32\[\], not int64'),
  ])
  def test_a_checkpoint_of_another_model_is_refused(self, saved, like, difference):
    with pytest.raises(checkpoints_lib.CheckpointError, match=difference):
      _latest(saved, like)

  def test_bfloat16_is_not_float16(self, saved):
    like = _state(0)
    half = tree.map_structure(
        lambda leaf: np.float16(leaf) if leaf.dtype == tf.bfloat16.as_numpy_dtype else leaf, like
    )
    with pytest.raises(checkpoints_lib.CheckpointError, match=r'/0 is \|V2\[2\], not float16'):
      _latest(saved, half)

  def test_a_checkpoint_of_another_run_or_round_is_refused(self, saved):
    for run_id in (b'other', b''):
      with pytest.raises(checkpoints_lib.CheckpointError, match='of another run or round'):
        _latest(saved, run_id=run_id)
    shutil.copy(saved / 'round_2.npz', saved / 'round_4.npz')
    with pytest.raises(checkpoints_lib.CheckpointError, match='of another run or round'):
      _latest(saved)

  def test_an_impossible_directory_is_refused(self, tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(checkpoints_lib.CheckpointError, match="file/x can't be written"):
      checkpoints_lib.Checkpoints(tmp_path / 'file' / 'x')
