"""Tests of SVHN from small .mat files."""

import h5py
import numpy as np
import pytest
import scipy.io

from tasks import errors
from tasks.datasets import svhn
from tasks.datasets import task as task_lib
from tests.support import small_data


def _load(directory, num_public=0, **own):
  split = task_lib.Split(0, num_public, directory=directory)
  return svhn.TASK.load(svhn.TASK.options(**own), split)


@pytest.fixture
def parts(tmp_path, monkeypatch):
  monkeypatch.setattr(svhn, '_NUM_CLIENTS', 4)
  return small_data.write_svhn(tmp_path, {'train': 11, 'extra': 7, 'test': 5})


class TestExecution:

  def test_images_are_transposed_and_label_ten_is_zero(self, parts, tmp_path):
    data = _load(tmp_path, 2)
    assert [len(x) for x, _ in data.clients] == [4] * 4 and len(data.public[0]) == 2
    assert data.clients[0][0].shape[1:] == (32, 32, 3)
    images, labels = parts['test']
    x, y = data.test
    np.testing.assert_array_equal(x[3], images[..., 3])
    np.testing.assert_array_equal(y, np.where(labels == 10, 0, labels)[:, 0])
    assert x.dtype == np.uint8 and y.dtype == np.int32

  def test_dirichlet_option_skews_labels(self, parts, tmp_path):
    even, skewed = _load(tmp_path, 2), _load(tmp_path, 2, dirichlet=0.1)
    assert 'Dirichlet(0.1)' in skewed.source and 'Dirichlet' not in even.source
    assert even.split_digest != skewed.split_digest

  def test_matlab_7_3_files_give_equal_data(self, parts, tmp_path):
    expected = _load(tmp_path, 2)
    for path in tmp_path.glob('*.mat'):
      variables = scipy.io.loadmat(path)
      with h5py.File(path, 'w', userblock_size=512) as file:
        for name in ('X', 'y'):
          file[name] = variables[name].T
      with open(path, 'r+b') as file:  # The version, 0x0200, and the order of bytes.
        file.write(b'MATLAB 7.3 MAT-file'.ljust(124) + b'\x00\x02IM')
      with pytest.raises(NotImplementedError):
        scipy.io.loadmat(path)
    small_data.assert_equal_data(_load(tmp_path, 2), expected)

  def test_a_missing_file_or_directory_is_refused(self, tmp_path):
    for directory in (None, tmp_path):
      with pytest.raises(
          errors.InputError, match='train_32x32.mat does not exist. Download .*http.*--data_dir'
      ):
        _load(directory)

  def test_damaged_files_are_refused(self, parts, tmp_path):
    path = tmp_path / 'extra_32x32.mat'
    content = path.read_bytes()
    for damaged in (content[:200], b'', b'not a mat file' * 20):
      path.write_bytes(damaged)
      with pytest.raises(errors.InputError, match='extra_32x32.mat can\'t be read'):
        _load(tmp_path)
    scipy.io.savemat(path, {'X': np.zeros((32, 32, 3, 2)), 'y': np.ones((2, 1))})
    with pytest.raises(errors.InputError, match='extra_32x32.mat.*images float64'):
      _load(tmp_path)

  @pytest.mark.parametrize('label', [0, 11, 2.5, np.nan])
  def test_invalid_labels_are_refused(self, parts, tmp_path, label):
    path = tmp_path / 'extra_32x32.mat'
    images = np.zeros((32, 32, 3, 2), np.uint8)
    scipy.io.savemat(path, {'X': images, 'y': np.array([[1], [label]])})
    with pytest.raises(errors.InputError, match=f'extra_32x32.mat.*label {label}'):
      _load(tmp_path)
