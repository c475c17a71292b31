"""Tests of the benchmark's command line; its figures are measured, not asserted."""

import pytest

from tasks import benchmark


class TestComputation:

  @pytest.mark.parametrize(
      'argument, sentence',
      [
          ('--repeats=0', '--repeats must be an integer >= 1; got 0'),
          ('--fashion_mnist_dir=/none', '/none/train-images-idx3-ubyte.gz does not'),
      ],
  )
  def test_refusals(self, argument, sentence, capsys):
    assert benchmark.main(['benchmark', argument]) == 2
    said = capsys.readouterr().err
    assert said.startswith('tasks.benchmark: ') and sentence in said
