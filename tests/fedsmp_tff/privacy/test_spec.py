"""Tests of the object that makes sampler, noise and claim, and of noise for a target."""

import dataclasses
import math

import dp_accounting
import pytest
from scipy import stats

from fedsmp_tff.mechanism import integer_noise
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import spec as spec_lib

_gaussian, _integers = mechanism_lib.Gaussian, integer_noise.DiscreteGaussian
_N, _R, _T = 6000, 100, 180
_DELTA = _N**-1.1


def _spec(sigma=1.4, r=_R, n=_N, delta=_DELTA, rounds=_T, clip=1.0, **options):
  """Without a limit of slots, unless asked."""
  if options.get('sampling', 'poisson') == 'poisson':
    options.setdefault('num_slots', n)
  return spec_lib.PrivacySpec(n, r, rounds, sigma, clip, delta, **options)


def _for_epsilon(epsilon, accountant=None, **fields):
  """As `_spec`, for a target."""
  fields = dict(
      population=_N, clients_per_round=_R, rounds=_T, clipping_norm=1.0, delta=_DELTA, num_slots=_N
  ) | fields
  return spec_lib.PrivacySpec.for_epsilon(epsilon, accountant=accountant, **fields)


class TestComputation:

  @pytest.mark.parametrize('arguments, match', [
      *((dict(clip=clip), 'clipping_norm') for clip in (0.0, math.nan, math.inf)),
      (dict(clip=-math.inf, sigma=0.0), 'clipping_norm'),
      (dict(clip='x', sigma=0.0), '`clipping_norm` must be a number. Found x'),
      (dict(clip=None), 'needs a `clipping_norm`'),
      (dict(clip=math.inf, sigma=0.0), 'or None .no clipping.. Found inf'),
      (dict(delta='x'), '`delta` must be a number. Found x'),
      (dict(sigma=-1.0), 'noise_multiplier'),
      *((dict(r=r), 'clients_per_round') for r in (0, -1, _N + 1)),
      *((dict(delta=delta), 'delta') for delta in (0.0, 1.0, math.nan)),
      (dict(delta=0.5), '`delta` must be at most 1/n = 0.000167 for n = 6,000 .* n.-1.1 = 7e-05'),
      (dict(delta=1.001 / _N), '`delta` must be at most 1/n .* Found 0.0001668'),
      *((dict(rounds=rounds), 'rounds') for rounds in (0, 2.5)),
      (dict(sampling='shuffle'), "`sampling` must be .*Found 'shuffle'"),
      (dict(num_slots=_R - 1), '`num_slots` must be from the clients per round, 100, to .*6000'),
      (dict(sampling='fixed_size', num_slots=_R + 1), '`num_slots` must .*100, with fixed'),
      *((dict(min_reports=least), '`min_reports` must be a positive integer') for least in (0, 9.5)),
      (dict(min_reports=_N + 1), '`min_reports` must be from 1 to `num_slots`=6000'),
      (dict(noise='gaussian'), '`noise` must be Gaussian or DiscreteGaussian. Found gaussian'),
      (dict(noise=_integers(9, bits=8), sigma=0.1), 'or `bits`'),
      (dict(n=6000.5), 'population'),
      (dict(rounds=True), 'rounds'),
  ])
  def test_fields_out_of_range_are_refused(self, arguments, match):
    with pytest.raises(ValueError, match=match):
      _spec(**arguments)


