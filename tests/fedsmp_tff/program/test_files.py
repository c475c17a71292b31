"""Tests of writing files at once."""

import os
import stat

import pytest

from fedsmp_tff.program import files


def _fail(file):
  file.write(b'half')
  raise OSError('no space')


def test_a_file_appears_with_its_content_for_its_owner_alone(tmp_path):
  before = os.umask(0)
  try:
    files.replace(tmp_path / 'a', lambda file: file.write(b'whole'))
  finally:
    os.umask(before)
  assert (tmp_path / 'a').read_bytes() == b'whole'
  assert stat.S_IMODE((tmp_path / 'a').stat().st_mode) == 0o600
  assert os.listdir(tmp_path) == ['a']


def test_a_failure_leaves_the_old_file(tmp_path):
  (tmp_path / 'a').write_bytes(b'old')
  with pytest.raises(OSError, match='no space'):
    files.replace(tmp_path / 'a', _fail)
  assert (tmp_path / 'a').read_bytes() == b'old'
  assert os.listdir(tmp_path) == ['a']


def test_a_link_in_place_of_an_unfinished_file_is_not_followed(tmp_path):
  (tmp_path / 'theirs').write_bytes(b'kept')
  (tmp_path / '.unfinished').symlink_to(tmp_path / 'theirs')
  files.replace(tmp_path / 'a', lambda file: file.write(b'whole'))
  assert (tmp_path / 'theirs').read_bytes() == b'kept'
  assert not (tmp_path / 'a').is_symlink() and (tmp_path / 'a').read_bytes() == b'whole'


def test_a_file_that_appears_in_between_is_not_followed(tmp_path, monkeypatch):
  (tmp_path / 'theirs').write_bytes(b'kept')
  unlink = files.pathlib.Path.unlink

  def link_after(path, missing_ok=False):
    unlink(path, missing_ok=missing_ok)
    if not path.is_symlink():
      path.symlink_to(tmp_path / 'theirs')

  monkeypatch.setattr(files.pathlib.Path, 'unlink', link_after)
  with pytest.raises(FileExistsError):
    files.replace(tmp_path / 'a', lambda file: file.write(b'whole'))
  assert (tmp_path / 'theirs').read_bytes() == b'kept'
