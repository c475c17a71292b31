"""Properties over generated inputs: encoding and accounting."""

import math

import hypothesis
from hypothesis import strategies as st
import pytest

from fedsmp_tff.mechanism import mechanism
from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import round as round_lib
from fedsmp_tff.privacy import spec as spec_lib
from tests.support import gaussian_mechanism

# The same examples each time: what CI finds can be found again.
_many = hypothesis.settings(derandomize=True, deadline=None, max_examples=60, database=None)


class TestEncoding:

  @_many
  @hypothesis.given(st.integers(1, 2**22), st.data())
  def test_sums_of_reports_fit_their_type(self, clients, data):
    most = min((2**63 - 1) // clients, 2**50).bit_length() - 1
    bits = data.draw(st.one_of(st.just(None), st.integers(8, most)))
    fixed_point = mechanism.Mechanism(clients, noise=mechanism.Gaussian(bits)).encoding()
    assert clients * fixed_point.max_input < 2 ** (fixed_point.wire_bits - 1)


class TestAccounting:

  @pytest.mark.parametrize(
      'accountant', [accountants.POISSON_RDP, accountants.FIXED_RDP, accountants.PAPER],
      ids=lambda accountant: accountant.name,
  )
  @hypothesis.settings(_many, max_examples=12)
  @hypothesis.given(st.data())
  def test_epsilon_is_monotone_in_every_argument(
      self, accountant, data
  ):
    n, rounds = data.draw(st.integers(3, 10**6)), data.draw(st.integers(1, 3000))
    r, sigma = data.draw(st.integers(1, min(n - 1, 10**4))), data.draw(st.floats(0.3, 30))
    delta = data.draw(st.floats(1e-10, 0.1))

    def epsilon(noise_multiplier=sigma, rounds=rounds, clients=r, population=n, delta=delta):
      spec = spec_lib.PrivacySpec(
          population, clients, 1, noise_multiplier, 1.0, delta, num_slots=population,
          allow_large_delta=True,
      )
      return spec.epsilon(accountant, rounds)

    change = data.draw(st.sampled_from([
        ('noise_multiplier', st.floats(sigma, 10 * sigma)), ('rounds', st.integers(0, rounds)),
        ('clients', st.integers(1, r)), ('population', st.integers(n, 10 * n)),
        ('delta', st.floats(delta, 0.2)),
    ]))
    cheaper = epsilon(**{change[0]: data.draw(change[1])})
    # Both are minima over orders of sums of floats.
    assert 0 <= cheaper <= epsilon() * (1 + 1e-9) + 1e-12


class TestClosedForm:

  @_many
  @hypothesis.given(
      st.sampled_from(['poisson', 'fixed_size']), st.floats(-1.5, 0.9), st.floats(0, 5),
      st.floats(-14, -2),
  )
  def test_epsilon_is_not_below_the_gaussian_mechanism(
      self, sampling, log_mu, log_rounds, log_delta
  ):
    # All clients take part, so that T rounds are one of mu, and its epsilon is known exactly.
    mu, rounds, delta = 10**log_mu, round(10**log_rounds), 10**log_delta
    sigma = {'poisson': 1, 'fixed_size': 2}[sampling] * math.sqrt(rounds) / mu
    rounds_of = [(round_lib.Round(sampling, 9, 9, 9, sigma), rounds)]
    exact = gaussian_mechanism.epsilon(mu, delta)
    for accountant in accountants.ACCOUNTANTS[:4]:
      if accountant.sampling == sampling:
        # One round on a grid may be exact, but for rounding.
        assert accountant.epsilon(rounds_of, delta) >= exact * (1 - 1e-9)