class TestPrivacySpec:
  """Sampler, noise and accountant are of one object."""

  def test_slots_and_shares_have_defaults(self):
    def of(**options):
      spec = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA, **options)
      return spec.num_slots, spec.min_reports, spec.accountant.name

    assert of() == (150, 150, 'poisson_pld')
    assert of(sampling='fixed_size') == (100, 100, 'fixed_pld')
    assert of(noise=_integers(9)) == (150, 150, 'poisson_pld')
    assert of(min_reports=120)[:2] == (150, 120)
    assert spec_lib.PrivacySpec(120, _R, _T, 1.4, 1.0, _DELTA).num_slots == 120

  @pytest.mark.slow
  def test_noise_of_an_allocation_reaches_epsilon(self):
    # The default of Shakespeare.
    fields = dict(
        population=1137, clients_per_round=100, rounds=40, clipping_norm=1.0, delta=1137**-1.1
    )
    spec = spec_lib.PrivacySpec.for_epsilon(8.0, sampling='allocation', **fields)
    assert 7.99 < spec.epsilon() <= 8
    # By Poisson sampling, 40 rounds need more noise than the 44 that are charged here.
    poisson = spec_lib.PrivacySpec.for_epsilon(8.0, **fields)
    assert spec.noise_multiplier < 0.97 * poisson.noise_multiplier

  def test_an_allocation_is_made_of_one_specification(self):
    spec = spec_lib.PrivacySpec(1137, 100, 40, 2.0, 1.0, 1137**-1.1, sampling='allocation')
    sampler = spec.sampler(seed=1)
    assert sampler.rounds_per_block == spec.round.rounds_per_block == 11
    assert sampler.num_slots == spec.num_slots == spec.mechanism().num_slots > 170
    assert spec.mechanism().clients_per_round == 100
    assert spec.accountant is accountants.ALLOCATION_PLD
    assert spec.neighboring_relation == dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    with pytest.raises(ValueError, match='No `DpEvent` covers random allocation'):
      spec.dp_event()

  def test_only_accountants_of_the_sampling_are_sound(self):
    # A figure for Poisson sampling is no claim of a run with a fixed number.
    def holding(**options):
      spec = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA, **options)
      return [a.name for a in accountants.ACCOUNTANTS if a.is_sound(spec.round)]

    assert holding() == ['poisson_pld', 'poisson_rdp']
    assert holding(num_slots=_N) == ['poisson_pld', 'poisson_rdp', 'paper']
    assert holding(sampling='fixed_size') == ['fixed_pld', 'fixed_rdp']
    assert holding(noise=_integers(9), num_slots=_N) == [
        'poisson_pld', 'poisson_rdp'
    ]

  def test_sampler_fills_the_slots_of_the_spec(self):
    for options in (dict(), dict(sampling='fixed_size')):
      spec = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA, **options)
      cohort = spec.sampler(seed=1).sample(0)
      assert len(cohort) == spec.sampler().num_slots == spec.num_slots
    assert (cohort >= 0).all()

  def test_truncation_is_charged(self):
    tight = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA, num_slots=115)
    assert tight.epsilon() > 1.1 * _spec().epsilon()
    # Renyi DP may take it for a failure, but here for more of them than delta.
    assert tight.epsilon() < tight.epsilon(accountants.POISSON_RDP) < 3
    default = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA)
    assert default.epsilon(accountants.POISSON_RDP) == pytest.approx(1.495, abs=1e-3)
    roomy = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA, num_slots=165)
    loose = _spec().epsilon(accountants.POISSON_RDP)
    assert loose < roomy.epsilon(accountants.POISSON_RDP) < 1.001 * loose
    # The definition, at what it gives: epsilon for the delta that is left.
    failure = _T * stats.binom.sf(160, _N, _R / _N)
    epsilon = dataclasses.replace(tight, num_slots=160, min_reports=None).epsilon(
        accountants.POISSON_RDP
    )
    left = _DELTA - (1 + math.exp(epsilon)) * failure
    assert _spec(delta=left).epsilon(accountants.POISSON_RDP) == pytest.approx(epsilon, rel=1e-6)

  # The paper's accountant does not cover integer noise.
  @pytest.mark.parametrize('accountant', accountants.ACCOUNTANTS[:4], ids=lambda a: a.name)
  def test_integer_noise_costs_little_more_than_gaussian(self, accountant):
    gaussian = spec_lib.PrivacySpec(_N, _R, _T, 1.4, 1.0, _DELTA, accountant.sampling)
    spec = dataclasses.replace(gaussian, noise=_integers(8317))
    assert spec.accountant is gaussian.accountant and accountant.is_sound(spec.round)
    epsilon = gaussian.epsilon(accountant)
    assert epsilon < spec.epsilon(accountant) < 1.002 * epsilon
    # Steps as coarse as the values: rounding makes clients longer.
    assert dataclasses.replace(spec, noise=_integers(8317, bits=11)).epsilon(accountant) > 1.05 * epsilon


