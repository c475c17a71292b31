"""Seeds: int64[2] tensors, fresh from the operating system or derived from one another.

Every random number of this library comes from a stateless TensorFlow operation, or
`mechanism.chacha20`, on such a seed, so that there is one path for private runs (fresh seeds) and for
reproducible simulations (derived seeds). A derived seed protects nobody: who
knows the run's seed can remove the noise.

All streams, each a `fold_in` of the one that it is indented under:

  state             the run's seed, or fresh             public
    round           the round's number                   public: mask, order of public examples
      ROTATION      -2^62                                public: rotation of integer noise
        PHASES      0
      PUBLIC        -2^62 + 1                            public: examples of pseudo-clients
        pseudo-client    its number                      public: the order of its examples
      client        the client's id (unseeded: fresh)    secret
        ORDER       0                                    order of the client's examples
        NOISE       1                                    its noise share
          ROUNDING  1                                    coins of random rounding
          INTEGER_NOISE 2                                 integer noise

No two meet: numbers under one stream differ, since ids of clients are above -2^62 + 1, and
`fold_in` gives each number a seed of its own.

How much of it is random: a fresh seed has 126 random bits, and `fold_in` hashes both of its
words, so that the key of a client's noise has them too (a fold of 126 random bits in 128 loses
a quarter of a bit). Noise is drawn from that key by `chacha20`, so that
whoever knew a share exactly would learn nothing of the key, nor of another value.

All else is Philox, which is no cryptographic cipher: masks, rotations, the order of examples,
coins. TensorFlow permutes the 128 bits of a seed and uses all of them, 64 as the key and 64 as
the upper half of the counter; but anyone who knows a block's 128 bits finds the key in 2^64 trials.
"""

import enum
from typing import Union

import tensorflow as tf

_ENTROPY_SOURCE = '/dev/urandom'
_READ_BYTES = 4096
_ENTROPY_LINES = 8
# SipHash's keys are no secret here: they make two hashes of one random text.
_HASH_KEYS = ((1, 2), (3, 4))
_PHILOX = 1
# Keeps the blocks that `fold_in` takes apart from those that are drawn from the seed itself.
_FOLD = 0x666F6C645F696E21


def fresh_seed() -> tf.Tensor:
  """A new int64[2] of 126 random bits each time that the operation runs.

  The bits are the kernel's (/dev/urandom), read where the operation runs. They are
  not TensorFlow's own: its operations without a seed (`tf.random.normal`,
  `NonDeterministicInts`) draw from one generator a process that 32 random bits
  start, few enough to try them all against a release.
  """
  # A text dataset is the one reader in a graph that does not ask a file's length,
  # which this one has not. A line ends at a random byte, after 256 on average; that
  # all lines together have under 16 bytes has a probability under 1e-14.
  lines = tf.data.TextLineDataset(_ENTROPY_SOURCE, buffer_size=_READ_BYTES)
  lines = lines.take(_ENTROPY_LINES).batch(_ENTROPY_LINES)
  entropy = tf.strings.reduce_join(lines.get_single_element())
  return tf.stack([
      tf.strings.to_hash_bucket_strong(entropy, tf.int64.max, key)
      for key in _HASH_KEYS
  ])


def fold_in(seed: tf.Tensor, data: Union[int, tf.Tensor]) -> tf.Tensor:
  """The seed int64[2] that `seed` and the integer `data` determine.

  It is the block number `data` of Philox under the key and counter that TensorFlow makes of
  `seed`, the key XORed with a constant: all 128 bits of `seed` matter to all of
  the result's, and other `data` never give one seed the same result.
  (`tf.random.fold_in` returns 64 bits of hash, and `data` itself.)

  >>> one, again, other = (fold_in(of_run(5), round_num) for round_num in (0, 0, 1))
  >>> bool((one == again).numpy().all()), bool((one == other).numpy().all())
  (True, False)
  """
  key, counter = tf.unstack(
      tf.concat(tf.raw_ops.StatelessRandomGetKeyCounter(seed=tf.cast(seed, tf.int64)), 0)[::2]
  )
  number = tf.bitcast(tf.cast(data, tf.int64), tf.uint64)
  return tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=[2],
      key=[tf.bitwise.bitwise_xor(key, tf.constant(_FOLD, tf.uint64))],
      counter=[number, counter],
      alg=_PHILOX,
      dtype=tf.int64,
  )


@enum.unique
class Stream(enum.Enum):
  """The numbered streams, as (the stream that they derive from, number)."""

  ROTATION = ('round', -(2**62))
  PHASES = ('rotation', 0)
  PUBLIC = ('round', -(2**62) + 1)
  ORDER = ('client', 0)
  NOISE = ('client', 1)
  ROUNDING = ('noise', 1)
  INTEGER_NOISE = ('noise', 2)


def derive(seed: tf.Tensor, stream: Stream) -> tf.Tensor:
  """Returns the seed int64[2] of a stream that derives from `seed`."""
  _, number = stream.value
  return fold_in(seed, tf.constant(number, tf.int64))


def of_run(seed: int) -> tf.Tensor:
  """Returns the state's seed int64[2] of a run with this seed."""
  return fold_in(tf.zeros([2], tf.int64), seed)


def of_round(state_seed: tf.Tensor, round_num: tf.Tensor) -> tf.Tensor:
  """Returns the public seed int64[2] of a round."""
  return fold_in(state_seed, round_num)


def of_client(round_seed: tf.Tensor, client_id: tf.Tensor) -> tf.Tensor:
  """Returns the seed int64[2] of a client in a round: for simulation only."""
  return fold_in(round_seed, client_id)
