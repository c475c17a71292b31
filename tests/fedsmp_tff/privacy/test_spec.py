"""Tests of the object that makes sampler, noise and claim, and of noise for a target."""

import dataclasses
import math

import dp_accounting
from dp_accounting import rdp
from dp_accounting.pld import pld_privacy_accountant
import pytest
from scipy import stats

from fedsmp_tff.privacy import accounting
from fedsmp_tff.privacy import spec as spec_lib

_N, _R, _T = 6000, 100, 180
_DELTA = _N**-1.1


def _spec(sigma=1.4, r=_R, n=_N, delta=_DELTA, rounds=_T, **options):
  """Without a limit of seats, unless asked."""
  if options.get('sampling', 'poisson') == 'poisson':
    options.setdefault('seats', n)
  return spec_lib.PrivacySpec(n, r, rounds, sigma, 1.0, delta, **options)


class TestComputation:

  @pytest.mark.parametrize(
      'arguments, match',
      [
          (dict(sigma=-1.0), 'noise_multiplier'),
          (dict(sigma=math.nan), 'noise_multiplier'),
          (dict(sigma=math.inf), 'noise_multiplier'),
          (dict(r=0), 'clients_per_round'),
          (dict(r=_N + 1), 'clients_per_round'),
          (dict(delta=0.0), 'delta'),
          (dict(delta=1.0), 'delta'),
          (dict(delta=math.nan), 'delta'),
          (dict(rounds=0), 'rounds'),
          (dict(sampling='shuffle'), "`sampling` must be .*Found 'shuffle'"),
          (dict(seats=_R - 1), '`seats` must be from .*100 to 6000 with poisson'),
          (dict(sampling='fixed', seats=_R + 1), '`seats` must be from .*100 to 100 with'),
          (dict(min_reporting=0), '`min_reporting` must be from 1'),
          (dict(seats=120, min_reporting=121), '`min_reporting` must be from 1'),
          (dict(noise='laplace'), '`noise` must be one of'),
          (dict(noise='discrete_gaussian'), '`num_values` must be set'),
          (dict(noise='discrete_gaussian', num_values=9, bits=31), '`bits` must be an integer'),
          (dict(noise='discrete_gaussian', num_values=9, bits=8, sigma=0.1), 'raise `bits`'),
      ],
  )
  def test_refuses_numbers(self, arguments, match):
    with pytest.raises(ValueError, match=match):
      _spec(**arguments)


class TestPrivacySpec:
  """Sampler, noise and claim are of one object."""

  def test_seats_and_shares_by_default(self):
    def of(**options):
      spec = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA, **options)
      return spec.seats, spec.min_reporting, spec.claim

    assert of() == (150, 150, 'poisson_pld')
    assert of(sampling='fixed') == (100, 100, 'fixed_pld')
    assert of(noise='discrete_gaussian', num_values=9) == (150, 150, 'poisson_pld')
    assert of(min_reporting=120)[:2] == (150, 120)
    assert spec_lib.PrivacySpec(120, _R, _T, 1.4, 1.0, _DELTA).seats == 120

  def test_only_the_sampling_s_own_accountings_hold(self):
    # A figure for Poisson sampling is no claim of a run with a fixed number.
    def holding(**options):
      spec = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA, **options)
      return [n for n in accounting.ACCOUNTINGS if spec.is_valid(n)]

    assert holding() == ['poisson_pld', 'poisson_rdp']
    assert holding(seats=_N) == ['poisson_pld', 'poisson_rdp', 'paper']
    assert holding(sampling='fixed') == ['fixed_pld', 'fixed_rdp']
    assert holding(noise='discrete_gaussian', num_values=9, seats=_N) == [
        'poisson_pld', 'poisson_rdp'
    ]

  def test_the_sampler_is_the_claim_s(self):
    for options in (dict(), dict(sampling='fixed')):
      spec = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA, **options)
      cohort = spec.sampler(seed=1).sample(0)
      assert len(cohort) == spec.sampler().seats == spec.seats
    assert (cohort >= 0).all()

  def test_the_event_gives_dp_accounting_the_same(self):
    spec = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA)
    accountant = pld_privacy_accountant.PLDAccountant().compose(spec.dp_event())
    assert accountant.get_epsilon(_DELTA) == pytest.approx(spec.epsilon(), rel=1e-3)
    fixed = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA, 'fixed')
    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    ).compose(fixed.dp_event())
    assert accountant.get_epsilon(_DELTA) == pytest.approx(
        fixed.epsilon('fixed_rdp'), rel=1e-3
    )

  def test_truncation_is_charged(self):
    tight = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA, seats=115)
    assert tight.epsilon() > 1.1 * _spec().epsilon()
    # Renyi DP may take it for a failure, but here for more of them than delta.
    assert tight.epsilon() < tight.epsilon('poisson_rdp') < 3
    default = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA)
    assert default.epsilon('poisson_rdp') == pytest.approx(1.495, abs=1e-3)
    roomy = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA, seats=165)
    loose = _spec().epsilon('poisson_rdp')
    assert loose < roomy.epsilon('poisson_rdp') < 1.001 * loose
    # The definition, at what it gives: epsilon for the delta that is left.
    failure = _T * stats.binom.sf(160, _N, _R / _N)
    epsilon = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA, seats=160).epsilon(
        'poisson_rdp'
    )
    left = _DELTA - (1 + math.exp(epsilon)) * failure
    assert _spec(delta=left).epsilon('poisson_rdp') == pytest.approx(epsilon, rel=1e-6)

  @pytest.mark.parametrize('how', ['pld', 'rdp'])
  @pytest.mark.parametrize('sampling', ['poisson', 'fixed'])
  def test_integer_noise_costs_what_gaussian_noise_does_and_a_little_more(self, sampling, how):
    gaussian = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA, sampling)
    spec = dataclasses.replace(gaussian, noise='discrete_gaussian', num_values=8317)
    name = f'{sampling}_{how}'
    assert spec.claim == f'{sampling}_pld' and spec.is_valid(name)
    assert gaussian.epsilon(name) < spec.epsilon(name) < 1.002 * gaussian.epsilon(name)
    # Steps as coarse as the values: rounding makes clients longer.
    coarse = dataclasses.replace(spec, bits=11)
    assert coarse.epsilon(name) > 1.05 * gaussian.epsilon(name)

  def test_integer_noise_has_no_event(self):
    spec = spec_lib.PrivacySpec(
        _N, _R, _T, 1.4, 1.0, _DELTA, noise='discrete_gaussian', num_values=9
    )
    with pytest.raises(ValueError, match='no event'):
      spec.dp_event()


