"""Tests that a stock process with `no_client_metrics` releases nothing but the aggregate."""

import functools

import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fedsmp_tff
from tests.support import leaks
from tests.support import tiny_models

_ALGORITHMS = tff.learning.algorithms
_BUILDERS = {
    'fed_avg': _ALGORITHMS.build_unweighted_fed_avg,
    'fed_prox': functools.partial(_ALGORITHMS.build_unweighted_fed_prox, proximal_strength=0.5),
}


def _process(build, functional, **options):
  model = tiny_models.linear_regression()
  return build(
      model if functional else lambda: tff.learning.models.model_from_functional(model),
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
      model_aggregator=fedsmp_tff.FedSmpFactory(
          fedsmp_tff.RandK(num=3), fedsmp_tff.Mechanism(3, 1.0, 0.5)
      ),
      **options,
  )


@pytest.mark.parametrize('functional', [True, False])
@pytest.mark.parametrize('build', _BUILDERS.values(), ids=_BUILDERS)
def test_a_stock_process_releases_the_aggregate_alone(build, functional):
  process = _process(build, functional, metrics_aggregator=fedsmp_tff.no_client_metrics)
  examples = tf.data.Dataset.from_tensor_slices(tiny_models.regression_examples(8, seed=1))
  output = process.next(process.initialize(), [examples.batch(4)] * 3)
  leaks.check_nothing_else_leaves_clients(process, output.metrics)
  # Only the integers of the masked sum, and the count of them, leave a client.
  form = tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next)
  plain, bitwidth, secure, modular = form.work.type_signature.result
  assert [len(part) for part in (plain, bitwidth, secure, modular)] == [0, 0, 1, 0]


def test_without_it_client_metrics_leave_in_an_unsecure_sum():
  process = _process(_ALGORITHMS.build_unweighted_fed_avg, True)
  examples = tf.data.Dataset.from_tensor_slices(tiny_models.regression_examples(8, seed=1))
  output = process.next(process.initialize(), [examples.batch(4)] * 3)
  assert output.metrics['client_work']['train']
  with pytest.raises(AssertionError):
    tff.test.assert_not_contains_unsecure_aggregation(process.next)
  # What the check of metrics finds, whatever the process.
  quiet = _process(
      _ALGORITHMS.build_unweighted_fed_avg, True, metrics_aggregator=fedsmp_tff.no_client_metrics
  )
  with pytest.raises(AssertionError, match='client_work'):
    leaks.check_nothing_else_leaves_clients(quiet, output.metrics)
