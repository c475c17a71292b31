"""Tests of files of weights."""

import numpy as np
import pytest

from tasks import errors
from tasks.models import weights


@pytest.mark.parametrize('content', [
    b'', b'PK\x03\x04', b'\x93NUMPY', b'x' * 100, [np.zeros([3, 2], np.float32)],
    [np.zeros([2, 3], np.float64)], [np.zeros([2, 3], np.float32)] * 2, [],
    [np.array([print], object)],
])
def test_weights_of_another_form_are_refused(tmp_path, content):
  path, like = tmp_path / 'weights.npz', ([np.zeros([2, 3], np.float32)], [])
  if isinstance(content, bytes):
    path.write_bytes(content)
  else:
    np.savez(path, *content)
  with pytest.raises(errors.InputError, match=r"weights.npz can't be read \(.*Restore it."):
    weights.read(path, like, 'Restore it.')
