"""`python -m tasks.tune --task=TASK`: which p to take, by Theorem 2 and public data alone."""

from __future__ import annotations

import os

# TensorFlow's notes on its start have nothing about a run.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')

# pylint: disable=g-import-not-at-top
import dataclasses
import json
import math
import pathlib
import sys
import typing
from typing import Optional

import numpy as np
import tqdm

from fedsmp_tff.theory import theorem_2
from tasks import datasets
from tasks import errors
from tasks.cli import command
from tasks.cli import options as options_lib
from tasks.cli import paper_tables
from tasks.cli import settings as settings_lib
from tasks.datasets import task as task_lib

if typing.TYPE_CHECKING:
  from fedsmp_tff.theory import estimation
  from tasks.reporting import drawing

_NAME = 'bound'
# Where the picture begins.
_LEAST_RATIO = 1e-4
_CURVES = ('optimization', 'compression', 'privacy', 'total')


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command, besides those of a run."""

  client_examples: Optional[int] = options_lib.option(
      None,
      'Examples of a client, to cut the public ones into (default: --batch_size). Use a publicly'
      ' known client size: this value is not protected.',
      at_least=1,
  )
  tune_rounds: int = options_lib.option(
      10, 'Rounds on public data, from which the constants are estimated.', at_least=1
  )
  tune_dir: str = options_lib.option(
      'tune',
      f'Directory for the bound over p as a picture ({_NAME}.png) and all figures'
      f' ({_NAME}.json).',
  )


_COMMAND = command.Command(
    'tasks.tune',
    (
        'usage: python -m tasks.tune --task=TASK [flags of tasks.run]',
        '',
        'Estimates what Theorem 2 calls constants from a few rounds on public data, and prints',
        'the compression ratio p at which its bound is smallest, for rand-k and top-k. The',
        'settings are those of a run with the same flags (see python -m tasks.run --help).',
        'It trains on the public examples of that run alone, so it costs no privacy.',
    ),
    (Options,),
    parse=lambda arguments, *tables, program: settings_lib.parse(
        [f'--trainable={settings_lib.ALL}', *arguments], *tables, program=program
    ),
)


def main(argv: list[str]) -> int:
  """Runs the command; returns its exit status."""
  return _COMMAND.main(
      argv, lambda settings, place, _, options: _tune(settings, place.data_dir, options)
  )


def _tune(settings: settings_lib.RunSettings, data_dir: Optional[str], options: Options) -> None:
  task = datasets.TASKS[settings.task]
  if settings.clip is None:
    raise errors.InputError(
        f'--algorithm={settings.algorithm} adds no noise, so that p = 1 is best; choose one that'
        ' does.'
    )
  if settings.public_examples is None:
    raise errors.InputError(
        f'--algorithm={settings.algorithm} sets no public examples aside, so that clients would have'
        ' those that this command trains on; add --warm_start=public, or choose fedsmp_topk, which'
        ' gives p of rand-k too.'
    )
  if settings.trainable != settings_lib.ALL:
    raise errors.InputError(
        f'--trainable={settings.trainable} has a frozen body, but Theorem 2 is estimated for all'
        ' layers; drop --trainable.'
    )
  output = pathlib.Path(options.tune_dir)
  with errors.writing_to('tune_dir', output):  # Before the work is done.
    output.mkdir(parents=True, exist_ok=True)
  # What takes seconds to import, once the flags are right.
  from fedsmp_tff.theory import estimation
  from tasks.training import builders

  seeds = builders.make_seeds(settings.seed, None)
  model = builders.model(settings, seeds)
  num_public = settings.public_examples
  split = task_lib.Split(seeds.partition, num_public, settings.validation_examples or 0, data_dir)
  data = task.load(settings.task_options, split)
  if settings.seed is None and not (data.public_owners and data.public_owners.ids):
    raise errors.InputError(
        f'--seed is not set, and a run of {settings.task} draws its public examples by its own seed:'
        ' those here may be its clients\'; set --seed, to that of the run.'
    )
  size = options.client_examples or settings.batch_size
  same = '' if settings.seed is None else f'--seed={settings.seed} '
  print(
      f'{settings.task}: {num_public:,} public examples, half of them as clients of {size};'
      f' {options.tune_rounds} rounds\n'
      '  it costs no privacy for runs that set the same examples aside:'
      f' {same}--public_examples={num_public}',
      flush=True,
  )
  try:
    found = estimation.estimate(
        model, data.public, builders.local_training(settings), size, options.tune_rounds,
        seeds.partition,
        lambda rounds: tqdm.tqdm(rounds, unit='round', disable=None),
    )
  except ValueError as error:
    raise errors.as_flags(error, ['client_examples']) from None
  spec = builders.privacy_spec(
      settings, len(data.clients), builders.num_kept(settings, found.dim)
  )
  steps = settings.local_epochs * -(-size // settings.batch_size)
  run = theorem_2.Training(
      dim=found.dim,
      # Momentum makes a step so much longer; the theorem has none.
      learning_rate=settings.learning_rate / (1 - settings.momentum),
      local_steps=steps,
      rounds=settings.rounds,
      clients_per_round=settings.clients_per_round,
      clipping_norm=settings.clip,
      noise_multiplier=spec.noise_multiplier,
  )
  _say(settings, data.public_digest(), found, run, output)


def _say(
    settings: settings_lib.RunSettings,
    public_digest: str,
    found: estimation.Estimate,
    run: theorem_2.Training,
    output: pathlib.Path,
) -> None:
  c = found.constants
  print(
      f'  L = {c.smoothness:.4g}, zeta^2 = {c.gradient_variance:.4g}, beta^2 ='
      f' {c.dissimilarity:.4g}, kappa^2 = {c.dissimilarity_offset:.4g}, f(theta^0) ='
      f' {c.initial_gap:.4g}\n'
      f'  d = {run.dim:,}, step eta_l/(1 - momentum) = {run.learning_rate:.4g}, tau ='
      f' {run.local_steps}, T = {run.rounds}, r = {run.clients_per_round}, C ='
      f' {run.clipping_norm:g}, sigma = {run.noise_multiplier:g}\n'
  )
  panels, suggested = [], {}
  for kind, name, variance in (
      (theorem_2.RANDK, 'rand-k', None),
      (theorem_2.TOPK, 'top-k', found.topk_variance),
  ):
    p = theorem_2.best_compression_ratio(c, run, kind, variance)
    suggested[kind] = p
    print(f'{name}: p = {p:.3g} ({_of_the_paper(settings.task, kind, p)})')
    if kind == theorem_2.TOPK:
      worst = theorem_2.best_compression_ratio(c, run, kind)
      print(
          '  by what top-k was measured to lose; by its worst case, 1 - k/d, as in the theorem,'
          f' p = {worst:.3g}'
      )
    num_kept = max(1, round(p * run.dim))
    for sentence in theorem_2.violations(
        c, run, kind, num_kept, variance and variance(num_kept)
    ):
      print(f'  beyond the theorem: {sentence}')
    if kind == theorem_2.RANDK:
      clips = min(1.0, (found.update_norm / run.clipping_norm) ** 2)
      print(
          f'  the median update has norm {found.update_norm:.3g}, and rand-k scales by d/k: below'
          f' p = {clips:.2g} half of them would be clipped at C = {run.clipping_norm:g}, which'
          ' the theorem does not have'
      )
    panels.append(_panel(name, p, c, run, kind, variance))
  print(
      '\nThe bound assumes that no update is clipped, and it bounds the gradient, not the'
      '\naccuracy: treat p as a starting point.'
  )
  from tasks.reporting import drawing

  figure = drawing.Figure(_NAME, f'{settings.task}: Theorem 2\'s bound over p', panels)
  drawing.save_png(figure, output / f'{_NAME}.png')
  values = {
      'task': settings.task,
      'public_digest': public_digest,  # As config.json of a run has it.
      'suggested_compression_ratio': suggested,
      'constants': vars(c),
      'training': vars(run),
      'update_norm': found.update_norm,
      'topk': {'kept': found.kept.tolist(), 'lost': found.lost.tolist()},
  }
  with errors.writing_to('tune_dir', output):
    (output / f'{_NAME}.json').write_text(
        json.dumps(values, indent=2) + '\n', encoding='utf-8'
    )
  print(f'wrote {output}/{_NAME}.png and {_NAME}.json')


def _panel(name, best, constants, run, kind, variance) -> drawing.Panel:
  from tasks.reporting import drawing

  least = max(1.0, _LEAST_RATIO * run.dim)
  kept = np.unique(np.geomspace(least, run.dim, 200).round().astype(int))
  bounds = [
      theorem_2.bound(constants, run, kind, k, variance and variance(k))
      for k in kept.tolist()
  ]
  curves = [
      drawing.Curve(
          part, kept / run.dim,
          # A logarithm has no zero, where nothing is left out.
          np.array([getattr(one, part) or math.nan for one in bounds]), color=color,
      )
      for color, part in enumerate(_CURVES)
  ]
  at_best = bounds[int(np.argmin(np.abs(kept / run.dim - best)))].total
  curves.append(
      drawing.Curve('smallest', np.array([best]), np.array([at_best]), None, 3, 'points')
  )
  return drawing.Panel(
      f'{name}: p = {best:.3g}', 'compression ratio p',
      'bound on the mean of ||gradient||²', curves, log_x=True, log_y=True,
  )


def _of_the_paper(task: str, kind: str, p: float) -> str:
  """Describes what the paper measured near p and at its best p, for comparison."""
  measured = [
      row for row in paper_tables.rows()
      if row.task == task and row.algorithm == f'fedsmp_{kind}' and row.table <= 3
  ]
  if not measured:
    return 'the paper does not have this task'
  best = max(measured, key=lambda row: row.accuracy)
  nearest = min(measured, key=lambda row: abs(math.log(row.p / p)))
  return (
      f'the paper measured {nearest.accuracy:.2f} % at {nearest.p:g}, the nearest of its p, and'
      f' at best {best.accuracy:.2f} % at {best.p:g}'
  )


if __name__ == '__main__':
  command.end(main(sys.argv))
