"""What a run is going to do, move and spend, before it starts; one page of text."""

import dataclasses
import math
import textwrap
from typing import Any, Optional

import numpy as np

from fedsmp_tff import accounting
from fedsmp_tff import aggregator
from fedsmp_tff import communication
from tasks import registry
from tasks import settings as settings_lib

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
    spending: Privacy at the claimed population; None without privacy.
    real_spending: The same at the number of clients in the data, where the claimed
      population is another; else None.
  """

  settings: settings_lib.RunSettings
  data: registry.TaskData
  dim: int
  mechanism: aggregator.MaskedPrivateSum
  traffic: communication.Communication
  spending: Optional[accounting.Spending]
  real_spending: Optional[accounting.Spending]

  @property
  def num_clients(self) -> int:
    return len(self.data.clients)

  def uplink_megabytes(self, rounds: int) -> float:
    return self.traffic.uplink_megabytes(
        rounds, self.settings.clients_per_round, self.num_clients
    )

  def epsilons(self, rounds: int) -> dict[str, float]:
    """epsilon after `rounds` rounds by accountings that are fast; empty without privacy."""
    if self.spending is None:
      return {}
    return {
        name: self.spending.epsilon(name, rounds)
        for name in accounting.OF_EVERY_ROUND
    }

  def as_dict(self) -> dict[str, Any]:
    """For config.json: what the settings alone don't tell."""
    return {
        'dim': self.dim,
        'num_kept': self.mechanism.num_kept,
        'num_clients': self.num_clients,
        'data_source': self.data.source,
        'bits': self.mechanism.encoding.bits,
        'encoding_step': self.mechanism.encoding.step,
        'value_bound': self.mechanism.encoding.value_bound,
        'spending': self.spending and dataclasses.asdict(self.spending),
        'epsilon_after_all_rounds': self.epsilons(self.settings.rounds) or None,
    }

  def text(self) -> str:
    """The page."""
    s = self.settings
    rows = [
        ('task', settings_lib.TASKS[s.task].title),
        ('data', self._data_text()),
        ('model', f'd = {self.dim:,} parameters'),
        ('kept', self._kept_text()),
        ('round', self._round_text()),
        ('traffic', self._traffic_text()),
        ('encoding', self._encoding_text()),
        ('mechanism', self._mechanism_text()),
        ('simulated', self._simulated_text()),
    ]
    lines = [f'{s.algorithm} on {s.task}, {s.rounds} rounds']
    lines += [_wrapped(f'  {name:<10} {text}', 13) for name, text in rows]
    if self.spending is not None:
      lines += ['', *privacy_lines(self, s.rounds)]
    return '\n'.join(lines)

  def _data_text(self) -> str:
    sizes = np.array([len(x) for x, _ in self.data.clients])
    text = (
        f'{self.data.source}; {self.num_clients:,} clients with {sizes.sum():,}'
        f' examples ({sizes.min()} to {sizes.max()}, median {np.median(sizes):g});'
        f' {len(self.data.test[0]):,} test examples'
    )
    if self.data.public is not None:
      text += f'; {len(self.data.public[0]):,} public ones on the server'
    return text

  def _kept_text(self) -> str:
    how = {
        None: 'all coordinates',
        'randk': 'random coordinates, new ones each round, the same for all clients',
        'topk': 'top coordinates of an update on the public examples, the same for'
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
        f'exactly {s.clients_per_round} clients, without replacement; {length} of'
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
    return text

  def _traffic_text(self) -> str:
    s, traffic = self.settings, self.traffic
    return (
        f'a client and round: {traffic.uplink_bytes / 1e6:.4g} MB up,'
        f' {traffic.downlink_bytes / 1e6:.4g} MB down; up over the run:'
        f' {self.uplink_megabytes(s.rounds):.4g} MB a client on average'
    )

  def _encoding_text(self) -> str:
    encoding = self.mechanism.encoding
    return (
        f'{encoding.bits} bits a value in [{-encoding.value_bound:.4g},'
        f' {encoding.value_bound:.4g}], step {encoding.step:.2g}; sums in'
        f' {encoding.dtype.name}'
    )

  def _mechanism_text(self) -> str:
    s = self.settings
    if self.spending is None:
      return 'none: no clipping, no noise, NO PRIVACY beyond the secure sum'
    r = s.clients_per_round
    share = s.clip * s.noise_multiplier / math.sqrt(r)
    return (
        f'clip to C = {s.clip:g}; each client adds N(0, ({share:.4g})^2) to each'
        f' kept value, so the sum has noise sigma C = {s.noise_multiplier:g} x'
        f' {s.clip:g} and the mean {s.clip * s.noise_multiplier / r:.4g}'
    )

  def _simulated_text(self) -> str:
    text = 'secure aggregation (sums are plain on this machine), and all clients'
    if self.settings.seed is not None:
      text += (
          f'; --seed={self.settings.seed} makes the noise reproducible, so WHO'
          ' KNOWS THE SEED CAN REMOVE IT'
      )
    return text


def make(
    settings: settings_lib.RunSettings,
    data: registry.TaskData,
    dim: int,
    factory: aggregator.FedSmpFactory,
    spending: Optional[accounting.Spending],
) -> Plan:
  """The plan of a run; the arguments are as `Plan`'s attributes."""
  mechanism = factory.mechanism(dim)
  real = None
  if spending is not None and spending.population != len(data.clients):
    real = dataclasses.replace(spending, population=len(data.clients))
  return Plan(
      settings=settings,
      data=data,
      dim=dim,
      mechanism=mechanism,
      traffic=communication.Communication(
          dim=dim,
          num_kept=mechanism.num_kept,
          num_coordinates=factory.sparsifier.num_coordinates(dim),
          value_bytes=mechanism.encoding.dtype.size,
      ),
      spending=spending,
      real_spending=real,
  )


def privacy_lines(plan: Plan, rounds: int) -> list[str]:
  """Epsilon under each accounting with its assumption, as lines of text."""
  s, spending = plan.settings, plan.spending
  n, num_clients = f'{spending.population:,}', f'{plan.num_clients:,}'
  hypothetical = plan.real_spending is not None
  note = f' HYPOTHETICAL (the data have {num_clients} clients)' if hypothetical else ''
  lines = [
      f'privacy spent by {rounds} rounds: sigma = {s.noise_multiplier:g}, r ='
      f' {s.clients_per_round}, delta = {spending.delta:.3g}, n = {n}{note}'
  ]
  for name in accounting.OF_EVERY_ROUND:
    title, assumption, *_ = accounting.ACCOUNTINGS[name]
    epsilon = f'{spending.epsilon(name, rounds):.4g}'
    if hypothetical:
      epsilon += f' ({plan.real_spending.epsilon(name, rounds):.4g} at n = {num_clients})'
    sampling = (
        "THIS RUN'S SAMPLING" if name == 'fixed_size' else "not this run's sampling"
    )
    lines.append(
        _wrapped(f'  epsilon = {epsilon}: {sampling}; {title}; {assumption}', 4)
    )
  text = (
      '  All take for granted: a client is one unit of privacy; all r clients report'
      ' and add their noise; noise and sums are in real arithmetic. The counts in'
      ' metrics.csv (participants, clipped_clients, ...) and the choice of'
      ' hyperparameters are outside (epsilon, delta).'
  )
  if hypothetical:
    text += (
        f' Epsilon at n = {n} is what a population of that size would get, not the'
        ' clients in these data.'
    )
  return [*lines, _wrapped(text, 2)]


def _wrapped(text: str, indent: int) -> str:
  return textwrap.fill(text, _COLUMNS, subsequent_indent=' ' * indent)