def test_default_delta_is_the_papers():
  # Section 5 of the paper, n = 6000: 7e-5, not 1/n.
  assert spec_lib.default_delta(6000) == pytest.approx(6.98e-5, rel=1e-3)
  assert spec_lib.default_delta(1) == 0.5


class TestCalibration:

  @pytest.mark.parametrize(
      'accounting_name, target',
      # Distributions of losses take seconds.
      [(n, t) for n in accounting.ACCOUNTINGS for t in (0.5, 3.0) if t < 1 or 'pld' not in n],
  )
  def test_calibrated_noise_spends_the_target_and_hardly_less(
      self, accounting_name, target
  ):
    sigma = _spec().calibrated(target, accounting_name).noise_multiplier
    assert _spec(sigma).epsilon(accounting_name) <= target
    assert _spec(0.999 * sigma).epsilon(accounting_name) > target

  def test_integer_noise_is_calibrated(self):
    # As tasks.run has it before sigma is known.
    spec = spec_lib.PrivacySpec(
        50, 50, 10, 0.0, 1.0, 1e-3, sampling='fixed', noise='discrete_gaussian', num_values=100
    )
    found = spec.calibrated(2.0)
    assert found.claim == 'fixed_pld' and 1.999 < found.epsilon() <= 2
    assert found.noise_multiplier < spec.calibrated(2.0, 'fixed_rdp').noise_multiplier

  def test_an_accounting_that_does_not_exist_is_a_value_error(self):
    for ask in (_spec().is_valid, _spec().epsilon, lambda name: _spec().calibrated(1.0, name)):
      with pytest.raises(ValueError, match="must be one of .* Found 'pld'"):
        ask('pld')

  @pytest.mark.parametrize('target', [0.0, -1.0, math.nan, math.inf])
  def test_calibration_refuses_targets(self, target):
    with pytest.raises(ValueError, match='epsilon'):
      _spec().calibrated(target, 'paper')

  def test_calibration_says_when_nothing_will_do(self):
    with pytest.raises(ValueError, match='No noise multiplier'):
      _spec().calibrated(1e-9, 'paper')


class TestComposition:
  """Compares epsilon of two different runs with an independent composition."""

  def test_with_poisson_sampling(self):
    releases = [(_spec().round, _T), (_spec(1.0, r=200).round, 5)]
    accountant = pld_privacy_accountant.PLDAccountant(value_discretization_interval=1e-3)
    by_rdp = rdp.RdpAccountant()
    for rate, sigma, num in ((_R / _N, 1.4, _T), (200 / _N, 1.0, 5)):
      event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
      accountant.compose(event, num)
      by_rdp.compose(event, num)

    def epsilon(name):
      return accounting.epsilon(releases, name, _DELTA)

    # Theirs is on a coarser grid, and no less.
    theirs = accountant.get_epsilon(_DELTA)
    assert epsilon('poisson_pld') == pytest.approx(theirs, rel=0.02)
    assert epsilon('poisson_pld') > 1.05 * _spec().epsilon()
    assert epsilon('poisson_rdp') == pytest.approx(by_rdp.get_epsilon(_DELTA), rel=0.02)

  def test_with_a_fixed_number_of_clients(self):
    releases = [(_spec(r=r, sampling='fixed').round, num) for r, num in ((_R, _T), (50, 5))]
    accountant = rdp.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    for r, num in ((_R, _T), (50, 5)):
      accountant.compose(
          dp_accounting.SampledWithoutReplacementDpEvent(
              _N, r, dp_accounting.GaussianDpEvent(0.7)
          ),
          num,
      )
    found = accounting.epsilon(releases, 'fixed_rdp', _DELTA)
    assert found == pytest.approx(accountant.get_epsilon(_DELTA), rel=0.02)
