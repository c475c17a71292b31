"""Renders the plan of a run, before it starts: what a user needs first, or every fact."""

import dataclasses
import math
import textwrap

import fedsmp_tff
from fedsmp_tff.privacy import sampling
from tasks import datasets
from tasks.training import experiment as experiment_lib
from tasks.training import settings as settings_lib

_COLUMNS, _NAME_COLUMNS = 100, 11  # The results at a run's end have equal columns.
# Above this epsilon, an attacker's odds about a client may grow by a factor above 22,000.
_MEANINGFUL_EPSILON = 10
# The privacy of a run without rounds.
NO_ROUNDS = 'epsilon = 0: no round uses data of clients'

_Rows = list[tuple[str, str]]


def text(experiment: experiment_lib.Experiment, lost: int, verbose: bool) -> str:
  """Returns the plan.

  Args:
    experiment: The run.
    lost: Number of lost rounds that count for privacy.
    verbose: Whether to add the rows that only config.json has otherwise. What a user must know
      of the guarantee is in every plan.
  """
  s = experiment.settings
  (data, *other_data), private = experiment.data.rows(), experiment.private and s.rounds
  first = [data, ('model', _model_text(experiment)), *_privacy_rows(experiment, lost)]
  more = [*other_data, ('init', _init_text(experiment))]
  if s.rounds:
    more += _round_rows(experiment)
  if private:
    more += _guarantee_rows(experiment, lost)
  lines = [f'{s.algorithm} on {s.task}, {_rounds_text(experiment)}']
  lines += [_row(name, row) for name, row in first]
  if verbose:
    lines += ['', *(_row(name, row) for name, row in more)]
  return '\n'.join(lines)


def spent_text(experiment: experiment_lib.Experiment, rounds: int) -> str:
  """Returns epsilon after `rounds` rounds and the status of the guarantee, as one line."""
  spec = experiment.spec
  epsilon, choice = experiment.epsilon(rounds), experiment.choice_rounds
  num = rounds + choice
  line = (
      f'epsilon = {epsilon:.4g}, delta = {spec.delta:.3g} for {spec.population:,} clients,'
      f' {num} round{"s" * (num != 1)}{f" ({choice} of the choice)" if choice else ""}:'
      f' {experiment.guarantee_status.upper()}'
  )
  if _MEANINGFUL_EPSILON < epsilon < math.inf:
    line += f'; above {_MEANINGFUL_EPSILON} it promises little'
  return line


def resumed_text(experiment: experiment_lib.Experiment, rounds_done: int, lost: int) -> str:
  """Returns that a run resumes, and how many lost rounds count."""
  text = f'resuming after round {rounds_done} of {experiment.settings.rounds}'
  return f'{text}\n  {lost_text(experiment, lost)}' if lost else text


def lost_text(experiment: experiment_lib.Experiment, lost: int) -> str:
  """Returns how many lost rounds count for privacy, and where epsilon ends with them."""
  s = experiment.settings
  end = experiment.epsilon(s.rounds + lost)
  rounds = '1 lost round counts' if lost == 1 else f'{lost:,} lost rounds count'
  line = f'{rounds} towards epsilon, which ends at {end:.4g} if no more are lost'
  if s.epsilon_budget is not None:
    line += f', unless --epsilon_budget={s.epsilon_budget:g} ends the run first'
  elif s.epsilon is not None and end > s.epsilon:
    line += (
        f', above --epsilon={s.epsilon:g}; --epsilon_budget={s.epsilon:g} would end the run before'
        ' that'
    )
  return line


def choice_text(experiment: experiment_lib.Experiment, num: int, lost: int) -> str:
  """Returns epsilon of a run with a choice of `num` rounds, and `lost` ones of an earlier try."""
  rounds = experiment.settings.rounds
  experiment = dataclasses.replace(experiment, choice_rounds=num + lost)
  lines = [f'{spent_text(experiment, rounds)}, with sigma = {experiment.spec.noise_multiplier:.4g}']
  return '\n'.join([*lines, *_above_target(experiment, rounds)])


def _above_target(experiment: experiment_lib.Experiment, rounds: int) -> list[str]:
  """Returns a sentence if an interrupted choice has spent more than --epsilon."""
  target = experiment.settings.epsilon
  if not experiment.choice_rounds or target is None or experiment.epsilon(rounds) <= 1.001 * target:
    return []
  return [f'rounds of an interrupted choice count, so that epsilon ends above --epsilon={target:g}']


