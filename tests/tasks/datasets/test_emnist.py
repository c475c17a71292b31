"""Tests of federated EMNIST through TFF's loader, from a small database in its cache."""

import os

import numpy as np
import pytest

from tasks import errors
from tasks.datasets import emnist
from tasks.models import initializers
from tests.support import small_data


class TestComputation:

  def test_tffs_models_are_keras(self, set_flags):
    set_flags('--emnist_model=tff_2nn')
    with pytest.raises(
        errors.InputError, match='--initializer=torch is of no use with --emnist_model=tff_2nn'
    ):
      emnist.TASK.build_model(initializers.TorchInitializer(0))


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

  @pytest.mark.parametrize(
      'change, reason',
      [
          (lambda pixels, label: label.__setitem__(0, 62), 'label 62 is not one of 0 to 61'),
          (lambda pixels, label: label.__setitem__(0, -1), 'label -1 is not one of'),
          (lambda pixels, label: pixels.__setitem__(5, np.nan), 'a pixel is not a number'),
          (lambda pixels, label: pixels.__setitem__(5, 255.0), 'a pixel is not a number'),
          (lambda pixels, label: pixels.pop(), 'pixels'),
          (lambda pixels, label: label.clear(), 'label'),
      ],
  )
  def test_a_client_s_bad_data_are_named_with_the_file(
      self, tmp_path, set_flags, change, reason
  ):
    set_flags(f'--emnist_cache_dir={tmp_path}')
    small_data.write_tff_emnist(
        tmp_path, {'train': {'a': 3, 'b': 5}, 'test': {'a': 1, 'b': 2}},
        change=lambda writer, *image: change(*image) if writer == 'b' else None,
    )
    with pytest.raises(
        errors.InputError, match=f"emnist_all.sqlite .*client 'b': .*{reason}.*delete it"
    ) as error:
      emnist.TASK.load(0, 0)
    assert '\n' not in str(error.value)

  @pytest.mark.parametrize('left', [0.3, 0.6, 0.95])
  def test_a_cut_database(self, tmp_path, set_flags, left):
    set_flags(f'--emnist_cache_dir={tmp_path}')
    small_data.write_tff_emnist(
        tmp_path, {'train': {'a': 30, 'b': 50}, 'test': {'a': 10, 'b': 20}}
    )
    path = tmp_path / 'emnist_all.sqlite'
    os.truncate(path, int(left * path.stat().st_size))
    with pytest.raises(errors.InputError, match='emnist_all.sqlite.*delete it'):
      emnist.TASK.load(0, 0)
