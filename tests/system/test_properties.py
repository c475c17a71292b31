"""Properties over generated inputs: encoding, gather and scatter, sparsifiers, accounting, flags."""

import math
import typing

import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import numpy as np
import pytest
import tensorflow as tf

from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import channel
from fedsmp_tff.mechanism import mechanism
from fedsmp_tff.privacy import accountants
from fedsmp_tff.privacy import spec as spec_lib
from tasks import errors
from tasks.cli import settings
from tests.support import gaussian_mechanism
from tests.support import numpy_reference

# The same examples each time: what CI finds can be found again.
_many = hypothesis.settings(derandomize=True, deadline=None, max_examples=60, database=None)
_few = hypothesis.settings(_many, max_examples=8)

_finite = st.floats(allow_nan=False, allow_infinity=False)
_vectors = hnp.arrays(
    np.float32, st.integers(1, 40),
    elements=st.floats(
        # TensorFlow takes numbers too small for a normal exponent as zero.
        width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False
    ),
)


class TestEncoding:

  @_many
  @hypothesis.given(st.integers(1, 2**22), st.data())
  def test_no_sum_of_what_clients_can_send_leaves_its_type(self, clients, data):
    most = min((2**63 - 1) // clients, 2**50).bit_length() - 1
    bits = data.draw(st.one_of(st.just(None), st.integers(8, most)))
    if bits is None:
      bits = mechanism.default_bits(clients)
    fixed_point = mechanism.FixedPoint(bits, 1.0, clients)
    assert clients * fixed_point.max_input < 2 ** (fixed_point.wire_bits - 1)

  @_many
  @hypothesis.given(
      hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=_finite),
      st.integers(8, 40),
      st.floats(1e-6, 1e6),
  )
  def test_a_sum_comes_back_but_for_half_a_step_a_client(self, values, bits, bound):
    fixed_point = channel.GaussianChannel(bits, bound, len(values))
    encoded = [fixed_point.encode(tf.constant(v), None, None) for v in values]
    for integers in encoded:
      assert (integers.numpy() >= 0).all()
      assert (integers.numpy() <= fixed_point.max_input).all()
    decoded = fixed_point.decode_sum(tf.add_n(encoded), tf.constant(len(values)), None)
    expected = np.clip(values, -bound, bound).sum(axis=0)
    # The step of 40 bits is near float64's own error at the largest sums.
    slack = len(values) * (fixed_point.step / 2 + 4 * np.finfo(float).eps * bound)
    assert np.max(np.abs(decoded - expected)) <= slack * (1 + 1e-9)

  @_many
  @hypothesis.given(st.floats(1e-3, 1e3), st.floats(1e-6, 100), st.integers(1, 10**6))
  def test_shares_add_up_to_the_mechanism_s_noise(self, clip, sigma, clients):
    share = mechanism.share_stddev(clip * sigma, clients)
    assert math.isclose(math.sqrt(clients * share**2), clip * sigma, rel_tol=1e-12)


class TestSparsifiers:

  @_many
  @hypothesis.given(
      st.integers(1, 300), st.floats(0, 1, exclude_min=True), st.integers(0, 2**62)
  )
  def test_randk_keeps_k_distinct_coordinates(self, dim, ratio, seed):
    randk = sparsifiers.RandK(ratio)
    chosen = randk.select(dim, tf.constant([seed, 1], tf.int64)).numpy()
    assert len(chosen) == randk.num_kept(dim) == max(1, round(ratio * dim))
    assert len(set(chosen)) == len(chosen) and 0 <= min(chosen) and max(chosen) < dim
    assert math.isclose(randk.scale(dim) * len(chosen), dim)

  @_many
  @hypothesis.given(
      hnp.arrays(
          np.float32, st.integers(1, 40),
          # Few values, so that many are equal.
          elements=st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, np.nan, np.inf, -np.inf]),
      ),
      st.data(),
  )
  def test_topk_keeps_the_largest(self, update, data):
    num = data.draw(st.integers(1, len(update)))
    topk = sparsifiers.TopK(num=num, public_examples=(np.zeros((1, 1)), np.zeros(1)))
    expected = numpy_reference.top_coordinates(np.nan_to_num(update, posinf=np.inf, neginf=-np.inf), num)
    np.testing.assert_array_equal(np.sort(topk.select(tf.constant(update))), expected)


def _spec(data):
  population = data.draw(st.integers(3, 10**6), 'n')
  return dict(
      noise_multiplier=data.draw(st.floats(0.3, 30), 'sigma'),
      clients_per_round=data.draw(st.integers(1, min(population - 1, 10**4)), 'r'),
      population=population,
      delta=data.draw(st.floats(1e-10, 0.1), 'delta'),
      rounds=1, clipping_norm=1.0, num_slots=population,
  )


