"""Tests of Fashion-MNIST from small IDX files."""

import gzip

import numpy as np
import pytest

from tasks import errors
from tasks.datasets import fashion_mnist
from tasks.datasets import task as task_lib
from tasks.models import initializers
from tests.support import small_data


def _load(directory, num_public=0):
  return fashion_mnist.load(12, task_lib.Split(0, num_public, directory=str(directory)))


def _copy(data_dir, folder, packed):
  """Copies the files to another folder, packed or not."""
  folder.mkdir(parents=True)
  for path in data_dir.iterdir():
    content = path.read_bytes()
    if packed:
      (folder / path.name).write_bytes(content)
    else:
      (folder / path.stem).write_bytes(gzip.decompress(content))


class TestExecution:

  def test_all_images_go_to_clients_and_the_public_set(self, data_dir):
    parts = small_data.write_fashion_mnist(data_dir)
    data = _load(data_dir, 8)
    assert len(data.clients) == 12 and len(data.public[0]) == 8
    images, labels = map(np.concatenate, zip(*data.clients, data.public))
    assert images.dtype == np.uint8 and labels.dtype == np.int32

    def rows(x, y):
      return sorted(image.tobytes() + bytes([label]) for image, label in zip(x, y))

    assert rows(images, labels) == rows(*parts['train'])
    np.testing.assert_array_equal(data.test[0][..., 0], parts['t10k'][0])
    np.testing.assert_array_equal(data.test[1], parts['t10k'][1])

  def test_standardize_option_changes_what_the_model_sees(self):
    images = np.random.default_rng(0).integers(0, 256, (2, 28, 28, 1), np.uint8)
    build, options = fashion_mnist.TASK.build_model, fashion_mnist.TASK.options
    plain, scaled = (
        build(options(standardize=standardize), initializers.KerasInitializer(0))
        for standardize in (False, True)
    )
    one, two = (model.predict_on_batch(plain.initial_weights, images) for model in (plain, scaled))
    assert np.abs(one - two).max() > 0.1

  def test_dirichlet_option_skews_labels(self, data_dir):
    small_data.write_fashion_mnist(data_dir)
    split = task_lib.Split(0, 8, directory=str(data_dir))
    small_data.assert_labels_are_skewed(*(
        fashion_mnist.TASK.load(fashion_mnist.TASK.options(dirichlet=alpha), split)
        for alpha in (None, 0.1)
    ))

  @pytest.mark.parametrize('folder, packed', [
      ('', False), ('FashionMNIST/raw', False), ('FashionMNIST/raw', True),
  ])
  def test_unpacked_and_torchvision_files_give_equal_data(
      self, data_dir, tmp_path, folder, packed
  ):
    _copy(data_dir, tmp_path / 'other' / folder, packed)
    small_data.assert_equal_data(_load(tmp_path / 'other', 8), _load(data_dir, 8))

  def test_keras_files_are_read_without_debian_package(
      self, data_dir, tmp_path, monkeypatch
  ):
    monkeypatch.setenv('HOME', str(tmp_path))
    _, *others = fashion_mnist._DIRECTORIES
    monkeypatch.setattr(fashion_mnist, '_DIRECTORIES', (tmp_path / 'no_package', *others))
    split = task_lib.Split(0)
    with pytest.raises(errors.InputError, match='no_package/train-images.*gz does not exist'):
      fashion_mnist.load(12, split)
    _copy(data_dir, tmp_path / '.keras/datasets/fashion-mnist', packed=True)
    small_data.assert_equal_data(fashion_mnist.load(12, split), _load(data_dir))

  @pytest.mark.parametrize('damage', [
      lambda b: b[: len(b) // 2],
      lambda b: b'not gzip',
      lambda b: gzip.compress(b)[:12] + b'\xff' * 50,
      lambda b: gzip.compress(gzip.decompress(b)[: -28 * 28]),
      lambda b: gzip.compress(b'\0\0\x0d\3' + gzip.decompress(b)[4:]),
      lambda b: gzip.compress(b'\0\0\x08\3\0\0'),
  ])
  def test_a_damaged_or_missing_file_is_refused(self, data_dir, damage):
    path = data_dir / 'train-images-idx3-ubyte.gz'
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(errors.InputError, match="train-images.* can't be read.*Download it again"):
      _load(data_dir)
    path.unlink()
    with pytest.raises(errors.InputError, match='train-images.* does not exist. Install.*dataset-'):
      _load(data_dir)

  @pytest.mark.parametrize('num, label, match', [(3, 0, '3 labels'), (60, 10, 'label 10')])
  def test_labels_that_do_not_fit_are_refused(self, data_dir, num, label, match):
    path = data_dir / 'train-labels-idx1-ubyte.gz'
    small_data.write_idx(path, np.full(num, label, np.uint8))
    with pytest.raises(errors.InputError, match=f'train-labels.*{match}'):
      _load(data_dir)
