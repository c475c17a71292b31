"""Renders the plan of a run: its data, mechanism and privacy, a row per fact, before it starts."""

import math
import textwrap

from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import sampling
from tasks import datasets
from tasks.cli import settings as settings_lib
from tasks.training import experiment as experiment_lib

_COLUMNS, _NAME_COLUMNS = 100, 14
# Above this, an attacker's odds about a client grow by a factor of 22,000 and more.
MEANINGFUL_EPSILON = 10


def text(experiment: experiment_lib.Experiment) -> str:
  """Returns the plan."""
  s = experiment.settings
  rows = [
      *experiment.data.rows(), ('model', _model_text(experiment)), ('init', _init_text(experiment))
  ]
  if s.system.federated:
    rows += [
        ('mask', _mask_text(experiment)),
        ('cohort', _cohort_text(experiment)),
        ('training', _training_text(s)),
        ('server', _server_text(s)),
        ('traffic', _traffic_text(experiment)),
        ('encoding', experiment.round.channel.describe(unit=' C' if experiment.private else '')),
        ('mechanism', _mechanism_text(experiment)),
        ('evaluation', _evaluation_text(experiment)),
        ('published', _published_text(experiment)),
        ('randomness', experiment.randomness),
        ('simulated', 'clients and secure aggregation'),
    ]
  lines = [f'{s.algorithm} on {s.task}, {s.rounds} rounds']
  lines += [_row(f'  {name}', row) for name, row in rows]
  if experiment.private:
    lines += ['', *privacy_lines(experiment)]
  return '\n'.join(lines)


def warnings(experiment: experiment_lib.Experiment) -> list[str]:
  """Returns sentences that must not be overlooked, for stderr; most runs have none."""
  spec = experiment.spec
  if not (experiment.private and spec.noise_multiplier):
    return []
  if (epsilon := spec.epsilon()) <= MEANINGFUL_EPSILON:
    return []
  return [
      f'the run will spend epsilon = {epsilon:.4g} on the {spec.population:,} clients in the data,'
      f' above {MEANINGFUL_EPSILON}, which promises little.'
  ]


def privacy_lines(experiment: experiment_lib.Experiment) -> list[str]:
  """Returns epsilon of all rounds, its assumptions and its limits, as lines of text."""
  spec, rounds = experiment.spec, experiment.settings.rounds
  accountant = f'{spec.accountant.title}; {spec.accountant.assumption}'
  paper = experiment.epsilons(rounds).get('epsilon_paper')
  if paper is not None:
    population = experiment.paper_spec.population
    accountant += f'. The paper\'s RDP accountant, for {population:,} clients: {paper:.4g}'
  arithmetic = 'exact arithmetic' if spec.lattice is None else 'truly random bits'
  reports = f'{spec.min_reports} honest reports per round, of {spec.num_slots}'
  excludes = 'hyperparameter tuning'
  if experiment.data.test_outside_guarantee:
    excludes += '; columns test_* of metrics.csv, measured on examples of clients'
  return [
      _row('privacy', spent_text(experiment, rounds)),
      _row('  accountant', accountant),
      _row('  assumes', f'{reports}; secret cohorts; {arithmetic}'),
      _row('  excludes', f'{excludes}; docs/privacy.md lists all limits'),
  ]


def spent_text(experiment: experiment_lib.Experiment, rounds: int) -> str:
  """Returns epsilon after `rounds` rounds and the status of the guarantee, as one line."""
  spec = experiment.spec
  epsilon = spec.epsilon(rounds=rounds)
  line = (
      f'epsilon = {epsilon:.4g}, delta = {spec.delta:.3g} for {spec.population:,} clients,'
      f' {rounds} rounds: {experiment.guarantee_status.upper()}'
  )
  if epsilon > MEANINGFUL_EPSILON:
    line += f'; above {MEANINGFUL_EPSILON} it promises little'
  return line


def _model_text(experiment: experiment_lib.Experiment) -> str:
  s, dim = experiment.settings, experiment.round.dim
  part = ' (whitened last layer)' if s.trainable == settings_lib.HEAD else ''
  return f'{datasets.TASKS[s.task].title}; d = {dim:,}{part}'


