"""Tests of the masked private sum against an independent NumPy reading of the paper."""

import collections

import numpy as np
import pytest
from scipy import stats
import tensorflow as tf
import tensorflow_federated as tff

from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import state as state_lib
from fedsmp_tff.post_processing import released_topk
from tests.support import numpy_reference
from tests.support import processes
from tests.support import tiny_models

_DIM = 40
_VECTOR = tff.TensorType(np.float32, [_DIM])
_TOPK = sparsifiers.TopK(
    0.5, public_examples=(np.zeros((1, 2)), np.zeros(1))
)


def _updates(num, scale=1.0, dim=_DIM, seed=0):
  rng = np.random.default_rng(seed)
  return [
      (scale * rng.normal(size=dim)).astype(np.float32) for _ in range(num)
  ]


def _run(factory, updates, value_type=_VECTOR):
  """One round: the state that it started from, and what it put out."""
  process = factory.create(value_type)
  state = process.initialize()
  return state, process.next(state, updates)


def _form(process):
  """The graphs of a round, to see what leaves a client."""

  @tff.federated_computation(*process.next.type_signature.parameter)
  def state_and_result(state, value):
    output = process.next(state, value)
    return output.state, output.result

  return tff.backends.mapreduce.get_map_reduce_form_for_computation(state_and_result)


class TestComputation:

  def test_types(self):
    factory = processes.factory(
        sparsifiers.RandK(num=5), 3, clipping_norm=1.0, noise_multiplier=1.0
    )
    process = factory.create(_VECTOR)
    assert isinstance(process, tff.templates.AggregationProcess)
    assert not process.is_weighted
    state_type = tff.types.FederatedType(
        state_lib.FedSmpState(
            tff.TensorType(np.int32),
            tff.TensorType(np.int64, [2]),
            tff.TensorType(np.float64),
            state_lib.Choice(
                tff.TensorType(np.int32, [5]),
                tff.TensorType(np.float32, [0]),
                tff.TensorType(np.float32, [0]),
            ),
            collections.OrderedDict(),
        ),
        tff.SERVER,
    )
    measurements_type = tff.types.FederatedType(
        collections.OrderedDict(
            participants=np.int32,
            released=np.int32,
            clipping_norm=np.float64,
            signal_to_noise=np.float64,
        ),
        tff.SERVER,
    )
    expected = tff.FunctionType(
        collections.OrderedDict(
            state=state_type, value=tff.FederatedType(_VECTOR, tff.CLIENTS)
        ),
        tff.templates.MeasuredProcessOutput(
            state_type, tff.FederatedType(_VECTOR, tff.SERVER), measurements_type
        ),
    )
    tff.test.assert_types_equivalent(process.next.type_signature, expected)

  @pytest.mark.parametrize('private', [True, False])
  def test_only_integers_leave_a_client_and_only_through_a_secure_sum(
      self, private
  ):
    factory = processes.factory(
        sparsifiers.RandK(num=5), 3,
        clipping_norm=1.0 if private else None,
        noise_multiplier=1.0 if private else None,
    )
    process = factory.create(_VECTOR)
    tff.test.assert_not_contains_unsecure_aggregation(process.next)
    form = _form(process)
    plain, bitwidth, secure, modular = form.work.type_signature.result
    assert [len(part) for part in (plain, bitwidth, modular)] == [0, 0, 0]
    report = tff.to_type(
        collections.OrderedDict(
            values=tff.TensorType(np.int32, [5]), participants=np.int32
        )
    )
    assert len(secure) == 1
    tff.test.assert_types_equivalent(secure[0], report)

  def test_topk_names_the_way_out(self):
    factory = processes.factory(_TOPK, 3)
    with pytest.raises(ValueError, match='fedsmp_tff.build_fed_smp'):
      factory.create(_VECTOR)

  @pytest.mark.parametrize(
      'value_type',
      [
          np.int32,
          [('a', np.float32), ('b', np.int32)],
          tff.TensorType(np.float32, [None]),
          tff.TensorType(np.float16, [3]),
          tff.SequenceType(np.float32),
          tff.StructType([]),
      ],
  )
  def test_refuses_value_type(self, value_type):
    factory = processes.factory(sparsifiers.Dense(), 3)
    with pytest.raises(TypeError, match='value_type.*Found'):
      factory.create(tff.to_type(value_type))

  @pytest.mark.parametrize(
      'options, match',
      [
          (dict(clients_per_round=0), 'clients_per_round'),
          (dict(clients_per_round=2.0), 'clients_per_round'),
          (dict(clipping_norm=0.0), 'clipping_norm'),
          (dict(clipping_norm=float('nan')), 'clipping_norm'),
          (dict(noise_multiplier=-1.0), 'noise_multiplier'),
          (dict(noise_multiplier=float('nan')), 'noise_multiplier'),
          (dict(clipping_norm=None), 'needs a `clipping_norm`'),
          (dict(bits=3), 'bits'),
          (dict(value_bound=1.0), '`value_bound`=1.0 is for no'),
          (dict(clipping_norm=None, noise_multiplier=None, value_bound=-1.0), 'value_bound'),
          (dict(seats=2), '`seats` must be'),
          (dict(seats=5, min_reporting=6), '`min_reporting` must be'),
          (dict(min_reporting=0), '`min_reporting` must be'),
          (dict(noise='laplace'), "`noise` must be .*Found 'laplace'"),
          (dict(noise='skellam', bits=31), '`bits` must be an integer from 8 to 30'),
          (dict(clipping_norm=None, noise_multiplier=None, adaptive_clipping=1), 'needs a `clip'),
      ],
  )
  def test_refuses_numbers(self, options, match):
    valid = dict(clients_per_round=3, clipping_norm=1.0, noise_multiplier=1.0)
    with pytest.raises(ValueError, match=match):
      processes.factory(sparsifiers.Dense(), **{**valid, **options})

  def test_refuses_other_sparsifiers_and_too_many_coordinates(self):
    with pytest.raises(TypeError, match='Sparsifier'):
      processes.factory(0.5, 3)
    factory = processes.factory(sparsifiers.RandK(num=_DIM + 1), 3)
    with pytest.raises(ValueError, match=f'at most.*{_DIM}'):
      factory.create(_VECTOR)


