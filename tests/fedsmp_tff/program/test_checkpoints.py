"""Tests of checkpoints: what is read is what was saved, or an error that names it."""

import asyncio
import contextlib
import os
import pathlib
import shutil
import signal

import numpy as np
import pytest
import tensorflow_federated as tff
import tree

from fedsmp_tff.mechanism import state as state_lib
from fedsmp_tff.program import checkpoints as checkpoints_lib


def _state(rounds_done, num=5, value=0.0):
  weights = np.arange(num, dtype=np.float32) + np.float32(value)
  return checkpoints_lib.ProgramState(
      run_id=b'',
      rounds_done=np.int32(rounds_done),
      process=tff.learning.templates.LearningAlgorithmState(
          tff.learning.models.ModelWeights((weights, np.float64(1 / 3)), ()),
          (),
          {'learning_rate': np.float32(0.1)},
          state_lib.FedSmpState(
              np.int32(3), np.array([2**62, 1]), np.float64(0.5),
              np.arange(2, dtype=np.int32),
              (np.arange(4, dtype=np.float32), np.float32(0.5)),
          ),
          (),
      ),
      ledger={'entries': np.int64(3), 'sum': np.arange(32, dtype=np.uint8)},
      reporters=({'best': np.float64(0.1), 'x.csv': np.arange(3, dtype=np.uint8)}, ()),
  )


@pytest.fixture(scope='module')
def saved_once(tmp_path_factory):
  path = tmp_path_factory.mktemp('saved')
  with checkpoints_lib.Checkpoints(path, b'run') as c:
    assert c.empty() and c.latest(_state(0)) is None
    for t in range(5):
      c.save(_state(t, value=t))
  return path


@pytest.fixture
def saved(saved_once, tmp_path):
  return pathlib.Path(shutil.copytree(saved_once, tmp_path / 'saved'))


def _latest(path, like=None, run_id=b'run'):
  with checkpoints_lib.Checkpoints(path, run_id) as c:
    assert not c.empty()
    return c.latest(_state(0) if like is None else like)


class TestCheckpoints:

  def test_what_was_saved_last_is_found_bit_for_bit(self, saved):
    assert sorted(os.listdir(saved)) == ['round_2', 'round_3', 'round_4']
    latest, expected = _latest(saved), _state(4, value=4)._replace(run_id=b'run')
    tree.assert_same_structure(latest, expected)
    for leaf, expected_leaf in zip(tree.flatten(latest), tree.flatten(expected)):
      assert np.asarray(leaf).dtype == np.asarray(expected_leaf).dtype
      np.testing.assert_array_equal(leaf, expected_leaf)

  def test_what_a_killed_writer_left_is_removed(self, saved):
    shutil.copytree(saved / 'round_4', saved / 'round_5_temp1234')
    assert _latest(saved).rounds_done == 4
    assert sorted(os.listdir(saved)) == ['round_2', 'round_3', 'round_4']

  def test_saving_a_round_twice_saves_it_once(self, saved):
    with checkpoints_lib.Checkpoints(saved, b'run') as c:
      state = c.latest(_state(0))
      c.save(state)
      c.save(state._replace(rounds_done=np.int32(6)))
      c.save(state._replace(rounds_done=np.int32(6)))
    assert sorted(os.listdir(saved)) == ['round_3', 'round_4', 'round_6']

  def test_due_when_it_costs_less_than_a_twentieth_of_the_time(self, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoints_lib.time, 'monotonic', lambda: now[0])
    with checkpoints_lib.Checkpoints(tmp_path) as c:
      manager_save = c._manager.save

      async def save_for_two_seconds(*args):
        await manager_save(*args)
        now[0] += 2.0

      monkeypatch.setattr(c._manager, 'save', save_for_two_seconds)
      assert c.due()
      c.save(_state(0))
      now[0] += 39.9
      assert not c.due()
      now[0] += 0.2
      assert c.due()

  @pytest.mark.parametrize('seconds', [0.001, 0.03])
  def test_an_interrupt_while_saving_leaves_a_whole_checkpoint(self, tmp_path, seconds):
    def interrupt(*_):
      raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
      with checkpoints_lib.Checkpoints(tmp_path, b'run') as c:
        c.save(_state(0))
        with contextlib.suppress(KeyboardInterrupt):
          signal.setitimer(signal.ITIMER_REAL, seconds)
          c.save(_state(1, value=1))
          signal.setitimer(signal.ITIMER_REAL, 0)
        c.save(_state(1, value=1))
        c.save(_state(2, value=2))
    finally:
      signal.signal(signal.SIGALRM, before)
    assert sorted(os.listdir(tmp_path)) == ['round_0', 'round_1', 'round_2']
    assert _latest(tmp_path).process.global_model_weights.trainable[0][0] == 2

  def test_within_a_loop_that_runs(self, tmp_path):
    async def save():  # As in a notebook.
      with checkpoints_lib.Checkpoints(tmp_path, b'run') as c:
        c.save(_state(0))

    asyncio.run(save())
    assert _latest(tmp_path).rounds_done == 0


def _cut(path, fraction):
  os.truncate(path, int(fraction * path.stat().st_size))


def _change(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 3] ^= 1
  path.write_bytes(content)


class TestDamage:

  @pytest.mark.parametrize('damage', [
      lambda path: _cut(path, 0), lambda path: _cut(path, 0.99), _change, os.unlink
  ], ids=['empty', 'cut', 'changed', 'missing'])
  @pytest.mark.parametrize('name', ['variables/variables.index', 'variables/*data*'])
  def test_a_damaged_file_is_named_with_the_remedy(self, saved, name, damage):
    [path] = (saved / 'round_4').glob(name)
    damage(path)
    with pytest.raises(
        checkpoints_lib.CheckpointError,
        match=r"round_4 can't be read .*\. Remove it to resume from round 3\.$",
    ):
      _latest(saved)
    shutil.rmtree(saved / 'round_4')
    assert _latest(saved).rounds_done == 3

  def test_the_only_one(self, saved):
    shutil.rmtree(saved / 'round_2')
    shutil.rmtree(saved / 'round_3')
    _cut(saved / 'round_4' / 'saved_model.pb', 0.5)
    with pytest.raises(checkpoints_lib.CheckpointError, match='or start over without'):
      _latest(saved)

  @pytest.mark.parametrize('like, difference', [
      (_state(0, num=6), r'weights/trainable/0 is float32\[5\], not float32\[6\]'),
      (
          _state(0)._replace(reporters=()),
          'round_4 has other parts .* an earlier version .* start over',
      ),
      (_state(0)._replace(rounds_done=np.int64(0)), r'rounds_done is int32\[\], not int64'),
  ])
  def test_another_model_s(self, saved, like, difference):
    with pytest.raises(checkpoints_lib.CheckpointError, match=difference):
      _latest(saved, like)

  def test_another_run_s_or_round_s(self, saved):
    with pytest.raises(checkpoints_lib.CheckpointError, match='of another run or round'):
      _latest(saved, run_id=b'other')
    shutil.rmtree(saved / 'round_4')
    shutil.copytree(saved / 'round_2', saved / 'round_4')
    with pytest.raises(checkpoints_lib.CheckpointError, match='of another run or round'):
      _latest(saved)

  def test_a_directory_that_can_not_be_made(self, tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(checkpoints_lib.CheckpointError, match="file/x can't be written"):
      checkpoints_lib.Checkpoints(tmp_path / 'file' / 'x')
