"""Tests of federated EMNIST through TFF's loader, from a small database in its cache."""

import json
import os

import numpy as np
import pytest

from tasks import errors
from tasks.datasets import emnist
from tasks.models import initializers
from tests.support import commands
from tests.support import small_data


class TestComputation:

  def test_tffs_models_are_keras(self, set_flags):
    set_flags('--emnist_model=tff_2nn')
    with pytest.raises(
        errors.InputError, match='--initializer=torch has no effect with --emnist_model=tff_2nn'
    ):
      emnist.TASK.build_model(initializers.TorchInitializer(0))


class TestExecution:

  def _made(self, tmp_path, num_writers=60):
    writers = {f'writer {i}': 1 + i % 5 for i in range(num_writers)}
    return small_data.write_tff_emnist(
        tmp_path, {'train': writers, 'test': {writer: 2 for writer in writers}}
    )

  def test_a_writer_is_a_client_or_set_aside(self, tmp_path, set_flags):
    set_flags(f'--emnist_cache_dir={tmp_path}')
    made = self._made(tmp_path)
    data = emnist.TASK.load(0, 20, 10)
    small_data.assert_nobody_is_in_two_sets(data)
    assert len(data.public[0]) == 20 and len(data.test[0]) == 10
    # Some are set aside for the test set, too, which held-out examples take the place of.
    assert set(emnist.TASK.load(0, 20).test_owners.ids).isdisjoint(
        {*data.client_ids, *data.public_owners.ids, *data.test_owners.ids}
    )

    def images(names):
      return [i.tobytes() for part in made.values() for name in names for i in part[name][0]]

    whose = {image: name for name in made['train'] for image in images([name])}
    for (x, y), name in zip(data.clients, data.client_ids):
      assert x.dtype == np.uint8 and y.dtype == np.int32
      expected = [np.concatenate([part[name][j] for part in made.values()]) for j in range(2)]
      np.testing.assert_array_equal(x[..., 0], expected[0])
      np.testing.assert_array_equal(y, expected[1])
    for (x, _), owners in ((data.test, data.test_owners), (data.public, data.public_owners)):
      assert {whose[image.tobytes()] for image in x[..., 0]} <= owners.ids

  def test_tests_per_client_are_the_paper_s(self, tmp_path, set_flags):
    set_flags(f'--emnist_cache_dir={tmp_path}', '--emnist_test=per_client')
    made = self._made(tmp_path)
    data = emnist.TASK.load(0, 0)
    assert len(data.clients) == 60 and data.test_outside_guarantee
    for (x, _), name in zip(data.clients, data.client_ids):
      np.testing.assert_array_equal(x[..., 0], made['train'][name][0])
    assert len(data.test[0]) == 120

  @pytest.mark.parametrize('whose', ['outsiders', 'per_client'])
  def test_a_run_says_no_more_of_a_client_s_data_than_is_marked(self, tmp_path, capsys, whose):
    def run(number, sizes):
      cache, out = tmp_path / f'cache {number}', tmp_path / f'run {number}'
      cache.mkdir()
      small_data.write_tff_emnist(cache, {'train': sizes, 'test': sizes})
      assert commands.main([
          'run', '--task=emnist', '--algorithm=fedsmp_randk', '--rounds=1', '--seed=1',
          '--clients_per_round=2', '--emnist_filters=2,2', '--emnist_dense_units=4',
          f'--emnist_test={whose}', f'--emnist_cache_dir={cache}', f'--output_dir={out}',
      ]) == 0
      config = json.loads((out / 'config.json').read_text())
      for name in ('run_id', 'flags', 'task_flags', 'record'):  # Of the command, not of data.
        del config[name]
      summary = json.loads((out / 'summary.json').read_text())
      assert summary['test_outside_guarantee'] == config['test_outside_guarantee']
      plan, _ = capsys.readouterr().out.split('output: ', 1)
      return config, plan

    sizes = {f'writer {i}': 2 for i in range(12)}
    one, other = run(1, sizes), run(2, dict(sizes, **{'writer 5': 5}))  # Writer 5 is a client.
    assert one == other
    config, plan = one
    assert config['num_clients'] == (12 if whose == 'per_client' else 10)
    assert config['test_outside_guarantee'] == (whose == 'per_client')
    marked = 'columns test_* are exact functions of clients\' own examples, OUTSIDE (epsilon, delta)'
    assert (marked in ' '.join(plan.split())) == (whose == 'per_client')

  def test_too_many_public_examples(self, tmp_path, set_flags):
    set_flags(f'--emnist_cache_dir={tmp_path}')
    small_data.write_tff_emnist(
        tmp_path, {part: {'a': 3, 'b': 5, 'c': 4} for part in ('train', 'test')}
    )
    with pytest.raises(errors.InputError, match='--public_examples=99 needs more .* 2 writers'):
      emnist.TASK.load(0, 99)
    with pytest.raises(errors.InputError, match='too few writers'):
      emnist.TASK.load(0, 11)

  def test_a_writer_in_one_part_alone(self, tmp_path, set_flags):
    set_flags(f'--emnist_cache_dir={tmp_path}')
    small_data.write_tff_emnist(tmp_path, {'train': {'a': 3, 'b': 5}, 'test': {'a': 1}})
    with pytest.raises(errors.InputError, match="client 'b': it is in one of the train and test"):
      emnist.TASK.load(0, 0)

  def test_no_database(self, tmp_path, set_flags, monkeypatch):
    set_flags(f'--emnist_cache_dir={tmp_path}')
    # What a machine without a network says; nothing is sent.
    import urllib.request

    def refuse(*_):
      raise OSError('no network')

    monkeypatch.setattr(urllib.request, 'urlopen', refuse)
    with pytest.raises(
        errors.InputError, match="emnist_all.sqlite is missing or can't be read .*no network.*--emnist"
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
