"""The flags of a run, checked, and the task's own settings where none is given."""

from collections.abc import Sequence
import dataclasses
from typing import Any, Optional

from absl import flags

from tasks import datasets
from tasks import errors
from tasks.config import checks
from tasks.config import command
from tasks.config import paper_tables
from tasks.config import post_processing
from tasks.config import privacy
from tasks.config import recipes
from tasks.config import runtime as runtime_lib
from tasks.models import initializers
from tasks.training import interruption
from tasks.training import run_directory


@dataclasses.dataclass(frozen=True)
class Algorithm:
  """One of the six systems of the paper, or of ours.

  Attributes:
    sparsifier: 'randk', 'topk', 'released' or None for all coordinates.
    private: Whether clients clip and add noise.
  """

  sparsifier: Optional[str]
  private: bool


ALGORITHMS = {
    'fedsmp_topk': Algorithm('topk', True),
    'fedsmp_randk': Algorithm('randk', True),
    'fedsmp_released': Algorithm('released', True),
    'dp_fedavg': Algorithm(None, True),
    'fedavg': Algorithm(None, False),
    'fedavg_randk': Algorithm('randk', False),
    'fedavg_topk': Algorithm('topk', False),
}

_GROUPS: dict[str, list[str]] = {}


def _group(title: str, *holders: flags.FlagHolder) -> None:
  _GROUPS[title] = [holder.name for holder in holders]


def _of_tasks(field: str) -> str:
  values = {
      name: getattr(task.settings, field) for name, task in datasets.TASKS.items()
  }
  return 'default by task: ' + ', '.join(
      f'{name} {value}' for name, value in values.items()
  )


_TASK = flags.DEFINE_enum(
    'task', None, list(datasets.TASKS), 'What to train: data, model and the paper\'s settings.'
)
_ALGORITHM = flags.DEFINE_enum(
    'algorithm',
    'fedsmp_topk',
    list(ALGORITHMS),
    'Which of the paper\'s systems: fedsmp_*: k shared coordinates, clipped and'
    ' noised; dp_fedavg: the same on all coordinates; fedavg*: without privacy. Not in the'
    ' paper: fedsmp_released, the top k of past releases, without public data.',
)
_P = flags.DEFINE_float(
    'p',
    None,
    'Compression ratio in (0, 1]: k = max(1, round(p d)) of d coordinates are kept.'
    f' For top-k: {_of_tasks("topk_ratio")}. For rand-k: {_of_tasks("randk_ratio")}.',
)
_K = flags.DEFINE_integer('k', None, 'Number of coordinates kept, instead of --p.')
_ROUNDS = flags.DEFINE_integer(
    'rounds', None, f'Rounds T ({_of_tasks("rounds")}).'
)
_CLIENTS_PER_ROUND = flags.DEFINE_integer(
    'clients_per_round', None,
    f'Clients r in every round ({_of_tasks("clients_per_round")}).',
)
_SEED = flags.DEFINE_integer(
    'seed',
    None,
    'Fixes partition, initial weights, sampling, masks, shuffling and, FOR'
    ' SIMULATION ONLY, the noise: who knows the seed can remove it. Default: none,'
    ' everything is fresh.',
)
_RECIPE = flags.DEFINE_string(
    'recipe', None,
    'Flags that were found to go well together for the task, by name; those that are given'
    ' beside it win. best: the most accuracy for an --epsilon. They are files:'
    ' tasks/experiments/recipes/TASK/NAME.flags.',
)
_ROW = flags.DEFINE_string(
    'row', None,
    'Sets the task and flags of one row of the paper\'s tables, as in table_1/fedsmp_topk/0.005 or,'
    ' in tables over epsilon, table_4/fedsmp_randk/0.4/2.02; flags given explicitly override it.',
)
_group('What to run', _TASK, _ROW, _RECIPE, _ALGORITHM, _P, _K, _ROUNDS, _CLIENTS_PER_ROUND, _SEED)

