"""Renders a summary of a run (data, traffic, mechanism, privacy) before it starts."""

import math
import textwrap
from typing import Optional

import numpy as np

from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import noise
from fedsmp_tff.privacy import accounting
from fedsmp_tff.privacy import sampling
from tasks import datasets
from tasks.config import recipes
from tasks.config import settings as settings_lib
from tasks.datasets import task as task_lib
from tasks.training import builders
from tasks.training import experiment as experiment_lib

_COLUMNS = 96
# Above this, an attacker's odds about a client grow by a factor of 22,000 and more.
MEANINGFUL_EPSILON = 10


def text(experiment: experiment_lib.Experiment) -> str:
  """Renders the page."""
  s = experiment.settings
  post = post_processing_text(s)
  rows = [
      *([('setting', setting)] if (setting := _setting_text(s)) else []),
      ('task', datasets.TASKS[s.task].title),
      ('data', experiment.data.text()),
      ('model', _model_text(experiment)),
      *([('start', start)] if (start := _start_text(experiment)) else []),
  ]
  if settings_lib.ALGORITHMS[s.algorithm].federated:
    rows += [
        ('kept', _kept_text(experiment)),
        ('round', _round_text(experiment)),
        ('traffic', _traffic_text(experiment)),
        ('encoding', _encoding_text(experiment)),
        ('mechanism', _mechanism_text(experiment)),
        *([('server', post)] if post else []),
        ('accuracy', _accuracy_text(experiment)),
        ('metrics', _metrics_text(experiment)),
        ('randomness', experiment.randomness),
        ('simulated', _simulated_text(experiment)),
    ]
  lines = [f'{s.algorithm} on {s.task}, {s.rounds} rounds']
  lines += [_wrapped(f'  {name:<10} {text}', 13) for name, text in rows]
  if experiment.private:
    lines += ['', *privacy_lines(experiment)]
  return '\n'.join(lines)


def warnings(experiment: experiment_lib.Experiment) -> list[str]:
  """Sentences that must not be overlooked, for stderr; most runs have none."""
  if not experiment.private or not experiment.spec.noise_multiplier:
    return []
  target, spec = experiment.settings.epsilon, experiment.spec
  if target is not None and target > MEANINGFUL_EPSILON:
    return [f'--epsilon={target:g} is above {MEANINGFUL_EPSILON}, which promises little.']
  spent = spec.epsilon()
  if spent > MEANINGFUL_EPSILON:
    return [
        f'the run will spend epsilon = {spent:.4g} on the {spec.population:,} clients in the data,'
        f' above {MEANINGFUL_EPSILON}, which promises little.'
    ]
  return []


def _setting_text(settings: settings_lib.RunSettings) -> Optional[str]:
  """Names the recipe that runs, and how to get the paper's setting."""
  if settings.recipe is None:
    return None
  text = f'--recipe={settings.recipe}'
  if settings.recipe == recipes.BEST:
    text += (
        '; epsilon does not cover how this recipe was chosen; flags given explicitly override it'
    )
    if recipes.PAPER in recipes.names(settings.task):
      text += f"; --recipe={recipes.PAPER} is the paper's setting"
  if (time := recipes.time_of(settings.task, settings.recipe)) is not None:
    text += f'; unchanged it takes about {time}'
  return text


def _model_text(experiment: experiment_lib.Experiment) -> str:
  text = f'd = {experiment.dim:,} parameters'
  whose = {'keras': 'Keras\'s', 'torch': 'PyTorch\'s'}[experiment.settings.initializer]
  text += f', from {whose} default initial weights'
  if experiment.settings.whiten is not None:
    text += '; the last layer in coordinates in which its inputs on the public examples are white'
  return text


def _start_text(experiment: experiment_lib.Experiment) -> Optional[str]:
  """Describes the pre-training of --warm_start; None without it."""
  if experiment.settings.warm_start is None:
    return None
  schedule = datasets.TASKS[experiment.settings.task].pretraining
  unknown = experiment.data.public_owners is None
  return (
      f'pre-training on the {len(experiment.data.public[0]):,} public examples: {schedule.text()}. '
      + ('Epsilon assumes that no client has them' if unknown else 'Epsilon is unchanged')
  )


