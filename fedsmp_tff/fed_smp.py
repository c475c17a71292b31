"""One round of Algorithm 1 as TensorFlow functions, in the order in which they run.

  server  choose      the round's coordinates (and factors and guess)
          message     what the clients get
  client  report      masks, clips, adds noise, encodes
          secure_sum  adds the integers of all clients
  server  finish      decodes, and makes an update of the release

`FedSmpFactory.create`, `build_fed_smp`, the audit and the tests all run these.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Optional, Union

import tensorflow as tf

from fedsmp_tff import flattening
from fedsmp_tff import randomness
from fedsmp_tff import sparsifiers
from fedsmp_tff.mechanism import channel as channel_lib
from fedsmp_tff.mechanism import masked_sum
from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.mechanism import state as state_lib
from fedsmp_tff.post_processing import base
from fedsmp_tff.post_processing import server_choices

# Maps a round's public seed, int64[2], to an update [d] on public data.
PublicUpdate = Callable[[tf.Tensor], tf.Tensor]


def dropped_out(
    report: channel_lib.Report, probability: float, client_seed: tf.Tensor
) -> channel_lib.Report:
  """Simulates that a client's report is lost; one of zeros adds nothing, as if it never came.

  Args:
    report: The report.
    probability: That it is lost.
    client_seed: int64[2], of the client in the round.
  """
  if not probability:
    return report
  reports = probability <= tf.random.stateless_uniform(
      [], randomness.derive(client_seed, randomness.Stream.DROPOUT)
  )
  return tf.nest.map_structure(lambda t: tf.where(reports, t, 0), report)


class FedSmpRound(masked_sum.MaskedPrivateSum):
  """The masked private sum, with what the server chooses before it and does after it."""

  def __init__(
      self,
      sparsifier: sparsifiers.Sparsifier,
      mechanism: mechanism_lib.Mechanism,
      shapes: flattening.Shapes,
      post_processing: Sequence[base.PostProcessing] = (),
      make_channel: masked_sum.MakeChannel = masked_sum.make_channel,
  ):
    """Initializes.

    Args:
      sparsifier: Chooses the coordinates.
      mechanism: The options of the private sum.
      shapes: The shapes of the model's tensors.
      post_processing: Objects that shape values before the clip or filter releases.
      make_channel: Makes the channel.
    """
    super().__init__(flattening.dim(shapes), sparsifier, mechanism, make_channel)
    self._choices = server_choices.ServerChoices(sparsifier, shapes, post_processing)

  def initial_state(self, seed: Optional[int]) -> state_lib.FedSmpState:
    """Returns the state before round 0, nothing chosen yet (zeros).

    Args:
      seed: Seed of the masks, which are public; None: a fresh one.
    """
    state_seed = randomness.fresh_seed() if seed is None else randomness.of_run(seed)
    return self._choices.initial_state(state_seed, self.clipping_norm(tf.constant(0)))

  def is_due(self, round_num: tf.Tensor) -> Union[bool, tf.Tensor]:
    """Whether coordinates are chosen before a round; see `ServerChoices.is_due`."""
    return self._choices.is_due(round_num)

  def choose(
      self,
      state: state_lib.FedSmpState,
      public_update: Optional[PublicUpdate] = None,
      due: Union[None, bool, tf.Tensor] = None,
  ) -> state_lib.FedSmpState:
    """Returns `state` with its round's choice; see `ServerChoices.choose`."""
    return self._choices.choose(state, public_update, due)

  def finish(
      self, total: channel_lib.Report, state: state_lib.FedSmpState
  ) -> tuple[
      tf.Tensor, state_lib.FedSmpState, collections.OrderedDict[str, tf.Tensor]
  ]:
    """Makes the update of a round.

    Args:
      total: The secure sum of the reports.
      state: The state of the round.

    Returns:
      The update, float64[d]; the state of the next round, not yet chosen; and the
      measurements.
    """
    release, state, measurements = self.release(total, state)
    update, state = self._choices.update(release, state)
    return update, state, measurements
