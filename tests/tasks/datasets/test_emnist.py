"""Tests of federated EMNIST through TFF's loader, from a small database in its cache."""

import os
import urllib.request

import numpy as np
import pytest

from tasks import errors
from tasks.datasets import emnist
from tasks.datasets import task as task_lib
from tests.support import small_data


def _load(directory, num_public=0, num_validation=0):
  split = task_lib.Split(0, num_public, num_validation, str(directory))
  return emnist.TASK.load(None, split)


def _write(directory, train, test, **kwargs):
  return small_data.write_tff_emnist(directory, {'train': train, 'test': test}, **kwargs)


class TestExecution:

  def test_a_writer_is_a_client_or_set_aside(self, tmp_path):
    writers = {f'writer {i}': 1 + i % 5 for i in range(60)}
    parts = _write(tmp_path, writers, dict.fromkeys(writers, 2))
    data = _load(tmp_path, 20, 10)
    small_data.assert_nobody_is_in_two_sets(data)
    assert len(data.public[0]) == 20 and len(data.test[0]) == 10
    # Writers are set aside for the test set, too, in whose place the validation set is.
    assert _load(tmp_path, 20).test_owners.ids.isdisjoint(
        {*data.client_ids, *data.public_owners.ids, *data.test_owners.ids}
    )
    writer_of = {
        image.tobytes(): name
        for part in parts.values() for name, (images, _) in part.items() for image in images
    }
    for (x, y), name in zip(data.clients, data.client_ids):
      assert x.dtype == np.uint8 and y.dtype == np.int32
      images, labels = (np.concatenate([p[name][j] for p in parts.values()]) for j in range(2))
      np.testing.assert_array_equal(x[..., 0], images)
      np.testing.assert_array_equal(y, labels)
    for (x, _), owners in ((data.test, data.test_owners), (data.public, data.public_owners)):
      assert {writer_of[image.tobytes()] for image in x[..., 0]} <= owners.ids

  def test_no_text_depends_on_the_size_of_a_client(self, tmp_path):
    sizes, texts = {f'writer {i}': 2 for i in range(12)}, set()
    for num in (2, 5):
      (directory := tmp_path / str(num)).mkdir()
      sizes['writer 5'] = num
      _write(directory, sizes, sizes)
      data = _load(directory)
      assert 'writer 5' in data.client_ids and not data.test_outside_guarantee
      texts.add((str(data.rows()), str(data.as_dict())))
    assert len(texts) == 1

  def test_a_writer_in_only_one_part_is_refused(self, tmp_path):
    _write(tmp_path, {'a': 3, 'b': 5}, {'a': 1})
    with pytest.raises(errors.InputError, match="client 'b': it is in only one of the train"):
      _load(tmp_path)

  def test_a_missing_database_is_refused(self, tmp_path, monkeypatch):
    def refuse(*_):  # As a machine without a network does; nothing is sent.
      raise OSError('no network')

    monkeypatch.setattr(urllib.request, 'urlopen', refuse)
    with pytest.raises(
        errors.InputError, match="emnist_all.sqlite is missing or can't .*no network.*--data_dir"
    ):
      _load(tmp_path)

  @pytest.mark.parametrize('fraction', [0, 0.6])
  def test_a_damaged_database_is_refused(self, tmp_path, fraction):
    _write(tmp_path, {'a': 30, 'b': 50}, {'a': 10, 'b': 20})
    path = tmp_path / 'emnist_all.sqlite'
    os.truncate(path, int(fraction * path.stat().st_size))
    if fraction == 0:
      path.write_bytes(b'not a database' * 100)
    with pytest.raises(errors.InputError, match='emnist_all.sqlite.*Delete it'):
      _load(tmp_path)

  @pytest.mark.parametrize('change, reason', [
      (lambda pixels, label: label.__setitem__(0, 62), 'label 62 is not one of 0 to 61'),
      (lambda pixels, label: pixels.__setitem__(5, 255.0), 'a pixel is not a number'),
      (lambda pixels, label: label.clear(), 'label'),
  ])
  def test_bad_data_are_named_with_client_and_file(self, tmp_path, change, reason):
    _write(
        tmp_path, {'a': 3, 'b': 5}, {'a': 1, 'b': 2},
        change=lambda writer, *image: change(*image) if writer == 'b' else None,
    )
    with pytest.raises(
        errors.InputError, match=f"emnist_all.sqlite .*client 'b': .*{reason}.*Delete it"
    ) as error:
      _load(tmp_path)
    assert '\n' not in str(error.value)
