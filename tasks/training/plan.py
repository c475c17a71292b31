"""Renders the plan of a run: its data, mechanism and privacy, a row per fact, before it starts."""

import math
import textwrap

import numpy as np

from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import sampling
from tasks import datasets
from tasks.cli import settings as settings_lib
from tasks.datasets import task as task_lib
from tasks.training import experiment as experiment_lib

_COLUMNS = 96
_NAME_COLUMNS = 14
# Above this, an attacker's odds about a client grow by a factor of 22,000 and more.
MEANINGFUL_EPSILON = 10


def text(experiment: experiment_lib.Experiment) -> str:
  """Returns the plan."""
  s = experiment.settings
  rows = [*experiment.data.rows(), ('model', _model_text(experiment)), ('init', _init_text(experiment))]
  if s.system.federated:
    rows += [
        ('mask', _mask_text(experiment)),
        ('cohort', _cohort_text(experiment)),
        ('training', _training_text(experiment)),
        ('server', _server_text(experiment)),
        ('traffic', _traffic_text(experiment)),
        ('encoding', experiment.round.channel.describe(unit=' C' if experiment.private else '')),
        ('mechanism', _mechanism_text(experiment)),
        ('evaluation', _evaluation_text(experiment)),
        ('published', _published_text(experiment)),
        ('randomness', experiment.randomness),
        ('simulated', 'clients and secure aggregation'),
    ]
  title = f'{s.algorithm} on {s.task}, {s.rounds} rounds'
  lines = [title, *(_row(name, row) for name, row in rows)]
  return '\n'.join([*lines, *(['', *privacy_lines(experiment)] if experiment.private else [])])


def warnings(experiment: experiment_lib.Experiment) -> list[str]:
  """Returns sentences that must not be overlooked, for stderr; most runs have none."""
  spec = experiment.spec
  if not experiment.private or not spec.noise_multiplier:
    return []
  epsilon = spec.epsilon()
  if epsilon <= MEANINGFUL_EPSILON:
    return []
  return [
      f'the run will spend epsilon = {epsilon:.4g} on the {spec.population:,} clients in the data,'
      f' above {MEANINGFUL_EPSILON}, which promises little.'
  ]


def privacy_lines(experiment: experiment_lib.Experiment) -> list[str]:
  """Returns epsilon of all rounds, for whom it is valid and what it assumes, as lines of text."""
  spec = experiment.spec
  accountant = f'{spec.accountant.title}; {spec.accountant.assumption}'
  paper = experiment.epsilons(experiment.settings.rounds).get('epsilon_paper')
  if paper is not None:
    accountant += (
        f'. The paper\'s RDP accountant, for {experiment.paper_spec.population:,} clients: {paper:.4g}'
    )
  arithmetic = 'exact arithmetic' if spec.lattice is None else 'truly random bits'
  excludes = 'hyperparameter tuning'
  if experiment.data.test_outside_guarantee:
    excludes += '; columns test_* of metrics.csv, measured on examples of clients'
  return [
      f'{"privacy":<{_NAME_COLUMNS + 2}}{spent_text(experiment, experiment.settings.rounds)}',
      _row('accountant', accountant),
      _row(
          'assumes',
          f'{spec.min_reports} honest reports per round, of {spec.num_slots}; secret cohorts;'
          f' {arithmetic}',
      ),
      _row('excludes', f'{excludes}; docs/privacy.md lists all limits'),
  ]


def spent_text(experiment: experiment_lib.Experiment, rounds: int) -> str:
  """Returns epsilon of so many rounds and the status of the guarantee, as one line."""
  spec = experiment.spec
  epsilon = spec.epsilon(rounds=rounds)
  line = (
      f'epsilon = {epsilon:.4g}, delta = {spec.delta:.3g} for {spec.population:,} clients,'
      f' {rounds} rounds: {experiment.guarantee_status.upper()}'
  )
  if epsilon > MEANINGFUL_EPSILON:
    line += f'; above {MEANINGFUL_EPSILON} it promises little'
  return line


def labels_per_example(data: task_lib.TaskData) -> int:
  """Returns the number of labels of an example: 1, or the length of a sequence."""
  return int(np.prod(data.test[1].shape[1:]))


def _model_text(experiment: experiment_lib.Experiment) -> str:
  line = f'{datasets.TASKS[experiment.settings.task].title}; d = {experiment.dim:,} parameters'
  if experiment.settings.trainable == settings_lib.HEAD:
    line += ': the last layer, on whitened features of a frozen body'
  return line


