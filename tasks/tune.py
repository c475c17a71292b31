"""`python -m tasks.tune --task=TASK`: the best p by Theorem 2, from public data alone."""

import dataclasses
import sys
from typing import Any, Optional

import tqdm

from fedsmp_tff.theory import theorem_2
from tasks import errors
from tasks.cli import command
from tasks.cli import options as options_lib
from tasks.cli import settings as settings_lib

_TITLES = {theorem_2.RANDK: 'rand-k', theorem_2.TOPK: 'top-k'}


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this command, in addition to the options of a run."""

  client_examples: Optional[int] = options_lib.option(
      None,
      'Examples per client, to cut the public examples into (default: --batch_size). Use a publicly'
      ' known client size, which is not protected; at most --max_client_examples.',
      at_least=1,
  )
  tune_rounds: int = options_lib.option(
      10, 'Number of rounds on public data, to estimate the constants.', at_least=1
  )


def _tune(settings: settings_lib.RunSettings, data_dir: Optional[str], options: Options) -> None:
  _check(settings)
  # These modules take seconds to import, so the flags are checked first.
  from fedsmp_tff.theory import estimation
  from tasks.training import experiment as experiment_lib

  seeds = experiment_lib.make_seeds(settings.seed, None)
  experiment = experiment_lib.Experiment.build(settings, seeds, data_dir)
  data, spec, num_public = experiment.data, experiment.spec, settings.public_examples
  if settings.seed is None and not (data.public_owners and data.public_owners.ids):
    raise errors.InputError(
        f'--seed is not set, and a run of {settings.task} draws its public examples by its own'
        ' seed: the examples here may be its clients\'. Set --seed to the seed of the run.'
    )
  size = options.client_examples or settings.batch_size
  size = min(size, settings.max_client_examples or size)
  seed_flag = '' if settings.seed is None else f'--seed={settings.seed} '
  print(
      f'{settings.task}: {num_public:,} public examples, half of them in clients of {size} each;'
      f' {options.tune_rounds} rounds\n'
      '  it costs no privacy for runs that set the same examples aside:'
      f' {seed_flag}--public_examples={num_public},\n'
      f'  which is public_digest = {data.public_digest()} in their config.json',
      flush=True,
  )
  estimate = estimation.estimate(
      experiment.model, data.public, experiment.local_training(), size, options.tune_rounds,
      seeds.partition, lambda rounds: tqdm.tqdm(rounds, unit='round', disable=None),
  )
  training = theorem_2.Training(
      dim=estimate.dim,
      # Momentum lengthens a step by this factor; the theorem has no momentum.
      learning_rate=settings.learning_rate / (1 - settings.momentum),
      local_steps=settings.local_epochs * -(-size // settings.batch_size),
      rounds=settings.rounds,
      clients_per_round=settings.clients_per_round,
      clipping_norm=settings.clip,
      noise_multiplier=spec.noise_multiplier,
  )
  _report(estimate, training)


def _check(settings: settings_lib.RunSettings) -> None:
  """Raises `InputError` if Theorem 2 or the public examples do not fit a run."""
  if settings.clip is None:
    raise errors.InputError(
        f'--algorithm={settings.algorithm} adds no noise, so that p = 1 is best. Choose a private'
        ' algorithm.'
    )
  if settings.public_examples is None:
    raise errors.InputError(
        f'--algorithm={settings.algorithm} sets no public examples aside, so that clients would'
        ' have the examples that this command trains on. Add --warm_start=public, or choose'
        ' fedsmp_topk, which also gives p of rand-k.'
    )
  if settings.trainable != settings_lib.ALL:
    raise errors.InputError(
        f'--trainable={settings.trainable} has a frozen body, but Theorem 2 is estimated for all'
        ' layers. Remove --trainable.'
    )


def _report(estimate: Any, training: theorem_2.Training) -> None:
  """Prints the constants of an `estimation.Estimate`, and the best p."""
  c = estimate.constants
  print(
      f'  L = {c.smoothness:.4g}, zeta^2 = {c.gradient_variance:.4g}, beta^2 ='
      f' {c.dissimilarity:.4g}, kappa^2 = {c.dissimilarity_offset:.4g}, f(theta^0) ='
      f' {c.initial_gap:.4g}\n'
      f'  d = {training.dim:,}, step eta_l/(1 - momentum) = {training.learning_rate:.4g}, tau ='
      f' {training.local_steps}, T = {training.rounds}, r = {training.clients_per_round}, C ='
      f' {training.clipping_norm:g}, sigma = {training.noise_multiplier:g}\n'
  )
  for kind, variance in ((theorem_2.RANDK, None), (theorem_2.TOPK, estimate.topk_variance)):
    p = theorem_2.best_compression_ratio(c, training, kind, variance)
    print(f'{_TITLES[kind]}: p = {p:.3g}')
    num_kept = max(1, round(p * training.dim))
    measured = variance and variance(num_kept)
    for sentence in theorem_2.violations(c, training, kind, num_kept, measured):
      print(f'  outside the theorem: {sentence}')
  worst = theorem_2.best_compression_ratio(c, training, theorem_2.TOPK)
  least = min(1.0, (estimate.update_norm / training.clipping_norm) ** 2)
  print(
      f'\nTop-k: by its measured loss; by its worst case, 1 - k/d, p = {worst:.3g}.\n'
      f'Rand-k scales by d/k: below p = {least:.2g} half of the updates would be clipped. The bound'
      ' assumes\nno clipping, and it bounds the gradient, not the accuracy: treat p as a starting'
      ' point.'
  )


main = command.Command(
    'tasks.tune',
    (
        'usage: python -m tasks.tune --task=TASK [flags of tasks.run]',
        '',
        'Estimates the constants of Theorem 2 from a few training rounds on public data, from random',
        'initial weights, and prints the compression ratio p at which its bound is smallest, for',
        'rand-k and top-k. The settings follow from the flags as in a run (see python -m',
        'tasks.run --help). It trains only on the public examples of that run, so it costs no',
        'privacy.',
    ),
    lambda settings, place, options: _tune(settings, place.data_dir, options),
    (Options,),
    parse=lambda arguments, *tables, program: settings_lib.parse(
        [f'--trainable={settings_lib.ALL}', *arguments], *tables, program=program
    ),
).main


if __name__ == '__main__':
  command.end(main(sys.argv))
