"""What a run is going to do, move and spend, before it starts; one page of text."""

import dataclasses
import math
import textwrap
from typing import Any, Optional

from fedsmp_tff import aggregator
from fedsmp_tff import communication
from fedsmp_tff.mechanism import masked_sum
from fedsmp_tff.mechanism import noise
from fedsmp_tff.privacy import accounting
from fedsmp_tff.privacy import sampling
from fedsmp_tff.privacy import spec as spec_lib
from tasks import datasets
from tasks.config import settings as settings_lib
from tasks.datasets import task as task_lib
from tasks.training import experiment

_COLUMNS = 96


@dataclasses.dataclass(frozen=True)
class Plan:
  """A run's settings with everything that follows from them and the data.

  Attributes:
    settings: The run's settings, with `noise_multiplier` known.
    data: The data.
    dim: d.
    mechanism: The masked sum.
    traffic: Bytes of a client and round.
    spec: What is sampled and added, and what that guarantees for the data's clients.
    hypothetical: The same with the --population that was asked for, if that is another.
  """

  settings: settings_lib.RunSettings
  data: task_lib.TaskData
  dim: int
  mechanism: masked_sum.MaskedPrivateSum
  traffic: communication.Communication
  spec: spec_lib.PrivacySpec
  hypothetical: Optional[spec_lib.PrivacySpec]

  @property
  def private(self) -> bool:
    """Whether clients clip, and add noise."""
    return self.settings.clip is not None

  @property
  def num_clients(self) -> int:
    return len(self.data.clients)

  def uplink_megabytes(self, rounds: int) -> float:
    return self.traffic.uplink_megabytes(
        rounds, self.settings.clients_per_round, self.num_clients
    )

  def epsilons(self, rounds: int) -> dict[str, float]:
    """epsilon after so many rounds, by column; empty without privacy.

    `epsilon` holds for the data's clients; `epsilon_hypothetical` is what as many clients
    as --population says would get; `epsilon_paper` is the paper's figure at that number.
    """
    if not self.private:
      return {}
    found = {'epsilon': self.spec.epsilon(rounds=rounds)}
    if self.hypothetical is not None:
      found['epsilon_hypothetical'] = self.hypothetical.epsilon(rounds=rounds)
    claimed = self.hypothetical or self.spec
    found['epsilon_paper'] = claimed.epsilon('paper', rounds)
    return found

  def as_dict(self) -> dict[str, Any]:
    """For config.json: what the settings alone don't tell."""
    return {
        'dim': self.dim,
        'num_kept': self.mechanism.num_kept,
        'num_clients': self.num_clients,
        **self.data.as_dict(),
        'bits': self.mechanism.channel.bits,
        'encoding_step': self.mechanism.channel.step,
        'value_bound': self.mechanism.channel.value_bound,
        'privacy': dataclasses.asdict(self.spec) if self.private else None,
        'randomness': self.randomness(),
        **{f'{n}_after_all_rounds': e for n, e in self.epsilons(self.settings.rounds).items()},
    }

  def randomness(self) -> str:
    """Where noise comes from, for every output."""
    if self.settings.seed is not None:
      return (
          f'SIMULATION: --seed={self.settings.seed} makes the noise reproducible, so WHO'
          ' KNOWS THE SEED CAN REMOVE IT'
      )
    return 'the operating system\'s, fresh for every client and round'

  def text(self) -> str:
    """The page."""
    s = self.settings
    post = experiment.post_processing_text(s)
    rows = [
        ('task', datasets.TASKS[s.task].title),
        ('data', self.data.text()),
        ('model', self._model_text()),
        ('kept', self._kept_text()),
        ('round', self._round_text()),
        ('traffic', self._traffic_text()),
        ('encoding', self._encoding_text()),
        ('mechanism', self._mechanism_text()),
        *([('server', post)] if post else []),
        ('metrics', self._metrics_text()),
        ('randomness', self.randomness()),
        ('simulated', self._simulated_text()),
    ]
    lines = [f'{s.algorithm} on {s.task}, {s.rounds} rounds']
    lines += [_wrapped(f'  {name:<10} {text}', 13) for name, text in rows]
    if self.private:
      lines += ['', *privacy_lines(self, s.rounds)]
    return '\n'.join(lines)

  def _model_text(self) -> str:
    whose = {'keras': 'Keras\'s', 'torch': 'PyTorch\'s'}[self.settings.initializer]
    return f'd = {self.dim:,} parameters, from {whose} default initial weights'

  def _kept_text(self) -> str:
    how = {
        None: 'all coordinates',
        'randk': 'random coordinates, new ones each round, the same for all clients',
        'topk': 'top coordinates of an update on the public examples, the same for'
                ' all clients',
        'released': 'those that move most by past releases, some at random; the same for'
                    ' all clients',
    }[settings_lib.ALGORITHMS[self.settings.algorithm].sparsifier]
    k = self.mechanism.num_kept
    return f'k = {k:,} (p = {k / self.dim:.4g}): {how}'

  def _round_text(self) -> str:
    s = self.settings
    length = (
        f'{s.local_epochs} epochs' if s.local_epochs else f'{s.local_steps} steps'
    )
    text = (
        f'{self._cohort_text()}; {length} of'
        f' SGD, batch {s.batch_size}, momentum {s.momentum}, rate'
        f' {s.learning_rate} x {s.learning_rate_decay} every'
        f' {s.learning_rate_decay_rounds} rounds'
    )
    if self.data.public is not None:
      public = (
          f'{s.public_epochs} epochs'
          if s.public_epochs
          else f'{s.public_steps} steps' if s.public_steps else length
      )
      text += f'; {public} on the public examples'
    if s.server_learning_rate != 1:
      text += f'; server\'s rate {s.server_learning_rate:g}'
    return text

  def _cohort_text(self) -> str:
    r, seats = self.settings.clients_per_round, self.spec.seats
    text = f'exactly {r} clients, without replacement'
    if self.spec.sampling == sampling.POISSON:
      text = (
          f'each client with probability {r}/{self.num_clients:,}, at most {seats}'
          f' (empty seats send noise alone); sums divided by {r}'
      )
    if self.settings.dropout:
      text += (
          f'; each of them is lost with probability {self.settings.dropout:g}, and below'
          f' {self.spec.min_reporting} reports nothing is released'
      )
    return text

  def _traffic_text(self) -> str:
    s, traffic = self.settings, self.traffic
    return (
        f'a client and round: {traffic.uplink_bytes / 1e6:.4g} MB up,'
        f' {traffic.downlink_bytes / 1e6:.4g} MB down; up over the run:'
        f' {self.uplink_megabytes(s.rounds):.4g} MB a client on average'
        + (
            f' ({self.spec.seats} participants send, {s.clients_per_round} of them with'
            ' data on average)'
            if self.spec.seats > s.clients_per_round
            else ''
        )
    )

  def _encoding_text(self) -> str:
    return self.mechanism.channel.describe(unit=' C' if self.private else '')

  def _mechanism_text(self) -> str:
    s = self.settings
    if not self.private:
      return 'none: no clipping, no noise, NO PRIVACY beyond the secure sum'
    spec, sigma = self.spec, self.mechanism.mechanism.values_noise_multiplier
    share = noise.share_stddev(sigma, spec.min_reporting)
    text = (
        f'clip to C = {s.clip:g}; each participant adds {spec.noise} noise of standard'
        f' deviation {share:.4g} C to each kept value, so the sum of'
        f' {spec.min_reporting} has sigma C = {sigma:.4g} C and the mean'
        f' {sigma / s.clients_per_round:.4g} C'
    )
    if spec.min_reporting < spec.seats:
      text += (
          f'; if all {spec.seats} report, the sum has'
          f' {sigma * math.sqrt(spec.seats / spec.min_reporting):.4g} C: what'
          ' --min_reporting costs'
      )
    if s.clip_quantile is not None:
      text += (
          f'; C follows the {s.clip_quantile:g} quantile of the norms, within epsilon:'
          f' values get sigma = {sigma:.4g} for {spec.noise_multiplier:g}'
      )
    return text

  def _metrics_text(self) -> str:
    text = 'nothing of clients but what is released and how many participants reported'
    if self.settings.client_metrics == 'exact':
      text = (
          'columns exact_* are exact sums over clients, OUTSIDE (epsilon, delta): keep'
          ' them to yourself'
      )
    if self.data.test_outside_guarantee:
      text += (
          '; columns test_* are exact functions of clients\' own examples, OUTSIDE (epsilon,'
          ' delta): keep them to yourself'
      )
    return text

  def _simulated_text(self) -> str:
    return 'secure aggregation (sums are plain on this machine), and all clients'


