"""Tests of locks of directories, and of their descriptors in the environment."""

import os
import pathlib

import pytest

from tasks.cli import locks


@pytest.mark.parametrize('value', ['', 'abc', '-1', '0', '1', '987654', '9' * 30])
def test_a_wrong_descriptor_is_ignored(value, tmp_path, monkeypatch):
  monkeypatch.setenv(locks.DESCRIPTOR, value)
  with locks.open_locked(tmp_path) as lock:
    assert locks.DESCRIPTOR not in os.environ
    assert pathlib.Path(lock.name) == tmp_path / locks.LOCK


def test_the_descriptor_of_another_file_does_not_replace_a_lock(tmp_path, monkeypatch):
  other = tmp_path / 'precious.txt'
  other.write_text('precious')
  with open(other, 'a+', encoding='utf-8') as file, locks.open_locked(tmp_path):
    monkeypatch.setenv(locks.DESCRIPTOR, str(file.fileno()))
    assert locks.open_locked(tmp_path) is None
  assert other.read_text() == 'precious'


def test_a_descriptor_without_the_lock_does_not_take_it(tmp_path, monkeypatch):
  with locks.open_locked(tmp_path) as lock:
    monkeypatch.setenv(locks.DESCRIPTOR, str(os.open(lock.name, os.O_RDWR)))
    assert locks.open_locked(tmp_path) is None


def test_a_link_is_not_followed(tmp_path):
  other = tmp_path / 'precious.txt'
  other.write_text('precious')
  (tmp_path / locks.LOCK).symlink_to(other)
  with pytest.raises(OSError):
    locks.open_locked(tmp_path)


def test_a_lock_whose_file_was_removed_is_taken_anew(tmp_path, monkeypatch):
  flock, opened = locks.fcntl.flock, []

  def remove_once(file, operation):  # As its last owner may, between open and lock.
    opened.append(file)
    if len(opened) == 1:
      (tmp_path / locks.LOCK).unlink()
    flock(file, operation)

  monkeypatch.setattr(locks.fcntl, 'flock', remove_once)
  with locks.open_locked(tmp_path) as lock:
    assert len(opened) == 2 and os.path.samestat(os.fstat(lock.fileno()), os.stat(lock.name))
    monkeypatch.setattr(locks.fcntl, 'flock', flock)
    assert locks.open_locked(tmp_path) is None