class TestExecution:

  @pytest.mark.parametrize('clip', [0.3, 1.5, 1e6, None])
  @pytest.mark.parametrize('kept', [1, 7, _DIM])
  def test_without_noise_equals_numpy_up_to_the_stated_rounding(self, kept, clip):
    updates = _updates(6)
    sparsifier = sparsifiers.RandK(num=kept)
    factory = processes.factory(
        sparsifier, 6, clipping_norm=clip, noise_multiplier=0.0 if clip else None,
        client_metrics=True,
    )
    # Without clipping, rand-k's default bound is 16 d/k: far above these values.
    state, output = _run(factory, updates)
    coordinates = state.choice.coordinates
    assert len(set(coordinates)) == kept
    expected = numpy_reference.mean_without_noise(
        updates, coordinates, _DIM / kept, clip
    )
    step = factory.round([(_DIM,)]).channel.step * (clip or 1.0)
    # float32's own rounding of the result beside half a step.
    tolerance = step / 2 + 1e-6 * np.max(np.abs(expected))
    np.testing.assert_allclose(output.result, expected, atol=tolerance, rtol=0)
    off = np.setdiff1d(np.arange(_DIM), coordinates)
    assert not np.any(output.result[off])
    assert output.measurements['exact_saturated_values'] == 0

  def test_dense_equals_numpy(self):
    updates = _updates(4)
    factory = processes.factory(
        sparsifiers.Dense(), 4, clipping_norm=1.0, noise_multiplier=0.0,
        client_metrics=True,
    )
    _, output = _run(factory, updates)
    expected = numpy_reference.mean_without_noise(
        updates, np.arange(_DIM), 1.0, 1.0
    )
    np.testing.assert_allclose(output.result, expected, atol=1e-6)
    assert output.measurements['exact_clipped_clients'] == 4

  def test_clip_comes_after_the_scale(self):
    # Each kept value is 1, d/k = 8, so the scaled norm is 8 sqrt(5) > C = 4.
    factory = processes.factory(
        sparsifiers.RandK(num=5), 1, clipping_norm=4.0, noise_multiplier=0.0
    )
    _, output = _run(factory, [np.ones(_DIM, np.float32)])
    assert np.linalg.norm(output.result) == pytest.approx(4.0, abs=1e-5)

  def test_noise_has_its_scale_on_the_kept_values_and_nowhere_else(self):
    dim, kept, clients, clip, sigma = 20_000, 4000, 8, 0.4, 1.4
    factory = processes.factory(
        sparsifiers.RandK(num=kept), clients,
        clipping_norm=clip, noise_multiplier=sigma, client_metrics=True,
    )
    state, output = _run(
        factory, [np.zeros(dim, np.float32)] * clients,
        tff.TensorType(np.float32, [dim]),
    )
    released = output.result[state.choice.coordinates]
    stddev = clip * sigma / clients

    def p_value(scale):
      return stats.kstest(released, 'norm', (0, scale * stddev)).pvalue

    # The clients' noise is fresh, not seeded: the threshold is crossed by chance
    # with probability 1e-6. At 2/3 and 3/2 of the scale 4000 values give p-values
    # under 1e-25 (see test_noise). The clients' values are equal here, so shares
    # from one seed would add up to sqrt(8) times the scale.
    assert p_value(1) > 1e-6
    assert p_value(2 / 3) < 1e-20
    assert p_value(3 / 2) < 1e-20
    assert np.count_nonzero(output.result) == np.count_nonzero(released)
    assert output.measurements['exact_saturated_values'] == 0

  @pytest.mark.parametrize('noise', ['gaussian', 'discrete_gaussian', 'skellam'])
  def test_every_value_that_leaves_a_client_carries_its_share(self, noise):
    # One client of nine: what it sends alone. Noise on some values, or a choice among
    # noisy ones, would show here and not in a sum.
    dim, seats, sigma = 4000, 9, 1.4
    factory = processes.factory(
        sparsifiers.Dense(), seats, clipping_norm=0.5, noise_multiplier=sigma,
        noise=noise, rotate=False,
    )
    mechanism = factory.round([(dim,)])
    state = mechanism.initial_state(seed=2)
    sent = mechanism.report(
        tf.zeros([dim]), state, tf.constant([3, 4], tf.int64)
    )['values']
    alone = mechanism.channel.decode_sum(
        sent, tf.constant(1), tf.constant([0, 0], tf.int64)
    ).numpy()
    # In units of C; integers are some hundreds a share.
    stddev = sigma / 3
    assert stats.kstest(alone, 'norm', (0, stddev)).pvalue > 1e-3
    for scale in (2 / 3, 3 / 2):
      assert stats.kstest(alone, 'norm', (0, scale * stddev)).pvalue < 1e-20
    assert np.mean(alone == 0) < 0.01
    # A share has its fourth moment too: nothing is cut off or left out.
    assert stats.kurtosis(alone) == pytest.approx(0, abs=0.35)

  def test_two_rounds_and_two_runs_have_other_noise(self):
    factory = processes.factory(
        sparsifiers.Dense(), 2, clipping_norm=1.0, noise_multiplier=1.0, seed=1
    )
    process = factory.create(_VECTOR)
    state = process.initialize()
    zeros = [np.zeros(_DIM, np.float32)] * 2
    first = process.next(state, zeros)
    again = process.next(state, zeros)
    second = process.next(first.state, zeros)
    results = [first.result, again.result, second.result]
    for i, one in enumerate(results):
      for other in results[i + 1 :]:
        assert np.all(one != other)

  @pytest.mark.parametrize('sparsifier', [sparsifiers.RandK(num=7), sparsifiers.Dense()])
  def test_a_huge_client_moves_the_sum_by_at_most_c(self, sparsifier):
    clip, clients = 0.5, 5
    factory = processes.factory(
        sparsifier, clients, clipping_norm=clip, noise_multiplier=0.0, seed=3,
        client_metrics=True,
    )
    honest = _updates(clients, scale=0.01)
    direction = _updates(1, seed=9)[0]
    huge = 1000 * clip * direction / np.linalg.norm(direction)
    _, without = _run(factory, honest[:-1] + [np.zeros(_DIM, np.float32)])
    _, with_huge = _run(factory, honest[:-1] + [huge.astype(np.float32)])
    moved = clients * np.linalg.norm(with_huge.result - without.result)
    # float32 results, and half a step of rounding a value.
    assert moved == pytest.approx(clip, abs=1e-4)
    assert with_huge.measurements['exact_clipped_clients'] == 1 + (
        without.measurements['exact_clipped_clients']
    )

  @pytest.mark.parametrize(
      'bad', [np.nan, np.inf, -np.inf, 3e38]
  )
  @pytest.mark.parametrize('clip', [1.0, None])
  def test_a_broken_client_is_bounded_and_counted(self, bad, clip):
    factory = processes.factory(
        sparsifiers.Dense(), 3, clipping_norm=clip, seed=3, client_metrics=True
    )
    updates = _updates(3, scale=0.01)
    broken = updates[2].copy()
    broken[11] = bad
    _, output = _run(factory, updates[:2] + [broken])
    _, honest = _run(factory, updates[:2] + [np.zeros(_DIM, np.float32)])
    moved = 3 * np.linalg.norm(output.result - honest.result)
    if np.isfinite(bad):
      assert moved == pytest.approx(clip or 16.0, rel=0.01)
      assert output.measurements['exact_non_finite_clients'] == 0
    else:
      assert moved == 0
      assert output.measurements['exact_non_finite_clients'] == 1

  def test_a_broken_client_still_adds_its_noise(self):
    dim = 4000
    factory = processes.factory(
        sparsifiers.Dense(), 1, clipping_norm=1.0, noise_multiplier=1.0
    )
    _, output = _run(
        factory, [np.full(dim, np.nan, np.float32)],
        tff.TensorType(np.float32, [dim]),
    )
    # The standard deviation of 4000 values is within 4.5 % with probability
    # 1 - 5e-5 (four standard errors of 1/sqrt(8000)); not seeded.
    assert np.std(output.result) == pytest.approx(1.0, rel=0.06)

  def test_divides_by_r_and_refuses_another_number_of_clients(self):
    factory = processes.factory(
        sparsifiers.Dense(), 4, clipping_norm=1e6, noise_multiplier=0.0
    )
    process = factory.create(_VECTOR)
    state = process.initialize()
    for num in (3, 5):
      with pytest.raises(Exception, match='clients_per_round'):
        process.next(state, _updates(num))

  def test_with_min_reporting_a_round_of_fewer_changes_nothing(self):
    clip, sigma, dim = 0.5, 1.4, 3000
    factory = processes.factory(
        sparsifiers.Dense(), 4, clipping_norm=clip, noise_multiplier=sigma,
        seats=6, min_reporting=5,
    )
    process = factory.create(tff.TensorType(np.float32, [dim]))
    state = process.initialize()
    ones = [np.full(dim, 1 / np.sqrt(dim), np.float32)]
    for num, released in ((4, 0), (5, 1), (6, 1)):
      output = process.next(state, ones * num)
      assert output.measurements['released'] == released
      assert output.measurements['participants'] == num
      assert output.state.round_num == 1
      if not released:
        assert not np.any(output.result)
        continue
      # Divided by r = 4, whoever reported; the clipped sum is num C / sqrt(d) each.
      # Shares are sized for five: with six there is more noise, never less than sigma.
      stddev = clip * sigma * np.sqrt(num / 5) / 4
      mean = num * clip / np.sqrt(dim) / 4
      noise = output.result - mean
      assert stats.kstest(noise, 'norm', (0, stddev)).pvalue > 1e-6
      assert stats.kstest(noise, 'norm', (0, 2 / 3 * stddev)).pvalue < 1e-20
      assert stats.kstest(noise, 'norm', (0, 3 / 2 * stddev)).pvalue < 1e-20
    with pytest.raises(Exception, match='more clients than its 6 seats'):
      process.next(state, ones * 7)

  @pytest.mark.parametrize('noise', ['gaussian', 'discrete_gaussian', 'skellam'])
  def test_empty_seats_make_the_noise_whole(self, noise):
    clip, sigma, dim = 0.5, 1.4, 4000
    factory = processes.factory(
        sparsifiers.Dense(), 2, clipping_norm=clip, noise_multiplier=sigma, seats=8,
        noise=noise,
    )
    process = factory.create(tff.TensorType(np.float32, [dim]))
    updates = [np.full(dim, 1.0, np.float32)] + [np.zeros(dim, np.float32)] * 7
    output = process.next(process.initialize(), updates)
    released = output.result - clip / np.sqrt(dim) / 2
    # Fresh noise: see `test_noise_has_its_scale_...`. Integers here are some hundreds
    # of steps wide.
    for scale, least, most in ((1, 1e-6, 1), (2 / 3, 0, 1e-20), (3 / 2, 0, 1e-20)):
      found = stats.kstest(released, 'norm', (0, scale * clip * sigma / 2)).pvalue
      assert least <= found <= most
    # The release is mostly noise, and says so.
    assert 0 <= output.measurements['signal_to_noise'] < 0.2

  @pytest.mark.parametrize('noise', ['discrete_gaussian', 'skellam'])
  def test_integers_modulo_2_to_the_b_are_all_that_leaves(self, noise):
    factory = processes.factory(
        sparsifiers.RandK(num=5), 3, clipping_norm=1.0, noise_multiplier=1.0,
        noise=noise, bits=12,
    )
    process = factory.create(_VECTOR)
    tff.test.assert_not_contains_unsecure_aggregation(process.next)
    form = _form(process)
    plain, bitwidth, secure, modular = form.work.type_signature.result
    assert [len(part) for part in (plain, bitwidth)] == [0, 0]
    assert str(secure) == '<int32>' and str(modular) == '<int32[6]>'
    assert form.secure_modular_sum_modulus() == (2**12,)

  def test_discrete_means_are_numpy_s_up_to_the_stated_rounding(self):
    updates = _updates(6)
    factory = processes.factory(
        sparsifiers.RandK(num=7), 6, clipping_norm=1.5, noise_multiplier=0.0,
        noise='skellam', bits=20,
    )
    state, output = _run(factory, updates)
    expected = numpy_reference.mean_without_noise(
        updates, state.choice.coordinates, _DIM / 7, 1.5
    )
    error = np.linalg.norm(output.result - expected)
    assert error <= 1.5 * factory.round([(_DIM,)]).channel.step * np.sqrt(8)

  def test_signal_to_noise_is_estimated_from_the_release(self):
    dim, clients, sigma = 4000, 10, 0.5
    factory = processes.factory(
        sparsifiers.Dense(), clients, clipping_norm=2.0, noise_multiplier=sigma
    )
    process = factory.create(tff.TensorType(np.float32, [dim]))
    update = np.full(dim, 1.0, np.float32)
    output = process.next(process.initialize(), [update] * clients)
    # The sum is r C long, its noise sqrt(d) sigma C: energies 100 to 1,000. The noise's
    # varies by sqrt(2/d) = 2 % and it is crossed with the signal.
    assert output.measurements['signal_to_noise'] == pytest.approx(0.1, abs=0.12)

  def test_values_out_of_range_are_counted(self):
    factory = processes.factory(
        sparsifiers.Dense(), 2, value_bound=1.0, client_metrics=True
    )
    update = np.zeros(_DIM, np.float32)
    update[:5] = [0.5, 1.0, 1.5, -3.0, 2.0]
    _, output = _run(factory, [update, update])
    assert output.measurements['exact_saturated_values'] == 6
    np.testing.assert_allclose(
        output.result[:5], [0.5, 1.0, 1.0, -1.0, 1.0], atol=1e-6
    )

  def test_masks_change_by_round_and_follow_the_seed(self):
    def masks(seed):
      factory = processes.factory(sparsifiers.RandK(num=5), 1, seed=seed)
      process = factory.create(_VECTOR)
      state = process.initialize()
      found = []
      for round_num in range(3):
        assert state.round_num == round_num
        found.append(tuple(state.choice.coordinates))
        state = process.next(state, [np.ones(_DIM, np.float32)]).state
      return found

    assert len(set(masks(1))) == 3
    assert masks(1) == masks(1)
    assert masks(1) != masks(2)
    assert masks(None) != masks(None)

  @pytest.mark.parametrize(
      'value',
      [
          np.float32(0.25),
          np.arange(6, dtype=np.float64).reshape(2, 3) / 8,
          collections.OrderedDict(
              b=np.full((2, 2), 0.5, np.float32), a=np.full(3, 0.25, np.float64)
          ),
          (np.full(2, 0.5, np.float32), [np.float32(1.0), np.float32(2.0)]),
      ],
  )
  def test_any_structure_comes_back_as_it_went(self, value):
    factory = processes.factory(sparsifiers.Dense(), 2)
    value_type = tff.to_type(
        tf.nest.map_structure(
            lambda v: tff.TensorType(v.dtype.type, v.shape), value
        )
    )
    _, output = _run(factory, [value, value], value_type)
    tf.nest.assert_same_structure(output.result, value)
    for got, sent in zip(
        tf.nest.flatten(output.result), tf.nest.flatten(value)
    ):
      assert np.asarray(got).dtype == sent.dtype
      np.testing.assert_allclose(got, sent, atol=1e-6)

  def test_a_structure_without_python_type(self):
    value_type = tff.StructType([
        ('x', tff.TensorType(np.float32, [2])),
        ('y', tff.StructType([tff.TensorType(np.float32)])),
    ])
    process = processes.factory(sparsifiers.Dense(), 1).create(value_type)
    value = collections.OrderedDict(x=np.array([1, 2], np.float32), y=[np.float32(3)])
    output = process.next(process.initialize(), [value])
    assert [list(output.result['x']), output.result['y'][0]] == [
        pytest.approx([1, 2]), pytest.approx(3)
    ]


