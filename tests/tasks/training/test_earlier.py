"""Tests of the sentence on an earlier run with the same flags."""

import fcntl
import json

from tasks.config import settings
from tasks.training import earlier
from tests.support import commands


def _parsed(arguments):
  return settings.parse(arguments[1:])[0]


class TestText:

  def test_finished_and_unfinished_runs_with_the_same_flags(self, data_dir, tmp_path):
    root = tmp_path / 'runs'
    asked = _parsed(commands.tiny(data_dir, root / 'b'))
    assert earlier.text(asked, root) is None
    assert commands.main(commands.tiny(data_dir, root / 'a')) == 0
    accuracy = json.loads((root / 'a' / 'summary.json').read_text())['final_test_accuracy']
    assert earlier.text(asked, root) == (
        f'{root}/a has a finished run with these flags, accuracy {100 * accuracy:.2f} %:'
        f' python -m tasks.report {root}/a shows it. This command starts a new run.'
    )
    assert earlier.text(_parsed(commands.tiny(data_dir, root / 'b', '--rounds=4')), root) is None
    (root / 'a' / 'summary.json').unlink()
    assert f'3 of 3 rounds: --output_dir={root}/a resumes it.' in earlier.text(asked, root)
    with open(root / 'a' / '.lock', 'w', encoding='utf-8') as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      assert 'in progress, 3 of 3 rounds. This command starts a new run' in earlier.text(asked, root)

  def test_a_command_without_output_dir_prints_it(
      self, data_dir, tmp_path, monkeypatch, capsys
  ):
    monkeypatch.chdir(tmp_path)
    arguments = [
        one for one in commands.tiny(data_dir, tmp_path, '--rounds=1')
        if not one.startswith('--output_dir')
    ]
    assert commands.main(arguments) == 0
    assert 'run with these flags' not in capsys.readouterr().out
    assert commands.main(arguments) == 0
    assert 'has a finished run with these flags' in capsys.readouterr().out
    assert len(list((tmp_path / 'runs').iterdir())) == 2
