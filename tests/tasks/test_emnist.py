"""Tests of federated EMNIST through TFF's loader, from a small database in its cache."""

import numpy as np
import pytest

from tasks import emnist
from tasks import errors
from tests import small_data


class TestExecution:

  def test_a_writer_is_a_client(self, tmp_path, set_flags):
    set_flags(f'--emnist_cache_dir={tmp_path}')
    made = small_data.write_tff_emnist(
        tmp_path, {'train': {'a': 3, 'b': 5}, 'test': {'a': 1, 'b': 2}}
    )
    data = emnist.TASK.load(0, 0)
    assert len(data.clients) == 2
    for (x, y), (images, labels) in zip(data.clients, made['train'].values()):
      assert x.dtype == np.uint8 and y.dtype == np.int32
      np.testing.assert_array_equal(x[..., 0], images)
      np.testing.assert_array_equal(y, labels)
    assert len(data.test[0]) == 3
    assert len(emnist.TASK.load(0, 4).public[0]) == 4

  def test_no_database(self, tmp_path, set_flags, monkeypatch):
    set_flags(f'--emnist_cache_dir={tmp_path}')
    # What a machine without a network says; nothing is sent.
    import urllib.request

    def refuse(*_):
      raise OSError('no network')

    monkeypatch.setattr(urllib.request, 'urlopen', refuse)
    with pytest.raises(
        errors.InputError, match='emnist_all.sqlite could not be.*no network.*--emnist'
    ):
      emnist.TASK.load(0, 0)

  def test_a_damaged_database(self, tmp_path, set_flags):
    set_flags(f'--emnist_cache_dir={tmp_path}')
    (tmp_path / 'emnist_all.sqlite').write_bytes(b'not a database' * 100)
    with pytest.raises(errors.InputError, match='emnist_all.sqlite.*delete it'):
      emnist.TASK.load(0, 0)
