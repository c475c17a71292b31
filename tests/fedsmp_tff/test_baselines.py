"""Tests of the systems that the paper compares Fed-SMP with."""

import pytest

import fedsmp_tff
from tests.support import linear_runs
from tests.support import tiny_models

# How each is built, its scale and its C.
_SYSTEMS = {
    'dp_fedavg': (
        lambda: fedsmp_tff.build_dp_fedavg(
            tiny_models.linear_regression(), linear_runs.training(),
            fedsmp_tff.Mechanism(linear_runs.CLIENTS, clipping_norm=0.5),
        ), 1.0, 0.5,
    ),
    'fedavg': (
        lambda: fedsmp_tff.build_fedavg(
            tiny_models.linear_regression(), linear_runs.training(), linear_runs.CLIENTS
        ), 1.0, None,
    ),
    'fedavg_randk': (
        lambda: fedsmp_tff.build_fedavg_randk(
            tiny_models.linear_regression(), linear_runs.training(), linear_runs.CLIENTS, 0.4
        ), 10 / 4, None,
    ),
    'fedavg_topk': (
        lambda: fedsmp_tff.build_fedavg_topk(
            tiny_models.linear_regression(), linear_runs.training(), linear_runs.CLIENTS, 0.4,
            linear_runs.PUBLIC,
        ), 1.0, None,
    ),
}


def _kept(name):
  return 4 if name.endswith(('randk', 'topk')) else linear_runs.DIM


class TestComputation:

  @pytest.mark.parametrize('name', _SYSTEMS)
  def test_only_a_secure_sum_of_integers(self, name):
    build, _, _ = _SYSTEMS[name]
    linear_runs.check_only_a_secure_sum_of_integers(build(), _kept(name))

  def test_dp_fedavg_without_a_clip_is_refused(self):
    with pytest.raises(ValueError, match='`mechanism` must have a `clipping_norm`'):
      fedsmp_tff.build_dp_fedavg(
          tiny_models.linear_regression(), linear_runs.training(), fedsmp_tff.Mechanism(3)
      )


class TestExecution:

  @pytest.mark.parametrize('name', _SYSTEMS)
  def test_two_rounds_without_noise_equal_numpy(self, name):
    build, scale, clip = _SYSTEMS[name]
    linear_runs.check_two_rounds(
        build(), scale, clip, topk=name.endswith('topk'),
        fixed=range(linear_runs.DIM) if _kept(name) == linear_runs.DIM else None,
    )