def _kept_text(experiment: experiment_lib.Experiment) -> str:
  how = {
      None: 'all coordinates',
      'randk': 'random coordinates, the same for all clients',
      'topk': 'top coordinates of an update on the public examples, the same for'
              ' all clients',
      'released': 'those that moved most in past releases, and some at random; the same'
                  ' for all clients',
      'head': 'the last layer, in every round',
  }[settings_lib.ALGORITHMS[experiment.settings.algorithm].sparsifier]
  k = experiment.round.num_kept
  text = f'k = {k:,} (p = {k / experiment.dim:.4g}): {how}'
  mask_rounds = experiment.settings.mask_rounds
  if mask_rounds > 1:
    text += f'; each set serves {mask_rounds} rounds'
  return text


def _round_text(experiment: experiment_lib.Experiment) -> str:
  s = experiment.settings
  length = _plural(s.local_epochs, 'epoch')
  paper = datasets.TASKS[s.task].settings
  text = (
      f'{_cohort_text(experiment)}; {length} of'
      f' SGD, batch {s.batch_size}, momentum {s.momentum}, rate'
      f' {s.learning_rate} x {paper.learning_rate_decay} {_every(paper.learning_rate_decay_rounds)}'
  )
  public = experiment.aggregator.sparsifier.public_training(builders.local_training(s))
  if public is not None:
    text += f'; on the public examples {_public_text(public, length)}'
  if s.server_learning_rate != 1:
    text += f'; server\'s rate {s.server_learning_rate:g}'
  return text


def _public_text(public: sparsifiers.PublicTraining, length: str) -> str:
  if public.clients is not None:
    length = f'the mean of {public.clients} pseudo-clients, {length}'
  return length


def _cohort_text(experiment: experiment_lib.Experiment) -> str:
  r, seats = experiment.settings.clients_per_round, experiment.spec.seats
  text = f'exactly {r} clients, without replacement'
  if experiment.spec.sampling == sampling.POISSON:
    text = (
        f'each client with probability {r}/{experiment.num_clients:,}, at most {seats}'
        f' (empty seats send noise alone); sums divided by {r}'
    )
  return text


def _traffic_text(experiment: experiment_lib.Experiment) -> str:
  s = experiment.settings
  return (
      f'a client and round: {experiment.uplink_bytes / 1e6:.4g} MB up,'
      f' {experiment.downlink_bytes / 1e6:.4g} MB down; up over the run:'
      f' {experiment.uplink_megabytes(s.rounds):.4g} MB a client on average'
      + (
          f' ({experiment.spec.seats} participants send, {s.clients_per_round} of them with'
          ' data on average)'
          if experiment.spec.seats > s.clients_per_round
          else ''
      )
  )


def _encoding_text(experiment: experiment_lib.Experiment) -> str:
  return experiment.round.channel.describe(unit=' C' if experiment.private else '')


def _mechanism_text(experiment: experiment_lib.Experiment) -> str:
  s = experiment.settings
  if not experiment.private:
    return 'none: no clipping, no noise, NO PRIVACY beyond the secure sum'
  spec, sigma = experiment.spec, experiment.aggregator.mechanism.values_noise_multiplier
  share = noise.share_stddev(sigma, spec.min_reporting)
  text = (
      f'clip to C = {s.clip:g}; each participant adds {spec.noise} noise of standard'
      f' deviation {share:.4g} C to each kept value, so the sum of'
      f' {spec.min_reporting} has sigma C = {sigma:.4g} C and the mean'
      f' {sigma / s.clients_per_round:.4g} C'
  )
  if s.clip_quantile is not None:
    text += (
        f'; C follows the {s.clip_quantile:g} quantile of the norms, within epsilon:'
        f' values get sigma = {sigma:.4g} for {spec.noise_multiplier:g}'
    )
  return text


def _accuracy_text(experiment: experiment_lib.Experiment) -> str:
  of_last = _every(experiment.settings.rounds_per_evaluation)
  if experiment.eval_examples is None:
    return f'on all test examples {of_last} and after the last'
  labels = experiment.eval_examples * labels_per_example(experiment.data)
  return (
      f'on {experiment.eval_examples:,} random test examples {of_last} (standard error about'
      f' {50 / math.sqrt(labels):.2g} %), and on all after the last'
  )