def _init_text(experiment: experiment_lib.Experiment) -> str:
  s = experiment.settings
  library = {'keras': 'Keras', 'torch': 'PyTorch'}[s.initializer]
  if s.warm_start == settings_lib.NONE:
    return f'random, as in {library}'
  schedule = datasets.TASKS[s.task].pretraining.text()
  unknown = experiment.data.public_owners is None
  privacy = 'epsilon assumes that no client has these examples' if unknown else 'epsilon unchanged'
  return f'{library} weights, pre-trained on the public set ({schedule}); {privacy}'


def _mask_text(experiment: experiment_lib.Experiment) -> str:
  k, s = experiment.round.num_kept, experiment.settings
  line = f'k = {k:,} (p = {k / experiment.round.dim:.4g}): {s.system.mask}'
  return line + (f'; a mask serves {s.mask_rounds} rounds' if s.mask_rounds > 1 else '')


def _cohort_text(experiment: experiment_lib.Experiment) -> str:
  r, spec = experiment.settings.clients_per_round, experiment.spec
  if spec.sampling == sampling.FIXED:
    return f'exactly {r} clients, without replacement'
  return (
      f'Poisson sampling at rate {r}/{spec.population:,}; {spec.num_slots} slots, empty ones filled'
      ' by dummies'
  )


def _training_text(s: settings_lib.RunSettings) -> str:
  defaults = datasets.TASKS[s.task].defaults
  line = (
      f'{s.local_epochs} epoch{"s" * (s.local_epochs != 1)} of SGD, minibatch {s.batch_size},'
      f' momentum {s.momentum:g}, learning rate {s.learning_rate:g}'
  )
  if defaults.learning_rate_decay != 1:
    every = _every(defaults.learning_rate_decay_rounds)
    line += f' (x {defaults.learning_rate_decay:g} {every})'
  return line


def _server_text(s: settings_lib.RunSettings) -> str:
  line = f'sum / {s.clients_per_round}; learning rate {s.server_learning_rate:g}'
  is_linear = s.server_learning_rate_schedule == settings_lib.LINEAR
  return line + (', linear decay to zero' if is_linear else '')


def _traffic_text(experiment: experiment_lib.Experiment) -> str:
  up, down = experiment.uplink_bytes / 1e6, experiment.downlink_bytes / 1e6
  line = (
      f'per client and round {up:.4g} MB up, {down:.4g} MB down; per client and run'
      f' {experiment.uplink_megabytes(experiment.settings.rounds):.4g} MB up'
  )
  body = experiment.body_bytes / 1e6
  return line + (f', {body:.4g} MB (frozen body) down' if body else '')


def _mechanism_text(experiment: experiment_lib.Experiment) -> str:
  s, spec, mechanism = experiment.settings, experiment.spec, experiment.aggregator.mechanism
  if not experiment.private:
    return 'none: no clipping, no noise, NO PRIVACY beyond the secure sum'
  sigma = mechanism.values_noise_multiplier
  share = mechanism_lib.share_stddev(sigma, spec.min_reports)
  line = (
      f'clip to C = {s.clip:g}; {spec.noise} noise stddev / C: share {share:.3g}, sum {sigma:.3g},'
      f' mean {sigma / s.clients_per_round:.3g}'
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
  labels_per_example = math.prod(experiment.data.test[1].shape[1:])
  error = 50 / math.sqrt(num * labels_per_example)
  return f'{num:,} random test examples {every} (standard error {error:.2g} %); all after the last'


def _published_text(experiment: experiment_lib.Experiment) -> str:
  line = 'model and number of reports (exact; private only if dropout does not depend on data)'
  if experiment.data.test_outside_guarantee:
    line += (
        '; columns test_* are exact functions of examples of clients, OUTSIDE (epsilon, delta): keep'
        ' them to yourself'
    )
  return line


def _every(rounds: int) -> str:
  return 'every round' if rounds == 1 else f'every {rounds:,} rounds'


def _row(name: str, line: str) -> str:
  columns = _NAME_COLUMNS + 2
  return textwrap.fill(f'{name + " ":<{columns}}{line}', _COLUMNS, subsequent_indent=' ' * columns)
