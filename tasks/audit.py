"""`python -m tasks.audit`: a lower bound on epsilon of a release or, with --run, a test of a run.

A canary is a client whose update is most visible in the release of a round. In the audit of one
release it goes through the aggregator many times. It knows the round's coordinates and the d/k
scale, so that after the clip it lies along its direction with norm C. The score is of the update
that the server releases. For the audit of a run see `run_audit`.
"""

from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import sys
from typing import Any, Optional

from absl import flags
import numpy as np
import tqdm

from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import auditing
from fedsmp_tff.privacy import spec as spec_lib
from tasks import errors
from tasks.cli import command
from tasks.cli import options as options_lib
from tasks.training import settings as settings_lib

# Small, for speed; the guarantee does not depend on k and d.
_PARTICIPANTS, _VALUES, _DIM = 4, 8, 16
# n of Fashion-MNIST, for the default of delta.
_POPULATION = 6000
# Norm of a canary before the scale and the clip, in units of C: clipped at any scale.
_LENGTH = 1e3
_RELEASES_AT_ONCE = 1000
# Flags of tasks.run on its files.
_WITHOUT_FILES = ('output_dir', 'overwrite', 'release_manager')

_option = options_lib.option
_release_option = functools.partial(_option, group='Flags of the audit of one release, without --run')