class TestComposition:
  """Unchanged in processes that are not ours."""

  _CLIENTS, _LEARNING_RATE = 3, 0.05

  def _factory(self):
    return processes.factory(
        sparsifiers.RandK(num=4), self._CLIENTS,
        clipping_norm=0.7, noise_multiplier=0.0,
    )

  def _check_stock(self, build, **options):
    model = tiny_models.linear_regression()
    process = build(
        lambda: tff.learning.models.model_from_functional(model),
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(
            self._LEARNING_RATE
        ),
        model_aggregator=self._factory(),
        metrics_aggregator=tff.learning.metrics.secure_sum_then_finalize,
        **options,
    )
    tff.test.assert_not_contains_unsecure_aggregation(process.next)
    state = process.initialize()
    before = process.get_model_weights(state).trainable
    examples = [
        tiny_models.regression_examples(6, seed=i) for i in range(self._CLIENTS)
    ]
    output = process.next(
        state,
        [tf.data.Dataset.from_tensor_slices(e).batch(6) for e in examples],
    )
    after = process.get_model_weights(output.state).trainable
    # One step of full-batch SGD from zero distance: FedProx's term is zero too.
    updates = [
        np.concatenate([
            part.reshape(-1)
            for part in numpy_reference.linear_regression_update(
                before, *e, batches=[np.arange(6)],
                learning_rate=self._LEARNING_RATE, momentum=0.0,
            )
        ])
        for e in examples
    ]
    expected = numpy_reference.mean_without_noise(
        updates, state.aggregator.choice.coordinates, 10 / 4, 0.7
    )
    got = np.concatenate([(b - a).reshape(-1) for b, a in zip(before, after)])
    np.testing.assert_allclose(got, expected, atol=2e-6)
    assert output.metrics['aggregator']['participants'] == self._CLIENTS

  def test_stock_fed_avg(self):
    self._check_stock(tff.learning.algorithms.build_unweighted_fed_avg)

  def test_stock_fed_prox(self):
    self._check_stock(
        tff.learning.algorithms.build_unweighted_fed_prox, proximal_strength=0.5
    )

  def test_masks_of_past_releases_in_stock_fed_avg(self):
    model = tiny_models.linear_regression()
    process = tff.learning.algorithms.build_unweighted_fed_avg(
        lambda: tff.learning.models.model_from_functional(model),
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(self._LEARNING_RATE),
        model_aggregator=processes.factory(
            released_topk.ReleasedTopK(num=4, explore=0.0), self._CLIENTS,
            clipping_norm=0.7, noise_multiplier=0.0,
        ),
        metrics_aggregator=tff.learning.metrics.secure_sum_then_finalize,
    )
    tff.test.assert_not_contains_unsecure_aggregation(process.next)
    state = process.initialize()
    clients = [
        tf.data.Dataset.from_tensor_slices(
            tiny_models.regression_examples(6, seed=i)
        ).batch(6)
        for i in range(self._CLIENTS)
    ]
    releases = []
    for _ in range(5):
      weights, kept = process.get_model_weights(state), state.aggregator.choice.coordinates
      state = process.next(state, clients).state
      moved = np.concatenate([
          (b - a).ravel()
          for b, a in zip(weights.trainable, process.get_model_weights(state).trainable)
      ])
      assert set(np.flatnonzero(moved)) == set(kept)
      releases.append((kept, moved[kept], np.zeros(4)))
      _, _, energy = numpy_reference.energies(releases, [(4, 2), (2,)], 0.95)
      # Equal ones are ordered by chance, which moves an energy by 1 % at most.
      np.testing.assert_allclose(
          np.sort(energy[state.aggregator.choice.coordinates]), np.sort(energy)[-4:], rtol=0.011
      )

  def test_a_computation_of_the_users_own(self):
    process = self._factory().create(_VECTOR)

    @tff.tensorflow.computation(_VECTOR)
    def negative(value):
      return -value

    @tff.federated_computation(
        process.initialize.type_signature.result,
        tff.FederatedType(_VECTOR, tff.CLIENTS),
    )
    def mean_of_negatives(state, values):
      return process.next(state, tff.federated_map(negative, values))

    tff.test.assert_not_contains_unsecure_aggregation(mean_of_negatives)
    updates = _updates(self._CLIENTS)
    state = process.initialize()
    output = mean_of_negatives(state, updates)
    expected = -numpy_reference.mean_without_noise(
        updates, state.choice.coordinates, _DIM / 4, 0.7
    )
    np.testing.assert_allclose(output.result, expected, atol=2e-6)

  def test_a_sparsifier_of_the_users_own(self):
    class Last(sparsifiers.Kept):

      def choose(self, known):
        return tf.range(_DIM - self.num_kept(_DIM), _DIM)

    updates = _updates(self._CLIENTS)
    factory = processes.factory(
        Last(num=4), self._CLIENTS, clipping_norm=0.7, noise_multiplier=0.0
    )
    state, output = _run(factory, updates)
    assert state.choice.coordinates.tolist() == [36, 37, 38, 39]
    expected = numpy_reference.mean_without_noise(updates, [36, 37, 38, 39], 1.0, 0.7)
    np.testing.assert_allclose(output.result, expected, atol=2e-6)