def _init_text(experiment: experiment_lib.Experiment) -> str:
  library = {'keras': 'Keras', 'torch': 'PyTorch'}[experiment.settings.initializer]
  if experiment.settings.warm_start == settings_lib.NONE:
    return f'random, as in {library}'
  schedule = datasets.TASKS[experiment.settings.task].pretraining
  unknown = experiment.data.public_owners is None
  privacy = 'epsilon assumes that no client has these examples' if unknown else 'epsilon unchanged'
  return f'pre-trained on the public set ({schedule.text()}), from {library} weights; {privacy}'


def _mask_text(experiment: experiment_lib.Experiment) -> str:
  k, rounds = experiment.round.num_kept, experiment.settings.mask_rounds
  line = f'k = {k:,} (p = {k / experiment.dim:.4g}): {experiment.settings.system.mask}'
  return line + (f'; a mask serves {rounds} rounds' if rounds > 1 else '')


def _cohort_text(experiment: experiment_lib.Experiment) -> str:
  r, spec = experiment.settings.clients_per_round, experiment.spec
  if spec.sampling == sampling.FIXED:
    return f'exactly {r} clients, without replacement'
  return (
      f'Poisson sampling, each client with probability {r}/{experiment.num_clients:,}; {spec.num_slots}'
      ' slots, empty ones filled by dummies'
  )


def _training_text(experiment: experiment_lib.Experiment) -> str:
  s, defaults = experiment.settings, datasets.TASKS[experiment.settings.task].defaults
  line = (
      f'{_plural(s.local_epochs, "epoch")} of SGD, minibatch {s.batch_size}, momentum {s.momentum:g},'
      f' learning rate {s.learning_rate:g}'
  )
  if defaults.learning_rate_decay != 1:
    line += (
        f' decayed by {defaults.learning_rate_decay:g} {_every(defaults.learning_rate_decay_rounds)}'
    )
  return line


def _server_text(experiment: experiment_lib.Experiment) -> str:
  s = experiment.settings
  line = f'sum / {s.clients_per_round}; learning rate {s.server_learning_rate:g}'
  return line + (', linear decay to zero' if s.server_learning_rate_schedule == settings_lib.LINEAR else '')


def _traffic_text(experiment: experiment_lib.Experiment) -> str:
  body = experiment.body_bytes
  return (
      f'per client and round: {experiment.uplink_bytes / 1e6:.4g} MB up,'
      f' {experiment.downlink_bytes / 1e6:.4g} MB down; uplink per client over the run:'
      f' {experiment.uplink_megabytes(experiment.settings.rounds):.4g} MB'
      + (f'; a frozen body of {body / 1e6:.4g} MB once' if body else '')
  )


def _mechanism_text(experiment: experiment_lib.Experiment) -> str:
  s = experiment.settings
  if not experiment.private:
    return 'none: no clipping, no noise, NO PRIVACY beyond the secure sum'
  spec, sigma = experiment.spec, experiment.aggregator.mechanism.values_noise_multiplier
  share = mechanism_lib.share_stddev(sigma, spec.min_reports)
  line = (
      f'clip to C = {s.clip:g}; {spec.noise} noise, stddev of a share {share:.4g} C, of the sum'
      f' {sigma:.4g} C, of the mean {sigma / s.clients_per_round:.4g} C'
  )
  if s.clip_quantile is not None:
    line += (
        f'; C follows the {s.clip_quantile:g} quantile of the norms, within epsilon: sigma ='
        f' {sigma:.4g} for {spec.noise_multiplier:g}'
    )
  return line + ('; C decays with the learning rate of clients' if s.clip_schedule else '')


def _evaluation_text(experiment: experiment_lib.Experiment) -> str:
  every, num = _every(experiment.settings.rounds_per_evaluation), experiment.eval_examples
  if num is None:
    return f'all test examples {every} and after the last'
  error = 50 / math.sqrt(num * labels_per_example(experiment.data))
  return (
      f'{num:,} random test examples {every} (standard error about {error:.2g} %); all after the last'
  )


def _published_text(experiment: experiment_lib.Experiment) -> str:
  line = (
      'released model, and number of reports (exact; private only if dropout does not depend on data)'
  )
  if experiment.data.test_outside_guarantee:
    line += (
        '; columns test_* are exact functions of examples of clients, OUTSIDE (epsilon, delta): keep'
        ' them to yourself'
    )
  return line


def _plural(num: int, noun: str) -> str:
  return f'{num:,} {noun}{"s" * (num != 1)}'


def _every(rounds: int) -> str:
  return 'every round' if rounds == 1 else f'every {rounds:,} rounds'


def _row(name: str, line: str) -> str:
  indent = ' ' * (_NAME_COLUMNS + 2)
  return textwrap.fill(f'  {name:<{_NAME_COLUMNS}}{line}', _COLUMNS, subsequent_indent=indent)
