"""Tests of bytes against the costs in the paper's tables."""

import pytest

from fedsmp_tff import communication


def _of(dim, kept, coordinates=0, bits=32, shaping=0):
  return communication.Communication(dim, kept, coordinates, bits, shaping)


class TestExecution:

  @pytest.mark.parametrize(
      'dim, ratio, rounds, clients, population, megabytes',
      [
          (1_663_370, 1.0, 180, 100, 6000, 19.96),
          (1_663_370, 0.005, 180, 100, 6000, 0.10),
          (1_663_370, 0.4, 180, 100, 6000, 7.98),
          (3_431_754, 1.0, 180, 100, 6000, 41.18),
          (3_431_754, 0.01, 180, 100, 6000, 0.41),
          # PyTorch's LSTM has 2,048 more biases than ours.
          (820_522 + 2048, 1.0, 1000, 10, 715, 46.02),
          (820_522 + 2048, 0.05, 1000, 10, 715, 2.30),
      ],
  )
  def test_the_papers_costs(
      self, dim, ratio, rounds, clients, population, megabytes
  ):
    traffic = _of(dim, round(ratio * dim))
    assert traffic.uplink_megabytes(rounds, clients, population) == pytest.approx(
        megabytes, abs=0.005
    )

  def test_a_round(self):
    traffic = _of(1000, 50, coordinates=50)
    assert traffic.uplink_bytes == 200
    assert traffic.downlink_bytes == 4000 + 200
    assert traffic.downlink_bytes_with_seed == 4000 + 20
    assert _of(1000, 1000).downlink_bytes == 4000
    # Factors and a guess of 50 values.
    assert _of(1000, 50, coordinates=50, shaping=100).downlink_bytes == 4000 + 200 + 400
    assert _of(1000, 50, bits=64).uplink_bytes == 400
    assert _of(1000, 50, bits=16).uplink_bytes == 100
    # The last byte may be part empty.
    assert _of(1000, 5, bits=17).uplink_bytes == 11