def _rounds_text(experiment: experiment_lib.Experiment) -> str:
  s = experiment.settings
  if not s.rounds:
    return '0 rounds: evaluates the initial weights'
  rounds = f'{s.rounds} round{"s" * (s.rounds != 1)}'
  if experiment.spec.sampling == sampling.FIXED:
    return f'{rounds} of exactly {s.clients_per_round:,} clients'
  return f'{rounds} of {experiment.spec.round.mean_clients:,.4g} clients on average'


def _model_text(experiment: experiment_lib.Experiment) -> str:
  s, dim = experiment.settings, experiment.round.dim
  part = 'whitened last layer' if s.trainable == settings_lib.HEAD else 'all layers'
  line = f'{datasets.TASKS[s.task].title}; {part}, d = {dim:,}'
  return f'{line}; clients send k = {experiment.round.num_kept:,}' if s.rounds else line


def _init_text(experiment: experiment_lib.Experiment) -> str:
  s = experiment.settings
  library = {'keras': 'Keras', 'torch': 'PyTorch'}[s.initializer]
  if s.warm_start == settings_lib.NONE:
    return f'random, as in {library}'
  schedule = experiment.pretraining.text()
  return f'{library} weights, pre-trained on the public set ({schedule}); epsilon unchanged'


def _privacy_rows(experiment: experiment_lib.Experiment, lost: int) -> _Rows:
  """Returns epsilon of all rounds, its status, and what it does not cover."""
  s = experiment.settings
  if not s.rounds:
    return [('privacy', NO_ROUNDS)]
  if not experiment.private:
    return [('privacy', 'none: no clipping, no noise, NO PRIVACY beyond the secure sum')]
  rows = [('privacy', spent_text(experiment, s.rounds + lost))]
  if experiment.spec.sampling == sampling.ALLOCATION:
    rows.append(('sampling', _allocation_text(experiment.spec, s.rounds)))
  if lost:
    rows.append(('lost', lost_text(experiment, lost)))
  else:
    rows += [('lost', sentence) for sentence in _above_target(experiment, s.rounds)]
  if s.seed is not None:
    rows.append((
        'SIMULATION',
        f'--seed={s.seed} makes the noise reproducible, so ANYONE WHO KNOWS THE SEED CAN REMOVE IT',
    ))
  if s.public_examples is not None and experiment.data.public_owners is None:
    rows.append(('CONDITION', 'epsilon holds if no client has an example of the public set'))
  other = 'other ' if experiment.choice_rounds else ''
  excludes = f'{other}tuning, other runs on these clients, the exact number of reports'
  owners = (experiment.data.test_owners, experiment.data.public_owners)
  people = frozenset().union(*(o.ids for o in owners if o is not None))
  if num := len(people.difference(experiment.data.client_ids)):
    excludes += f', {num:,} owner{"s" * (num > 1)} of test and public examples'
  if experiment.data.test_outside_guarantee:
    excludes += '; columns test_*, measured on clients\' examples: do not publish them'
  return [*rows, ('excludes', f'{excludes}; see docs/privacy.md')]