class TestDpEvent:
  """What dp-accounting's own accountants make of a specification."""

  @pytest.mark.parametrize('options', [
      {}, {'num_slots': 115}, {'sampling': 'fixed_size'}, {'r': 300, 'num_slots': 320},
  ])
  def test_pld_accountant_on_dp_event_gives_epsilon(self, options):
    spec = _spec(**options)
    accountant = dp_accounting.pld.PLDAccountant(spec.neighboring_relation)
    epsilon = accountant.compose(spec.dp_event(7)).get_epsilon(_DELTA)
    # Our step is up to ten times as large, which adds up to 0.04 %.
    assert epsilon * (1 - 1e-6) <= spec.epsilon(rounds=7) <= epsilon * (1 + 5e-4)

  def test_rdp_accountant_on_dp_event_gives_epsilon_or_refuses(self):
    def epsilon(spec):
      accountant = dp_accounting.rdp.RdpAccountant(
          neighboring_relation=spec.neighboring_relation
      )
      return accountant.compose(spec.dp_event()).get_epsilon(_DELTA)

    assert epsilon(_spec()) == pytest.approx(_spec().epsilon(accountants.POISSON_RDP), rel=1e-2)
    # All clients take part: replacing one moves the sum by 2 C.
    everyone = _spec(sampling='fixed_size', r=_N, sigma=100.0)
    assert epsilon(everyone) == pytest.approx(everyone.epsilon(accountants.FIXED_RDP), rel=1e-2)
    with pytest.raises(dp_accounting.UnsupportedEventError):
      epsilon(_spec(sampling='fixed_size'))

  def test_fixed_size_dp_event_needs_the_neighboring_relation(self):
    # dp-accounting's default is another relation, with too small an epsilon, as the docstring says.
    spec = _spec(sampling='fixed_size')
    wrong = dp_accounting.pld.PLDAccountant().compose(spec.dp_event(7)).get_epsilon(_DELTA)
    assert wrong < 0.99 * spec.epsilon(rounds=7)

  def test_dp_event_of_no_rounds_costs_nothing(self):
    accountant = dp_accounting.pld.PLDAccountant(_spec().neighboring_relation)
    assert accountant.compose(_spec().dp_event(0)).get_epsilon(_DELTA) == 0

  def test_dp_event_without_noise_has_infinite_epsilon(self):
    accountant = dp_accounting.pld.PLDAccountant()
    assert accountant.compose(_spec(0.0).dp_event()).get_epsilon(_DELTA) == math.inf

  def test_dp_event_of_integer_noise_is_refused(self):
    spec = _spec(noise=_integers(8317))
    with pytest.raises(ValueError, match='charged to delta'):
      spec.dp_event()


def test_delta_above_1_over_n_needs_allow_large_delta():
  large = _spec(delta=0.5, allow_large_delta=True)
  assert large.epsilon() == 0 and dataclasses.replace(large, rounds=9).delta == 0.5
  assert dataclasses.replace(large, delta=1 / _N, allow_large_delta=False).epsilon() > 0
  # It is no part of the guarantee: a resumed run's ledger may have it or not.
  assert _spec() == _spec(allow_large_delta=True)
  assert _for_epsilon(1.0, delta=0.5, allow_large_delta=True).noise_multiplier < 1.4
  for n in (1, 2, 3, 10**9):
    _spec(n=n, r=1, delta=spec_lib.default_delta(n))


def test_default_delta_is_the_papers():
  # Section 5 of the paper, n = 6000: 7e-5, not 1/n.
  assert spec_lib.default_delta(6000) == pytest.approx(6.98e-5, rel=1e-3)
  assert spec_lib.default_delta(1) == 0.5