_NOISE_MULTIPLIER = flags.DEFINE_float(
    'noise_multiplier', None,
    'sigma: the sum over clients gets noise of standard deviation sigma times the'
    f' clipping norm ({_of_tasks("noise_multiplier")}).',
)
_CLIP = flags.DEFINE_float(
    'clip', None,
    f'Clipping norm C, L2, of a client\'s k values ({_of_tasks("clipping_norm")}).',
)
_POPULATION = flags.DEFINE_integer(
    'population', None,
    'Number of clients n that the accounting assumes. Other than the number in the'
    ' data it is hypothetical, and so is epsilon. Default: the number in the data;'
    ' shakespeare: 10^9, as in the paper.',
)
_group('Privacy', _NOISE_MULTIPLIER, _CLIP, _POPULATION)
_GROUPS['Privacy'] += privacy.NAMES

_LEARNING_RATE = flags.DEFINE_float(
    'learning_rate', None,
    f'Clients\' learning rate in the first round ({_of_tasks("learning_rate")}).',
)
_LEARNING_RATE_DECAY = flags.DEFINE_float(
    'learning_rate_decay', None,
    'Factor on the clients\' learning rate every --learning_rate_decay_rounds'
    f' rounds ({_of_tasks("learning_rate_decay")}).',
)
_LEARNING_RATE_DECAY_ROUNDS = flags.DEFINE_integer(
    'learning_rate_decay_rounds', None,
    f'See --learning_rate_decay ({_of_tasks("learning_rate_decay_rounds")}).',
)
_MOMENTUM = flags.DEFINE_float(
    'momentum', None, f'Clients\' momentum, zero at each start ({_of_tasks("momentum")}).'
)
_BATCH_SIZE = flags.DEFINE_integer(
    'batch_size', None, f'Examples of a client\'s step ({_of_tasks("batch_size")}).'
)
_LOCAL_EPOCHS = flags.DEFINE_integer(
    'local_epochs', None,
    f'Passes of a client over its data in a round ({_of_tasks("local_epochs")}).',
)
_LOCAL_STEPS = flags.DEFINE_integer(
    'local_steps', None, 'Steps of a client in a round, instead of --local_epochs.'
)
_SERVER_LEARNING_RATE = flags.DEFINE_float(
    'server_learning_rate', 1.0, 'Learning rate of the server\'s SGD.'
)
_INITIALIZER = flags.DEFINE_enum(
    'initializer', 'keras', list(initializers.INITIALIZERS),
    'Whose default initial weights the model has. The paper\'s code was PyTorch.',
)
_group(
    'Training', _LEARNING_RATE, _LEARNING_RATE_DECAY, _LEARNING_RATE_DECAY_ROUNDS,
    _MOMENTUM, _BATCH_SIZE, _LOCAL_EPOCHS, _LOCAL_STEPS, _SERVER_LEARNING_RATE, _INITIALIZER,
)

_PUBLIC_EXAMPLES = flags.DEFINE_integer(
    'public_examples', None,
    'Examples taken out of the training data for the server'
    f' ({_of_tasks("public_examples")}).',
)
_PUBLIC_EPOCHS = flags.DEFINE_integer(
    'public_epochs', None,
    'Passes of the server over the public examples before each round (default: as'
    ' many as clients make over theirs; with --local_steps, as many steps).',
)
_PUBLIC_STEPS = flags.DEFINE_integer(
    'public_steps', None, 'Steps on the public examples, instead of --public_epochs.'
)
_group('Public data (only for *_topk)', _PUBLIC_EXAMPLES, _PUBLIC_EPOCHS, _PUBLIC_STEPS)

_ROUNDS_PER_EVALUATION = flags.DEFINE_integer(
    'rounds_per_evaluation', None,
    'Rounds from one measurement of accuracy to the next'
    f' ({_of_tasks("rounds_per_evaluation")}).',
)
_EVAL_EXAMPLES = flags.DEFINE_integer(
    'eval_examples', None,
    'Test examples of such a measurement; the last one takes all. 0: all'
    f' ({_of_tasks("eval_examples")}).',
)
_GROUPS['Post-processing of releases (none changes epsilon)'] = list(post_processing.NAMES)
_HELD_OUT = flags.DEFINE_integer(
    'held_out', None,
    'Measure on so many examples that are taken out of the training data, not on the test set:'
    ' to choose flags without it (default: the test set).',
)
_group('Measuring', _ROUNDS_PER_EVALUATION, _EVAL_EXAMPLES, _HELD_OUT)
_GROUPS['Output, going on after a crash'] = [*run_directory.NAMES, *interruption.NAMES]
_GROUPS['Where it runs'] = list(runtime_lib.NAMES)