def _round_rows(experiment: experiment_lib.Experiment) -> _Rows:
  s, spec, defaults = (
      experiment.settings, experiment.spec, datasets.TASKS[experiment.settings.task].defaults
  )
  k, r = experiment.round.num_kept, s.clients_per_round
  mask = f'k = {k:,} (p = {k / experiment.round.dim:.4g}): {s.method.mask}'
  if s.mask_rounds > 1:
    mask += f'; a mask serves {s.mask_rounds} rounds'
  cohort = f'exactly {r} clients, without replacement'
  if spec.sampling == sampling.POISSON:
    cohort = (
        f'Poisson sampling at rate {r}/{spec.population:,}; {spec.num_slots} slots, empty ones'
        ' filled by dummies'
    )
  elif spec.sampling == sampling.ALLOCATION:
    cohort = f'random allocation; {spec.num_slots:,} slots, empty ones filled by dummies'
  training = (
      f'{s.local_epochs} epoch{"s" * (s.local_epochs != 1)} of SGD, minibatch {s.batch_size},'
      f' momentum {s.momentum:g}, learning rate {s.learning_rate:g}'
  )
  if defaults.learning_rate_decay != 1:
    every = _every(defaults.learning_rate_decay_rounds)
    training += f' (x {defaults.learning_rate_decay:g} {every})'
  if s.max_client_examples is not None:
    training += f'; at most {s.max_client_examples:,} examples per client, drawn anew in each round'
  server = f'sum / {r}; '
  if s.server_optimizer == settings_lib.FEDEXP:
    server += 'step from each release (FedExP)'
  else:
    server += f'learning rate {s.server_learning_rate:g}'
  if s.server_learning_rate_schedule == settings_lib.LINEAR:
    server += ', linear decay to zero'
  traffic = (
      f'per client and round {experiment.uplink_bytes / 1e6:.4g} MB up,'
      f' {experiment.downlink_bytes / 1e6:.4g} MB down; per client and run'
      f' {experiment.uplink_megabytes(s.rounds):.4g} MB up'
  )
  if s.trainable == settings_lib.HEAD:
    traffic += ', and the frozen body down'
  every, num = _every(s.rounds_per_evaluation), experiment.eval_examples
  evaluation = f'all test examples {every} and after the last'
  if num is not None:
    evaluation = f'{num:,} random test examples {every}; all before the first and after the last'
  randomness = 'from the operating system, fresh for every client and round'
  if s.seed is not None:
    randomness = f'from --seed={s.seed}'
  return [
      ('mask', mask), ('cohort', cohort), ('training', training), ('server', server),
      ('traffic', traffic),
      ('encoding', experiment.round.channel.describe(unit=' C' if experiment.private else '')),
      *([('mechanism', _mechanism_text(experiment))] if experiment.private else []),
      ('evaluation', evaluation), ('randomness', randomness),
      ('simulated', 'clients and secure aggregation'),
  ]


def _allocation_text(spec: fedsmp_tff.PrivacySpec, rounds: int) -> str:
  """Returns how clients are sampled, and how many blocks count for epsilon."""
  per_block = spec.round.rounds_per_block
  blocks, rest = spec.round.in_blocks(rounds)[1], rounds % per_block
  text = (
      f'random allocation: each client in one secret round of each block of {per_block:,}; {blocks:,}'
      f' block{"s" * (blocks != 1)}'
  )
  if rest:
    whole = ' or '.join(f'{t:,}' for t in (rounds - rest, rounds - rest + per_block) if t)
    text += f'. The last has {rest:,} rounds and counts whole; --rounds={whole} has whole blocks only'
  return text


def _mechanism_text(experiment: experiment_lib.Experiment) -> str:
  s, spec, mechanism = experiment.settings, experiment.spec, experiment.aggregator.mechanism
  sigma = mechanism.values_noise_multiplier
  share = mechanism.share_stddev / mechanism.value_weight
  line = (
      f'clip to C = {s.clip:g}; {spec.noise.name} noise, sigma = {sigma:.4g}; standard deviation'
      f' {share:.3g} C per share, {sigma / s.clients_per_round:.3g} C in the mean'
  )
  if s.clip_quantile is not None:
    line += (
        f'; C follows the {s.clip_quantile:g} quantile of the norms, whose votes raise sigma from'
        f' {spec.noise_multiplier:g} to {sigma:.4g} at equal epsilon'
    )
  return line


def _guarantee_rows(experiment: experiment_lib.Experiment, lost: int) -> _Rows:
  """Returns how epsilon of all rounds is computed, and what it assumes."""
  spec = experiment.spec
  accountant = f'{spec.accountant.title}; {spec.accountant.assumption}'
  epsilons = experiment.epsilons(experiment.settings.rounds + lost)
  if (paper := epsilons.get('epsilon_paper')) is not None:
    population = experiment.paper_spec.population
    accountant += (
        f'. Not for quoting: the paper\'s RDP accountant, {population:,} clients: {paper:.4g}'
    )
  reports = f'{spec.min_reports} honest reports per round, of {spec.num_slots}'
  return [
      ('accountant', accountant),
      ('assumes', f'{reports}; secret cohorts; {spec.noise.assumption}'),
  ]


def _every(rounds: int) -> str:
  return 'every round' if rounds == 1 else f'every {rounds:,} rounds'


def _row(name: str, line: str) -> str:
  return textwrap.fill(
      f'  {name:<{_NAME_COLUMNS}}{line}', _COLUMNS, subsequent_indent=' ' * (_NAME_COLUMNS + 2)
  )