class TestCalibration:

  @pytest.mark.parametrize(
      'accountant, target',
      # Distributions of losses take seconds.
      # By allocation_pld, a search takes long; see test_noise_of_an_allocation_reaches_epsilon.
      [(a, t) for a in (*accountants.ACCOUNTANTS[:4], accountants.PAPER) for t in (0.5, 3.0)],
  )
  def test_calibrated_noise_spends_the_target(self, accountant, target):
    sigma = _for_epsilon(target, accountant).noise_multiplier
    assert _spec(sigma).epsilon(accountant) <= target
    assert _spec(0.999 * sigma).epsilon(accountant) > target

  def test_for_epsilon_equals_a_spec_with_that_sigma(self):
    # Ledgers compare and checkpoints hash specifications.
    fields = dict(
        population=_N, clients_per_round=_R, rounds=_T, clipping_norm=0.5, delta=_DELTA,
        num_slots=200, min_reports=150, noise=_gaussian(bits=20),
    )
    found = spec_lib.PrivacySpec.for_epsilon(2.0, accountant=accountants.PAPER, **fields)
    same = spec_lib.PrivacySpec(noise_multiplier=found.noise_multiplier, **fields)
    assert found == same and hash(found) == hash(same)
    assert found.mechanism() == same.mechanism() and found.epsilon(accountants.PAPER) <= 2
    for missing in fields.keys() - {'num_slots', 'min_reports', 'noise'}:
      rest = {name: value for name, value in fields.items() if name != missing}
      with pytest.raises(TypeError, match=missing):
        spec_lib.PrivacySpec.for_epsilon(2.0, **rest)

  def test_few_bits_limit_the_result_not_the_search(self):
    # At 0.95 a share has 1.08 steps; the search also tries 0.78, with 0.91.
    fields = dict(
        population=10_000, clients_per_round=10_000, rounds=1, clipping_norm=1.0, delta=1e-5,
        sampling='fixed_size', num_slots=None, noise=_gaussian(bits=8),
    )
    spec = spec_lib.PrivacySpec(noise_multiplier=0.95, **fields)
    found = _for_epsilon(spec.epsilon(), **fields)
    assert found.noise_multiplier == pytest.approx(0.95, rel=1e-4) and found.noise.bits == 8
    with pytest.raises(ValueError, match='or `bits` to 9 or more'):
      _for_epsilon(2 * spec.epsilon(), **fields)

  def test_integer_noise_is_calibrated(self):
    fields = dict(
        population=50, clients_per_round=50, rounds=10, delta=1e-3, sampling='fixed_size',
        num_slots=None, noise=_integers(100),
    )
    found = _for_epsilon(2.0, **fields)
    assert found.accountant.name == 'fixed_pld' and 1.999 < found.epsilon() <= 2
    assert (
        found.noise_multiplier
        < _for_epsilon(2.0, accountants.FIXED_RDP, **fields).noise_multiplier
    )
    # The search begins at sigma = 1, at which ten bits are too few.
    fields['noise'] = _integers(100, bits=10)
    with_bits = _for_epsilon(2.0, **fields)
    assert with_bits.noise.bits == 10 and 1.99 < with_bits.epsilon() <= 2
    fields['noise'] = _integers(10**5, bits=10)
    with pytest.raises(ValueError, match='no noise multiplier .* raise `bits`, or'):
      _for_epsilon(0.1, **fields)

  @pytest.mark.parametrize('target', [0.0, -1.0, math.nan, math.inf])
  def test_calibration_refuses_targets(self, target):
    with pytest.raises(ValueError, match='epsilon'):
      _for_epsilon(target, accountants.PAPER)

  def test_calibration_refuses_unreachable_targets(self):
    # `bits` are of integer noise.
    with pytest.raises(ValueError, match='no noise multiplier .* or delta, or run fewer'):
      _for_epsilon(1e-9, accountants.PAPER, noise=_gaussian(bits=20))
    with pytest.raises(ValueError, match='clipping_norm'):
      _for_epsilon(1.0, clipping_norm=math.inf)
