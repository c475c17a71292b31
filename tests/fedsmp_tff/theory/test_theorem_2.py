"""Tests of Theorem 2 against its formula as the paper prints it, term by term."""

import dataclasses
import math

import pytest

from fedsmp_tff.theory import theorem_2

_CONSTANTS = theorem_2.Constants(
    smoothness=2.0, gradient_variance=0.3, dissimilarity=1.5, dissimilarity_offset=0.7,
    initial_gap=2.3,
)
_RUN = theorem_2.Training(
    dim=1000, learning_rate=0.01, local_steps=5, rounds=40, clients_per_round=20,
    clipping_norm=0.8, noise_multiplier=1.4,
)


def _papers_bound(sparsifier, k, phi):
  """Equation (9), with its symbols."""
  L, zeta2, kappa2, e0 = 2.0, 0.3, 0.7, 2.3
  eta, tau, T, r, C, sigma = 0.01, 5, 40, 20, 0.8, 1.4
  zeta_prime = 4 * zeta2 / (1 / 3) if sparsifier == 'topk' else 0
  return (
      8 * e0 / (T * eta * tau) + 8 * eta * tau * L * (3 * kappa2 + 2 * zeta2),
      (8 * eta * tau * L * (2 * kappa2 + zeta2) + zeta_prime) * phi,
      4 * L * k * C**2 * sigma**2 / (eta * tau * r**2),
  )


class TestComputation:

  @pytest.mark.parametrize('sparsifier', [theorem_2.RANDK, theorem_2.TOPK])
  @pytest.mark.parametrize('k', [1, 30, 999, 1000])
  def test_bound_equals_the_formula_of_the_paper(self, sparsifier, k):
    phi = 1000 / k - 1 if sparsifier == 'randk' else 1 - k / 1000
    found = theorem_2.bound(_CONSTANTS, _RUN, sparsifier, k)
    parts = _papers_bound(sparsifier, k, phi)
    assert (found.optimization, found.compression, found.privacy) == pytest.approx(parts)
    assert found.total == pytest.approx(sum(parts))
    measured = theorem_2.bound(_CONSTANTS, _RUN, sparsifier, k, variance=0.25)
    assert measured.compression == pytest.approx(_papers_bound(sparsifier, k, 0.25)[1])

  @pytest.mark.parametrize('noise', [14.0, 1e6, 1e-3])
  def test_best_ratio_of_randk_is_the_closed_form(self, noise):
    run = dataclasses.replace(_RUN, noise_multiplier=noise)
    a = 8 * 0.01 * 5 * 2.0 * (2 * 0.7 + 0.3)
    b = 4 * 2.0 * 0.8**2 * noise**2 / (0.01 * 5 * 20**2)
    best = min(max(math.sqrt(a * 1000 / b), 1), 1000) / 1000
    found = theorem_2.best_compression_ratio(_CONSTANTS, run, theorem_2.RANDK)
    # The search's steps are 0.7 %, and of whole coordinates.
    assert found == pytest.approx(best, rel=0.007, abs=1e-3)

  def test_best_ratio_of_topk_uses_the_measured_variance(self):
    run = dataclasses.replace(_RUN, noise_multiplier=0.5)
    best = theorem_2.best_compression_ratio(
        _CONSTANTS, run, theorem_2.TOPK, lambda k: math.exp(-k / 20)
    )
    # a exp(-k/20)/20 = b, with a of the compression and b of the privacy error.
    a = 8 * 0.01 * 5 * 2.0 * (2 * 0.7 + 0.3) + 12 * 0.3
    b = 4 * 2.0 * 0.8**2 * 0.5**2 / (0.01 * 5 * 20**2)
    assert best == pytest.approx(20 * math.log(a / (20 * b)) / 1000, abs=1.5e-3)

  @pytest.mark.parametrize('k, phi', [(1000, 0.0), (10, 99.0)])
  def test_max_learning_rate_is_that_of_the_paper(self, k, phi):
    largest = min(
        1 / (24 * 5 * 2.0 * (phi + 1) * 1.5), 1 / (4 * 5 * 2.0 * math.sqrt(4 * 1.5 + 2)),
        1 / (12 * 5 * 2.0),
    )
    for rate, num_violations in ((0.999 * largest, 0), (1.001 * largest, 1)):
      run = dataclasses.replace(_RUN, learning_rate=rate)
      violations = theorem_2.violations(_CONSTANTS, run, theorem_2.RANDK, k)
      assert len(violations) == num_violations

  def test_topk_that_loses_too_much_is_a_violation(self):
    slow = dataclasses.replace(_RUN, learning_rate=1e-4)
    (said,) = theorem_2.violations(_CONSTANTS, slow, theorem_2.TOPK, 600)
    assert 'phi_k = 0.4 is above gamma' in said
    assert not theorem_2.violations(_CONSTANTS, slow, theorem_2.TOPK, 600, variance=0.3)

  @pytest.mark.parametrize('values, change', [
      (_CONSTANTS, dict(smoothness=0.0)), (_CONSTANTS, dict(dissimilarity=0.9)),
      (_CONSTANTS, dict(dissimilarity_offset=math.inf)), (_RUN, dict(clients_per_round=0)),
      (_RUN, dict(noise_multiplier=math.nan)),
  ])
  def test_constants_out_of_range_are_refused(self, values, change):
    with pytest.raises(ValueError, match=f'`{next(iter(change))}` must be'):
      dataclasses.replace(values, **change)

  def test_arguments_out_of_range_are_refused(self):
    for k in (0, 1001):
      with pytest.raises(ValueError, match='`num_kept` must be from 1 to dim=1000'):
        theorem_2.bound(_CONSTANTS, _RUN, theorem_2.RANDK, k)
    with pytest.raises(ValueError, match='`sparsifier` must be'):
      theorem_2.bound(_CONSTANTS, _RUN, 'bottomk', 1)
    with pytest.raises(ValueError, match='`variance` must be at least 0'):
      theorem_2.bound(_CONSTANTS, _RUN, theorem_2.TOPK, 1, variance=math.nan)