def make(
    settings: settings_lib.RunSettings,
    data: task_lib.TaskData,
    dim: int,
    factory: aggregator.FedSmpFactory,
    spec: spec_lib.PrivacySpec,
    hypothetical: Optional[spec_lib.PrivacySpec],
) -> Plan:
  """The plan of a run; the arguments are as `Plan`'s attributes."""
  mechanism = factory.round([(dim,)])
  channel = mechanism.channel
  return Plan(
      settings=settings,
      data=data,
      dim=dim,
      mechanism=mechanism,
      traffic=communication.Communication(
          dim=dim,
          num_integers=channel.num_integers,
          num_coordinates=factory.sparsifier.num_coordinates(dim),
          integer_bits=channel.wire_bits,
          num_shaping=mechanism.num_kept * sum(
              value is not None for value in (settings.precondition, settings.predict)
          ),
      ),
      spec=spec,
      hypothetical=hypothetical,
  )


def privacy_lines(plan: Plan, rounds: int) -> list[str]:
  """Epsilon of so many rounds, by what holds and as the paper has it, as lines of text."""
  spec, hypothetical = plan.spec, plan.hypothetical
  n = f'{spec.population:,}'
  lines = [
      f'privacy spent by {rounds} rounds: sigma = {spec.noise_multiplier:g}, r ='
      f' {spec.clients_per_round}, delta = {spec.delta:.3g}, n = {n}'
  ]

  def line(one, name, verdict):
    title, assumption, *_ = accounting.ACCOUNTINGS[name]
    epsilon = one.epsilon(name, rounds)
    lines.append(
        _wrapped(f'  epsilon = {epsilon:.4g}: {verdict}; {title}; {assumption}', 4)
    )

  line(spec, spec.claim, "HOLDS for this run's sampling and noise")
  if hypothetical is not None:
    line(
        hypothetical, spec.claim,
        f'HYPOTHETICAL, for n = {hypothetical.population:,} clients, not for the {n} in'
        ' these data',
    )
  claimed = hypothetical or spec
  line(
      claimed, 'paper',
      'to compare' + (f', for n = {claimed.population:,}' if hypothetical else ''),
  )
  text = (
      '  All take for granted: a client is one unit of privacy; participants are honest,'
      f' and at least {spec.min_reporting} of {spec.seats} report and add their noise in'
      ' a round that is released; who takes part is not known to those who see the model;'
  )
  if spec.lattice is None:
    text += ' noise and sums are in real arithmetic.'
  else:
    text += (
        ' the integers that leave a client carry the guarantee, wrap-around included, as'
        ' far as random bits are random.'
    )
  text += ' The choice of hyperparameters is outside (epsilon, delta)'
  if plan.settings.client_metrics == 'exact':
    text += ', and so are the columns exact_* of metrics.csv'
  if plan.data.test_outside_guarantee:
    text += ', and so are the columns test_* of metrics.csv, measured on clients\' own examples'
  return [*lines, _wrapped(text + '.', 2)]


def _wrapped(text: str, indent: int) -> str:
  return textwrap.fill(text, _COLUMNS, subsequent_indent=' ' * indent)