@dataclasses.dataclass(frozen=True)
class RunSettings:
  """All that defines a run: the flags' values, filled in from the task.

  `clip`, `noise_multiplier` and `population` are None without privacy. What then is left
  open, by None, `privacy.specs` fills in from the data.
  """

  task: str
  algorithm: str
  p: Optional[float]
  k: Optional[int]
  rounds: int
  clients_per_round: int
  seed: Optional[int]
  noise_multiplier: Optional[float]
  clip: Optional[float]
  population: Optional[int]
  sampling: str
  seats: Optional[int]
  noise: str
  bits: Optional[int]
  rotate: bool
  epsilon: Optional[float]
  accounting: Optional[str]
  delta: Optional[float]
  clip_quantile: Optional[float]
  min_reporting: Optional[int]
  dropout: float
  client_metrics: str
  learning_rate: float
  learning_rate_decay: float
  learning_rate_decay_rounds: int
  momentum: float
  batch_size: int
  local_epochs: Optional[int]
  local_steps: Optional[int]
  server_learning_rate: float
  initializer: str
  explore: Optional[float]
  released_weight: Optional[float]
  precondition: Optional[float]
  predict: Optional[float]
  server_filter: Optional[str]
  server_filter_decay: Optional[float]
  server_optimizer: Optional[str]
  server_schedule: Optional[str]
  clip_schedule: Optional[str]
  average_decay: Optional[float]
  public_examples: Optional[int]
  public_epochs: Optional[int]
  public_steps: Optional[int]
  rounds_per_evaluation: int
  eval_examples: Optional[int]
  held_out: Optional[int]
  task_flags: dict[str, Any]


def help_text(program: str) -> str:
  """All flags by group, each with its meaning, unit and default."""
  lines = [
      f'usage: {program} --task=TASK [flags]',
      '',
      'Trains a model with Fed-SMP or a system to compare it with, prints the plan and',
      'what it spent, and writes the run to --output_dir. For instance:',
      f'  {program} --task=shakespeare --p=0.05',
      f'  {program} --task=fashion_mnist --algorithm=fedsmp_randk --p=0.4 --seed=1',
      '',
      'A flag that the task or the algorithm has no use for is an error. The same command',
      'with the same --output_dir goes on where a run ended, however that was.',
  ]
  groups = dict(_GROUPS)
  for name in datasets.TASKS:
    groups[f'Only for --task={name}'] = _task_flags(name)
  for title, names in groups.items():
    lines += ['', f'{title}:', *(command.help_of(flags.FLAGS[name]) for name in names)]
  lines += ['', 'Flags from a file, one a line: --flagfile=FILE']
  return '\n'.join(lines)


def parse(argv: list[str], program: str) -> None:
  """Parses a command line.

  Args:
    argv: The command line.
    program: What to call for help.

  Raises:
    InputError: If it has something that is not a flag, or not a flag's value.
  """
  try:
    rest = flags.FLAGS(argv)[1:]
    if _ROW.value is not None:
      argv = [argv[0], *paper_tables.flags_of(paper_tables.named(_ROW.value)), *argv[1:]]
      rest = flags.FLAGS(argv)[1:]
    if _RECIPE.value is not None and _TASK.value is not None:
      recipe = recipes.file_of(_TASK.value, _RECIPE.value)
      # What is given beside it comes later, and wins.
      rest = flags.FLAGS([argv[0], f'--flagfile={recipe}', *argv[1:]])[1:]
  except flags.Error as error:
    text = str(error).removeprefix('ERROR:: ')
    raise errors.InputError(
        f'{text}{_flagfile_of(error, argv)} (see {program} --help)'
    ) from None
  if rest:
    raise errors.InputError(
        f'{rest[0]!r} is not a flag; flags start with -- (see {program} --help).'
    )


