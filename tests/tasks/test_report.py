"""Tests of the picture of runs."""

import json

import matplotlib.image
import numpy as np
import pytest

from tasks import report


@pytest.fixture
def run_dir(tmp_path):
  path = tmp_path / 'run'
  path.mkdir()
  config = dict(
      task='fashion_mnist', algorithm='fedsmp_topk', num_kept=5, dim=100,
      privacy=dict(noise_multiplier=1.4),
  )
  (path / 'config.json').write_text(json.dumps(config))
  (path / 'metrics.csv').write_text(
      'round,test_accuracy,uplink_megabytes\n0,0.1,0\n1,,0.1\n2,0.5,0.2\n'
  )
  return path


class TestExecution:

  def test_draws(self, run_dir, tmp_path, capsys):
    path = tmp_path / 'a.png'
    assert report.main(['report', str(run_dir), f'--output={path}']) == 0
    assert str(path) in capsys.readouterr().out
    image = matplotlib.image.imread(path)
    assert image.shape[:2] == (480, 1200) and np.std(image) > 0

  @pytest.mark.parametrize('damage', ['', 'round\n1\n', 'round,test_accuracy\n1,x\n'])
  def test_what_is_no_run(self, run_dir, damage, capsys):
    (run_dir / 'metrics.csv').write_text(damage)
    if not damage:
      (run_dir / 'metrics.csv').unlink()
    assert report.main(['report', str(run_dir)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f'tasks.report: {run_dir}') and said.count('\n') == 1

  def test_nothing_named_and_nowhere_to_write(self, run_dir, capsys):
    assert report.main(['report']) == 2
    assert 'no run directory is named' in capsys.readouterr().err
    assert report.main(['report', str(run_dir), '--output=/dev/null/a.png']) == 2
    assert "--output=/dev/null/a.png can't be written" in capsys.readouterr().err