@dataclasses.dataclass(frozen=True)
class CommonOptions:
  """The options of both audits."""

  run: bool = _option(
      False, 'Audit a whole run, which all flags of tasks.run describe (default: one release).'
  )
  canaries: int = _option(
      300, 'Number of clients that are canaries.', at_least=1,
      requires=options_lib.Condition('--run', lambda values: values['run']),
  )
  confidence: float = _option(
      0.95, 'Confidence level of the lower bound.', at_least=0.5, at_most=0.9999
  )


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of the audit of one release."""

  noise_multiplier: float = _release_option(1.4, 'Noise multiplier sigma.', at_least=0)
  delta: float = _release_option(
      spec_lib.default_delta(_POPULATION),
      f'The delta of (epsilon, delta) (default: n^-1.1 for n = {_POPULATION}).',
  )
  noise: str = _release_option(
      mechanism_lib.Gaussian.name, 'Distribution of the noise.', values=list(mechanism_lib.NOISES)
  )
  sparsifier: str = _release_option(
      'randk', 'Choice of coordinates. randk: at random. released: by past releases.',
      values=['randk', 'released'],
  )
  releases: int = _release_option(
      400_000, 'Number of releases with the canary, and of those without.', at_least=100
  )
  seed: Optional[int] = _release_option(
      None, 'Seed of coordinates and noise (default: fresh randomness).',
      at_least=0, at_most=2**63 - 1,
  )


def _main(common: CommonOptions, *others: Any) -> int:
  """Returns the exit status: 1 if the reported epsilon is refuted."""
  if common.run:
    from tasks import run_audit  # It imports TensorFlow, as below.

    return run_audit.run(*others, common.canaries, common.confidence)
  return _audit_release(common, *others)


def _audit_release(common: CommonOptions, options: Options) -> int:
  # If all clients are sampled, the guarantee is the guarantee of the sum itself.
  spec = spec_lib.PrivacySpec(
      population=_PARTICIPANTS, clients_per_round=_PARTICIPANTS, rounds=1,
      noise_multiplier=options.noise_multiplier, clipping_norm=1.0, delta=options.delta,
      noise=mechanism_lib.make_noise(options.noise, _VALUES),
  )
  spec.mechanism().encoding()  # Raises if it would round the noise to zero.
  # It imports TensorFlow, which --help and wrong flags need not wait for.
  from fedsmp_tff import runtime

  with runtime.local_context():
    where, present, absent = _scores(spec, options)
  claim = spec.epsilon()
  audit = auditing.epsilon_of_one_release(present, absent, spec.delta, common.confidence)
  refuted = audit.epsilon > claim
  percentage = f' ({100 * audit.epsilon / claim:.0f} % of it)' if claim else ''
  print(
      'one release without sampling, one client added or removed\n'
      f'  reported  epsilon = {claim:.4g} at delta = {spec.delta:.3g}, sigma ='
      f' {spec.noise_multiplier:g}, {spec.noise.name} noise; {options.sparsifier} coordinates\n'
      f'  audited   epsilon > {audit.epsilon:.4g}{percentage}, confidence'
      f' {common.confidence:g}: canary {where}; {audit.method}\n'
      f'  {"REPORTED EPSILON REFUTED" if refuted else "not refuted"}',
      flush=True,
  )
  return int(refuted)


def _scores(spec: spec_lib.PrivacySpec, options: Options) -> tuple[str, np.ndarray, np.ndarray]:
  """Scores independent releases of one round, from one state, with and without a canary.

  For speed, the aggregator's TensorFlow functions run in one graph, without its TFF process, and
  with Gaussian noise as XLA compiles them.

  Returns:
    The canary's direction, in words, and the scores with and without it, float[releases, scores].
  """
  import tensorflow as tf

  import fedsmp_tff
  from fedsmp_tff import randomness

  kinds = {'randk': fedsmp_tff.RandK, 'released': fedsmp_tff.ReleasedTopK}
  masks, seed = kinds[options.sparsifier](num=_VALUES), options.seed
  audited = fedsmp_tff.FedSmpFactory(masks, spec.mechanism(), seed=seed).round([(_DIM,)])
  state = audited.choose(audited.initial_state(seed))
  coordinates = state.coordinates.numpy()
  noise_seed = randomness.fresh_seed() if seed is None else tf.constant([seed, 0], tf.int64)

  # XLA takes 0.01 ms per release, TensorFlow 0.5 ms.
  compiled = tf.function(jit_compile=audited.channel.allows_xla)

  def released(updates, seed):
    """Returns the server's update, and the next round's coordinates."""
    total = audited.sum([
        audited.report(update, state, randomness.fold_in(seed, i))
        for i, update in enumerate(updates)
    ])
    update, following, _ = audited.finish(total, state)
    return update, audited.choose(following).coordinates

  # The direction that most reveals wrong code, a unit vector [k].
  where, direction = 'on all coordinates', np.full(_VALUES, _VALUES**-0.5)
  if state.memory:  # Masks depend on releases: coordinates that leave the mask without the canary.
    base = randomness.fold_in(noise_seed, 2)
    _, following = compiled(released)([tf.zeros([_DIM])] * _PARTICIPANTS, base)
    leaves = ~np.isin(coordinates, following.numpy())
    if np.any(leaves):
      where, direction = 'on coordinates that leave the mask', leaves / np.linalg.norm(leaves)

  def score(updates, seed):
    mean, following = released(updates, seed)
    values = tf.gather(mean, coordinates) * spec.clients_per_round
    scores = [tf.reduce_sum(values * direction) / spec.clipping_norm]
    if state.memory:  # How far the next coordinates lean towards the canary.
      on_coordinates = tf.scatter_nd(coordinates[:, np.newaxis], direction, [_DIM])
      scores.append(tf.reduce_sum(tf.gather(on_coordinates, following) ** 2))
    return tf.stack(scores)

  @compiled  # Its arguments are tensors: it is traced once.
  def scores_batch(update, base, start):
    updates = [update] + [tf.zeros([_DIM])] * (_PARTICIPANTS - 1)
    return tf.map_fn(
        lambda number: score(updates, randomness.fold_in(base, number)),
        start + tf.range(_RELEASES_AT_ONCE, dtype=tf.int64),
        fn_output_signature=tf.float64,
    )

  def scores(is_present):
    update = np.zeros(_DIM, np.float32)
    if is_present:  # The clip turns it into C times `direction`.
      update[coordinates] = _LENGTH * spec.clipping_norm / masks.scale(_DIM) * direction
    update = tf.constant(update)
    base = randomness.fold_in(noise_seed, int(is_present))
    title = f'releases {"with" if is_present else "without"} a canary'
    starts = tqdm.trange(0, options.releases, _RELEASES_AT_ONCE, desc=title, disable=None)
    batches = [scores_batch(update, base, tf.constant(start, tf.int64)) for start in starts]
    return np.concatenate(batches)[: options.releases]

  return where, scores(True), scores(False)


def _parse(arguments: Sequence[str], *tables: type, program: str) -> list[Any]:
  """Parses the flags of one of the two audits; see `command.parse`."""
  chosen = options_lib.new_flags(CommonOptions)
  # Who parses all flags reports the errors.
  with contextlib.suppress(flags.Error, ValueError):
    chosen(['', *arguments], known_only=True)
  if not chosen['run'].value:
    return command.parse(arguments, *tables, program=program)
  settings, runtime_flags, common = settings_lib.parse(arguments, CommonOptions, program=program)
  for name in _WITHOUT_FILES:
    if getattr(runtime_flags, name):
      raise errors.InputError(f'--{name} has no effect with --run, which writes no file. Remove it.')
  return [common, settings, runtime_flags]


main = command.Command(
    'tasks.audit',
    (
        'usage: python -m tasks.audit [flags]',
        '       python -m tasks.audit --run --task=TASK [--canaries=M] [flags of tasks.run]',
        '',
        'Attacks the mechanism with canaries, which are conspicuous clients, and prints a lower',
        'confidence bound on epsilon next to the reported epsilon. If the bound is higher, the',
        'reported epsilon is wrong, and the exit status is 1. Without --run a canary goes through',
        'the aggregator many times; with --run some clients of a whole run are canaries. For example:',
        '  python -m tasks.audit --noise=discrete_gaussian',
        '  python -m tasks.audit --run --task=fashion_mnist --epsilon=8',
        '',
        'With --run the audit trains twice as long as the run that it describes, on the data of the',
        'clients, and writes no file. No epsilon covers what it prints: do not publish that.',
    ),
    _main,
    (CommonOptions, Options),
    parse=_parse,
).main


if __name__ == '__main__':
  command.end(main(sys.argv))