def _flagfile_of(error: flags.Error, argv: list[str]) -> str:
  """Which --flagfile has the flag that is not known, if one has."""
  if isinstance(error, flags.UnrecognizedFlagError):
    for name in [a for a in argv[1:] if a.lstrip('-').startswith('flagfile=')]:
      path = name.split('=', 1)[1]
      if any(
          line.lstrip('-').split('=')[0] == error.flagname
          for line in flags.FLAGS.read_flags_from_files([f'--flagfile={path}'])
      ):
        return f' It is in {path}; correct or remove it there'
  return ''


def _task_flags(task: str) -> list[str]:
  return sorted(n for n in flags.FLAGS if n.startswith(task + '_'))


def of_command_line(arguments: Sequence[str]) -> RunSettings:
  """The settings that a command line makes, whatever flags were parsed before.

  Args:
    arguments: Flags as tasks.run takes them.

  Raises:
    InputError: As `parse` and `from_flags`.
  """
  for name in flags.FLAGS:
    flags.FLAGS[name].unparse()
  parse(['tasks.run', *arguments], 'python -m tasks.run')
  return from_flags()


def from_flags() -> RunSettings:
  """The settings that the parsed flags and the task's own make.

  Raises:
    InputError: If a flag is missing, out of range, or of no use in this run.
  """
  if _TASK.value is None:
    raise errors.InputError(
        f'--task is not set; set it to one of {", ".join(datasets.TASKS)}.'
    )
  algorithm = ALGORITHMS[_ALGORITHM.value]
  others = {name: _task_flags(name) for name in datasets.TASKS if name != _TASK.value}
  chosen = privacy.from_flags(algorithm.private)
  checks.check_of_use(
      _TASK.value, others, _ALGORITHM.value, algorithm.sparsifier, algorithm.private,
      chosen['sampling'], chosen['noise'],
  )
  paper = datasets.TASKS[_TASK.value].settings

  def given(holder, default):
    return default if holder.value is None else holder.value

  p, k = _P.value, _K.value
  if algorithm.sparsifier and k is None:
    ratio = 'randk' if algorithm.sparsifier == 'randk' else 'topk'
    p = given(_P, getattr(paper, f'{ratio}_ratio'))
  settings = RunSettings(
      task=_TASK.value,
      algorithm=_ALGORITHM.value,
      p=p,
      k=k,
      rounds=given(_ROUNDS, paper.rounds),
      clients_per_round=given(_CLIENTS_PER_ROUND, paper.clients_per_round),
      seed=_SEED.value,
      noise_multiplier=(
          given(_NOISE_MULTIPLIER, paper.noise_multiplier)
          if algorithm.private and chosen['epsilon'] is None
          else _NOISE_MULTIPLIER.value
      ),
      clip=given(_CLIP, paper.clipping_norm) if algorithm.private else None,
      population=given(_POPULATION, paper.population) if algorithm.private else None,
      **chosen,
      learning_rate=given(_LEARNING_RATE, paper.learning_rate),
      learning_rate_decay=given(_LEARNING_RATE_DECAY, paper.learning_rate_decay),
      learning_rate_decay_rounds=given(
          _LEARNING_RATE_DECAY_ROUNDS, paper.learning_rate_decay_rounds
      ),
      momentum=given(_MOMENTUM, paper.momentum),
      batch_size=given(_BATCH_SIZE, paper.batch_size),
      local_epochs=(
          given(_LOCAL_EPOCHS, paper.local_epochs)
          if _LOCAL_STEPS.value is None
          else _LOCAL_EPOCHS.value
      ),
      local_steps=_LOCAL_STEPS.value,
      server_learning_rate=_SERVER_LEARNING_RATE.value,
      initializer=_INITIALIZER.value,
      **post_processing.from_flags(),
      public_examples=(
          given(_PUBLIC_EXAMPLES, paper.public_examples)
          if algorithm.sparsifier == 'topk'
          else None
      ),
      public_epochs=_PUBLIC_EPOCHS.value,
      public_steps=_PUBLIC_STEPS.value,
      rounds_per_evaluation=given(
          _ROUNDS_PER_EVALUATION, paper.rounds_per_evaluation
      ),
      eval_examples=given(_EVAL_EXAMPLES, paper.eval_examples) or None,
      held_out=_HELD_OUT.value,
      task_flags={n: flags.FLAGS[n].value for n in _task_flags(_TASK.value)},
  )
  checks.check_ranges(dataclasses.asdict(settings))
  return settings