@pytest.mark.parametrize(
    'accountant', [accountants.POISSON_RDP, accountants.FIXED_RDP, accountants.PAPER],
    ids=lambda accountant: accountant.name,
)
class TestAccounting:
  """More noise, fewer rounds, rarer clients or a larger delta never cost more."""

  def _cheaper(self, accountant, rounds, less_rounds, less, more):
    cheap = spec_lib.PrivacySpec(**less).epsilon(accountant, less_rounds)
    dear = spec_lib.PrivacySpec(**more).epsilon(accountant, rounds)
    assert 0 <= cheap
    # Both are minima over orders of sums of floats.
    assert cheap <= dear * (1 + 1e-9) + 1e-12

  @_few
  @hypothesis.given(st.data())
  def test_sigma(self, accountant, data):
    more, rounds = _spec(data), data.draw(st.integers(1, 3000))
    factor = data.draw(st.floats(1, 10))
    less = more | dict(noise_multiplier=more['noise_multiplier'] * factor)
    self._cheaper(accountant, rounds, rounds, less, more)

  @_few
  @hypothesis.given(st.data())
  def test_rounds(self, accountant, data):
    spec, rounds = _spec(data), data.draw(st.integers(1, 3000))
    self._cheaper(
        accountant, rounds, data.draw(st.integers(0, rounds)), spec, spec
    )

  @_few
  @hypothesis.given(st.data())
  def test_sampling_rate(self, accountant, data):
    more, rounds = _spec(data), data.draw(st.integers(1, 3000))
    fewer = data.draw(st.integers(1, more['clients_per_round']))
    self._cheaper(accountant, rounds, rounds, more | dict(clients_per_round=fewer), more)
    larger = more['population'] * data.draw(st.integers(1, 10))
    self._cheaper(accountant, rounds, rounds, more | dict(population=larger, num_slots=larger), more)

  @_few
  @hypothesis.given(st.data())
  def test_delta(self, accountant, data):
    more, rounds = _spec(data), data.draw(st.integers(1, 3000))
    less = more | dict(delta=data.draw(st.floats(more['delta'], 0.2)))
    self._cheaper(accountant, rounds, rounds, less, more)


class TestClosedForm:

  @_many
  @hypothesis.given(
      st.sampled_from(['poisson', 'fixed_size']), st.floats(-1.5, 0.9), st.floats(0, 5),
      st.floats(-14, -2),
  )
  def test_no_epsilon_is_below_that_of_the_gaussian_mechanism(
      self, sampling, log_mu, log_rounds, log_delta
  ):
    # All clients take part, so that T rounds are one of mu, and its epsilon is known exactly.
    mu, rounds, delta = 10**log_mu, round(10**log_rounds), 10**log_delta
    sigma = {'poisson': 1, 'fixed_size': 2}[sampling] * math.sqrt(rounds) / mu
    rounds_of = [(accountants.Round(sampling, 9, 9, 9, sigma), rounds)]
    exact = gaussian_mechanism.epsilon(mu, delta)
    for accountant in accountants.ACCOUNTANTS[:4]:
      if accountant.sampling == sampling:
        # One round on a grid may be exact, but for rounding.
        assert accountant.epsilon(rounds_of, delta) >= exact * (1 - 1e-9)


# Each flag with the range that its help and the paper give it: lowest, highest, and
# which of the two are excluded.
_FLAGS = {
    'p': (0, 1, True, False),
    'mask_rounds': (1, math.inf, False, True),
    'rounds': (1, math.inf, False, True),
    'noise_multiplier': (0, math.inf, False, True),
    'epsilon': (0, math.inf, True, True),
    'epsilon_budget': (0, math.inf, True, True),
    'clip': (0, math.inf, True, True),
    'delta': (0, 1, True, True),
    'clip_quantile': (0, 1, True, True),
    'learning_rate': (0, math.inf, True, True),
    'server_learning_rate': (0, math.inf, True, True),
    'momentum': (0, 1, False, True),
    'batch_size': (1, math.inf, False, True),
    'local_epochs': (1, math.inf, False, True),
}


class TestFlags:

  def _settings(self, *arguments):
    return settings.parse(['--task=fashion_mnist', *arguments], program='test')[0]

  @_many
  @hypothesis.given(st.sampled_from(sorted(_FLAGS)), st.data())
  def test_a_number_in_range_is_taken_and_another_refused_by_name(self, name, data):
    low, high, open_low, open_high = _FLAGS[name]
    if typing.get_type_hints(settings.RunSettings)[name] in (int, typing.Optional[int]):
      value = data.draw(st.integers(-3, 2**40))
    else:
      value = data.draw(st.one_of(st.floats(), st.floats(-1, 2)))
    right = (low < value if open_low else low <= value) and (
        value < high if open_high else value <= high
    )
    if right:
      assert getattr(self._settings(f'--{name}={value!r}'), name) == value
    else:
      with pytest.raises(errors.InputError, match=f'--{name}( must be .*; got |=.*see test)'):
        self._settings(f'--{name}={value!r}')

  @_many
  @hypothesis.given(st.sampled_from(sorted(_FLAGS)), st.text(max_size=8))
  def test_any_text_is_taken_or_refused_in_one_sentence(self, name, text):
    try:
      taken = self._settings(f'--{name}={text}')
    except errors.InputError as error:
      assert name in str(error)
    else:
      assert getattr(taken, name) == float(text)

  @_many
  @hypothesis.given(st.lists(st.text(max_size=12), max_size=3))
  def test_any_command_line_is_taken_or_refused(self, arguments):
    try:
      self._settings(*arguments)
    except errors.InputError as error:
      assert str(error)