def labels_per_example(data: task_lib.TaskData) -> int:
  """The number of labels of an example: 1, or the length of a sequence."""
  return int(np.prod(data.test[1].shape[1:]))


def _metrics_text(experiment: experiment_lib.Experiment) -> str:
  text = (
      'only the release and the exact number of reports, which is private only if who drops out'
      ' does not depend on data'
  )
  if experiment.data.test_outside_guarantee:
    text += (
        '; columns test_* are exact functions of clients\' own examples, OUTSIDE (epsilon,'
        ' delta): keep them to yourself'
    )
  return text


def _simulated_text(experiment: experiment_lib.Experiment) -> str:
  return 'secure aggregation (sums are plain on this machine), and all clients'


def privacy_lines(experiment: experiment_lib.Experiment) -> list[str]:
  """Returns epsilon of all rounds, for whom it is valid and what it assumes, as lines of text."""
  s, spec = experiment.settings, experiment.spec
  title, adjacency, *_ = accounting.ACCOUNTINGS[spec.claim]
  lines = [
      f'privacy  {spent_text(experiment, s.rounds)}',
      f'by {title}; {adjacency}',
  ]
  if (of_paper := experiment.epsilons(s.rounds).get('epsilon_paper')) is not None:
    lines.append(
        f'to compare, in the paper\'s accounting (RDP, Poisson sampling), for n ='
        f' {experiment.paper_spec.population:,}: {of_paper:.4g}'
    )
  exact = 'exact arithmetic' if spec.lattice is None else 'truly random bits'
  lines.append(
      f'assumes: honest participants, {spec.min_reporting} of {spec.seats} report, secret'
      f' participation, {exact}'
  )
  outside = ['the choice of hyperparameters']
  if experiment.data.test_outside_guarantee:
    outside.append("columns test_* of metrics.csv, measured on clients' own examples")
  lines.append(f'outside: {", ".join(outside)}; docs/privacy.md has all limits')
  return [_wrapped(lines[0], 11), *(_wrapped(f'{"":9}{line}', 11) for line in lines[1:])]


def spent_text(experiment: experiment_lib.Experiment, rounds: int) -> str:
  """Returns epsilon of so many rounds, and whether it is valid, as one sentence."""
  epsilon = experiment.spec.epsilon(rounds=rounds)
  text = (
      f'epsilon = {epsilon:.4g}, delta = {experiment.spec.delta:.3g}, n ='
      f' {experiment.spec.population:,}, {rounds} rounds: {_verdict_text(experiment)}'
  )
  if epsilon > MEANINGFUL_EPSILON:
    text += f'; above {MEANINGFUL_EPSILON} it promises little'
  return text


def _verdict_text(experiment: experiment_lib.Experiment) -> str:
  if experiment.settings.seed is None:
    return 'VALID'
  return f'{experiment.verdict.upper()}: anyone who knows --seed can remove the noise'


def post_processing_text(settings: settings_lib.RunSettings) -> Optional[str]:
  """Describes the post-processing, for the plan; None if there is none."""
  s = settings
  parts = []
  if s.released_weight is not None:
    parts.append(
        f'coordinates ranked by past releases too, of weight {s.released_weight:g}, and smoothed'
        ' over the rows and columns of layers'
    )
  if s.clip_schedule is not None:
    parts.append('C falls with the clients\' learning rate')
  if s.server_schedule is not None:
    parts.append('the server\'s learning rate decays linearly to zero')
  if not parts:
    return None
  return '; '.join(parts) + '. These use only released and public data: epsilon is unchanged'


def _plural(num: int, noun: str) -> str:
  return f'{num:,} {noun}{"s" * (num != 1)}'


def _every(rounds: int) -> str:
  return 'every round' if rounds == 1 else f'every {rounds:,} rounds'


def _wrapped(text: str, indent: int) -> str:
  return textwrap.fill(text, _COLUMNS, subsequent_indent=' ' * indent)
