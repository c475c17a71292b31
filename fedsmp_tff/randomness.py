"""Seeds: int64[2] tensors, fresh from the operating system or derived from one another.

Every random number of a round comes from a stateless TensorFlow operation, or from
`mechanism.chacha20`, on such a seed (cohorts come from NumPy, see `privacy.sampling`): private
runs (fresh seeds) and reproducible simulations (derived seeds) share one path. Derived seeds
protect nothing: anyone who knows the run's seed can remove the noise.

All streams, each a `fold_in` of its parent in this tree:

  state             the run's seed, or fresh             public
    round           the round's number                   public: mask, order of public examples
      ROTATION      -2^62                                public: rotation of integer noise
        PHASES      0
      PUBLIC        -2^62 + 1                            public: examples of pseudo-clients
        pseudo-client    its number                      public: the order of its examples
      client        the client's id (unseeded: fresh)    secret
        ORDER       0                                    order of the client's examples
        DRAW        2                                    which of its examples it trains on
        NOISE       1                                    its noise share
          ROUNDING  1                                    coins of random rounding
          INTEGER_NOISE 2                                 integer noise

No two streams meet: numbers under one parent differ, since client ids are above -2^62 + 1, and
`fold_in` maps each number to a different seed. (Without pseudo-clients the public training orders
its examples in epoch e by number e under the round; a client draws only from its children.)

A fresh seed has 126 random bits, and `fold_in` mixes both of its words, so that the key of a
client's noise has them too (a fold of 126 random bits in 128 loses a quarter of a bit). `chacha20`
draws the noise from that key: an exact share reveals neither the key nor another value.

Masks, rotations, the order of examples and coins come from Philox, which is not a cryptographic
cipher. TensorFlow permutes the 128 bits of a seed, 64 as the key and 64 as the upper half of the
counter; an attacker who knows a block's 128 bits finds the key in 2^64 trials.
"""

import enum
from typing import Union

import tensorflow as tf

_ENTROPY_SOURCE = '/dev/urandom'
_READ_BYTES = 4096
_ENTROPY_LINES = 8
_HASH_KEYS = ((1, 2), (3, 4))  # Public SipHash keys for two hashes of one random text.
_PHILOX = 1
_SCRAMBLING_KEY = 0x02461E293EC8F720  # TensorFlow's, by which it makes key and counter of a seed.
_FOLD = 0x666F6C645F696E21  # Separates blocks of `fold_in` from blocks drawn from the seed itself.


def fresh_seed() -> tf.Tensor:
  """Returns a new int64[2] of 126 random bits each time that the operation runs.

  The bits come from the kernel (/dev/urandom) where the operation runs. TensorFlow's operations
  without a seed (`tf.random.normal`, `NonDeterministicInts`) draw from one generator per process,
  whose 32 random bits are few enough to try all of them against a release.
  """
  # A text dataset is the only reader in a graph that needs no file length. A line ends at a random
  # byte, after 256 on average; all lines have under 16 bytes with probability under 1e-14.
  lines = tf.data.TextLineDataset(_ENTROPY_SOURCE, buffer_size=_READ_BYTES)
  lines = lines.take(_ENTROPY_LINES).batch(_ENTROPY_LINES)
  entropy = tf.strings.reduce_join(lines.get_single_element())
  return tf.stack([
      tf.strings.to_hash_bucket_strong(entropy, tf.int64.max, key) for key in _HASH_KEYS
  ])


def fold_in(seed: tf.Tensor, data: Union[int, tf.Tensor]) -> tf.Tensor:
  """Returns the seed int64[2] of stream number `data` under `seed`.

  The result is block number `data` of Philox under TensorFlow's key and counter for `seed`, the key
  XORed with a constant: every bit depends on all 128 bits of `seed`, and results for two `data`
  differ. (`tf.random.fold_in` returns 64 bits of hash, and `data` itself.)

  >>> one, again, other = (fold_in(run_seed(5), round_num) for round_num in (0, 0, 1))
  >>> bool((one == again).numpy().all()), bool((one == other).numpy().all())
  (True, False)
  """
  # What `StatelessRandomGetKeyCounter` returns; XLA's version of that drops half of the seed's bits.
  words = tf.bitcast(tf.ensure_shape(tf.cast(seed, tf.int64), [2]), tf.uint64)
  key, counter = tf.unstack(_philox(tf.constant(_SCRAMBLING_KEY, tf.uint64), words, tf.uint64))
  number = tf.bitcast(tf.cast(data, tf.int64), tf.uint64)
  folding_key = tf.bitwise.bitwise_xor(key, tf.constant(_FOLD, tf.uint64))
  return _philox(folding_key, tf.stack([number, counter]), tf.int64)


def _philox(key, counter, dtype):
  """Returns the two words of one block of Philox: the same as compiled by XLA."""
  return tf.raw_ops.StatelessRandomUniformFullIntV2(
      shape=[2], key=[key], counter=counter, alg=_PHILOX, dtype=dtype
  )


@enum.unique
class Stream(enum.Enum):
  """The numbered streams, as (parent, number)."""

  ROTATION = ('round', -(2**62))
  PHASES = ('rotation', 0)
  PUBLIC = ('round', -(2**62) + 1)
  ORDER = ('client', 0)
  DRAW = ('client', 2)
  NOISE = ('client', 1)
  ROUNDING = ('noise', 1)
  INTEGER_NOISE = ('noise', 2)


def derive(seed: tf.Tensor, stream: Stream) -> tf.Tensor:
  """Returns the seed int64[2] of a stream under `seed`."""
  _, number = stream.value
  return fold_in(seed, tf.constant(number, tf.int64))


def run_seed(seed: int) -> tf.Tensor:
  """Returns the state's seed int64[2] of a run with this seed."""
  return fold_in(tf.zeros([2], tf.int64), seed)


def round_seed(state_seed: tf.Tensor, round_num: tf.Tensor) -> tf.Tensor:
  """Returns the public seed int64[2] of a round."""
  return fold_in(state_seed, round_num)


def client_seed(round_seed: tf.Tensor, client_id: tf.Tensor) -> tf.Tensor:
  """Returns the seed int64[2] of a client in a round, for simulation only."""
  return fold_in(round_seed, client_id)
