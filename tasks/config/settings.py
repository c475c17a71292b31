"""Defines every option of `tasks.run` once, and parses a command line into settings."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import dataclasses
import json
import pathlib
import re
from typing import Any, Optional

from absl import flags

from fedsmp_tff.mechanism import noise as noise_lib
from fedsmp_tff.privacy import sampling as sampling_lib
from tasks import datasets
from tasks import errors
from tasks.config import command
from tasks.config import options
from tasks.config import paper_tables
from tasks.config import recipes
from tasks.config import runtime as runtime_lib
from tasks.config import task_flags as task_flags_lib
from tasks.models import initializers

_PROGRAM = 'python -m tasks.run'


@dataclasses.dataclass(frozen=True)
class Algorithm:
  """One of the six systems of the paper, or of this project's own.

  Attributes:
    sparsifier: 'randk', 'topk', 'released', 'head' or None for all coordinates.
    private: Whether clients clip and add noise.
    federated: Whether there are rounds; if not, there are no clients.
  """

  sparsifier: Optional[str]
  private: bool
  federated: bool = True


PUBLIC_ONLY = 'public_only'
ALGORITHMS = {
    'fedsmp_topk': Algorithm('topk', True),
    'fedsmp_randk': Algorithm('randk', True),
    'fedsmp_released': Algorithm('released', True),
    'fedsmp_head': Algorithm('head', True),
    'dp_fedavg': Algorithm(None, True),
    'fedavg': Algorithm(None, False),
    'fedavg_randk': Algorithm('randk', False),
    'fedavg_topk': Algorithm('topk', False),
    'fedavg_head': Algorithm('head', False),
    PUBLIC_ONLY: Algorithm(None, False, federated=False),
}
# The value of --warm_start and --whiten.
PUBLIC = 'public'

_RUN = 'What to run'
_PRIVACY = 'Privacy'
_TRAINING = 'Training'
_POST_PROCESSING = 'Post-processing of releases (none changes epsilon)'
PUBLIC_DATA = 'Public data'
_EVALUATION = 'Evaluation'
_OUTPUT = 'Output and interruption'
# By default, of top-k: a public update costs as much as the training of a whole round of clients on
# one processor.
_MASK_ROUNDS = 5
PSEUDO_CLIENTS = 4
_EVALUATIONS = 20


def _when_algorithm(is_meant: Callable[[Algorithm], bool]) -> options.Condition:
  return options.when('algorithm', *(n for n, found in ALGORITHMS.items() if is_meant(found)))


# The size of a head is fixed: --p does not apply.
_SPARSE = _when_algorithm(lambda algorithm: algorithm.sparsifier not in (None, 'head'))
_TOPK = _when_algorithm(lambda algorithm: algorithm.sparsifier == 'topk')
# What a run has public examples for.
_WITH_PUBLIC = options.Condition(
    f'{_TOPK.text} or --warm_start is set',
    lambda chosen: _TOPK.met(chosen) or chosen['warm_start'] is not None,
)
_PRIVATE = _when_algorithm(lambda algorithm: algorithm.private)

_option = options.option


def _of_tasks(field: str) -> str:
  values = (f'{name} {getattr(task.settings, field)}' for name, task in datasets.TASKS.items())
  return f'default by task: {", ".join(values)}'


def _task_option(
    field: str, text: str, without_rounds: Optional[int] = None, **facts: Any
) -> Any:
  """An option that is the task's paper setting of this name where it is not given.

  Args:
    field: The setting.
    text: What it is.
    without_rounds: What an algorithm without rounds has instead; None: the same.
    **facts: As `options.option`'s.
  """
  def fill(chosen):
    if without_rounds is not None and not ALGORITHMS[chosen['algorithm']].federated:
      return without_rounds
    return getattr(datasets.TASKS[chosen['task']].settings, field)

  return _option(None, f'{text} ({_of_tasks(field)}).', fill=fill, **facts)


def _best_ratio(chosen: Mapping[str, Any]) -> float:
  """The p at which the paper's rand-k or top-k is best."""
  paper = datasets.TASKS[chosen['task']].settings
  is_random = ALGORITHMS[chosen['algorithm']].sparsifier == 'randk'
  return paper.randk_ratio if is_random else paper.topk_ratio


def _mask_rounds(chosen: Mapping[str, Any]) -> int:
  """The rounds that a mask serves, unless something is set that makes masks in another way."""
  others = ('public_clients', 'released_weight')
  is_default = _TOPK.met(chosen) and all(chosen[name] is None for name in others)
  return _MASK_ROUNDS if is_default else 1


def _best_sampling(chosen: Mapping[str, Any]) -> str:
  return sampling_lib.POISSON if _PRIVATE.met(chosen) else sampling_lib.FIXED


@dataclasses.dataclass(frozen=True)
class RunSettings:
  """Everything that defines a run: the flags' values, filled in from the task.

  `clip` and `noise_multiplier` are None without privacy. What else is None follows from the data
  (see `builders.privacy_spec`) or is off.

  Attributes:
    task_flags: The values of the task's own flags, by name.
    recipe: The --recipe that some of the values are from; None for none.
  """

  task: str = _option(
      None,
      "What to train: data, model and the paper's settings; or a module with a task of your own"
      ' (docs/own_task.py is a template).',
      group=_RUN, common=True, values=list(datasets.TASKS), other_values='MODULE', required=True,
  )
  algorithm: str = _option(
      'fedsmp_topk',
      "Which of the paper's systems. fedsmp_*: k shared coordinates, clipped and noised;"
      ' dp_fedavg: the same on all coordinates; fedavg*: without privacy. Not in the paper:'
      ' fedsmp_released, the top k of past releases, without public data; *_head, the'
      " model's last layer; public_only, the model trained on the public examples alone, without"
      ' clients.',
      group=_RUN, common=True, values=list(ALGORITHMS),
  )
  p: Optional[float] = _option(
      None,
      'Compression ratio in (0, 1]: k = max(1, round(p d)) of d coordinates are kept. Top-k:'
      f' {_of_tasks("topk_ratio")}. Rand-k: {_of_tasks("randk_ratio")}.',
      group=_RUN, common=True, above=0, at_most=1, only=_SPARSE, fill=_best_ratio,
      compared=False,
  )
  mask_rounds: int = _option(
      None,
      'Rounds that one set of k coordinates serves. 1: a set for each round, as in the paper'
      f' (default: {_MASK_ROUNDS} for top-k by the default --public_clients, else 1).',
      group=_RUN, at_least=1, only=_SPARSE, fill=_mask_rounds,
  )
  rounds: int = _task_option(
      'rounds', 'Rounds T', group=_RUN, common=True, at_least=0, compared=False, without_rounds=0
  )
  clients_per_round: int = _task_option(
      'clients_per_round', 'Clients r in every round',
      group=_RUN, common=True, at_least=1, without_rounds=1,
  )
  seed: Optional[int] = _option(
      None,
      'Fixes partition, initial weights, sampling, masks, shuffling and, FOR SIMULATION ONLY,'
      ' the noise: anyone who knows the seed can remove it (default: none, everything is fresh).',
      group=_RUN, common=True, at_least=0, at_most=2**63 - 1, compared=False,
  )
  noise_multiplier: Optional[float] = _task_option(
      'noise_multiplier',
      'sigma: the sum over clients gets noise of standard deviation sigma times the clipping'
      ' norm',
      group=_PRIVACY, at_least=0, only=_PRIVATE, excludes=('epsilon',), compared=False,
  )
  clip: Optional[float] = _task_option(
      'clipping_norm', "Clipping norm C, L2, of a client's k values",
      group=_PRIVACY, common=True, above=0, only=_PRIVATE,
  )
  sampling: str = _option(
      None,
      'poisson: each client with probability r/n, neighbours differ by one client added or'
      ' removed. fixed: exactly r clients, as in Algorithm 1, neighbours by one client'
      ' replaced, which takes twice the noise or more for the same epsilon (default: poisson;'
      ' fixed for fedavg*).',
      group=_PRIVACY, values=[sampling_lib.POISSON, sampling_lib.FIXED], fill=_best_sampling,
  )
  noise: str = _option(
      noise_lib.GAUSSIAN,
      'gaussian: in reals, then 32-bit integers. discrete_gaussian: integers modulo 2^16 or more,'
      ' whose guarantee needs no floating point.',
      group=_PRIVACY, values=list(noise_lib.KINDS), only=_PRIVATE,
  )
  epsilon: Optional[float] = _option(
      None,
      'Instead of --noise_multiplier: the smallest sigma that spends at most this epsilon over'
      ' all rounds.',
      group=_PRIVACY, common=True, above=0, only=_PRIVATE, compared=False,
  )
  epsilon_budget: Optional[float] = _option(
      None,
      'The most epsilon that the run may spend on the clients in the data, with the runs in'
      ' --output_dir that it has overwritten: a round that would exceed it does not begin, and'
      ' the run ends with status 1 (default: no limit). It may change when a run resumes.',
      group=_PRIVACY, above=0, only=_PRIVATE, compared=False,
  )
  delta: Optional[float] = _option(
      None, 'delta, in (0, 1) (default: n^-1.1).',
      group=_PRIVACY, above=0, below=1, only=_PRIVATE,
  )
  clip_quantile: Optional[float] = _option(
      None,
      'Adaptive clipping: C starts at --clip and follows this quantile of the norms, in (0, 1),'
      ' estimated within epsilon (default: off).',
      group=_PRIVACY, above=0, below=1, only=_PRIVATE,
  )
  learning_rate: float = _task_option(
      'learning_rate', "Clients' learning rate in the first round", group=_TRAINING, above=0
  )
  momentum: float = _task_option(
      'momentum', "Clients' momentum, zero at the start of every round",
      group=_TRAINING, at_least=0, below=1,
  )
  batch_size: int = _task_option(
      'batch_size', "Examples in a client's step", group=_TRAINING, at_least=1
  )
  local_epochs: Optional[int] = _task_option(
      'local_epochs', 'Passes of a client over its data in a round',
      group=_TRAINING, at_least=1,
  )
  server_learning_rate: float = _option(
      1.0, 'The server\'s learning rate, on the mean update.', group=_TRAINING, above=0
  )
  initializer: str = _option(
      'keras',
      "The library whose default initial weights the model has. The paper's code was PyTorch.",
      group=_TRAINING, values=list(initializers.INITIALIZERS),
  )
  released_weight: Optional[float] = _option(
      None,
      'Weight, in [0, 1], of past releases when ranking coordinates; the rest comes from the'
      ' public update, smoothed over the rows and columns of each layer. 0: public update only'
      " (default: off, each coordinate's own public update, as in the paper).",
      group=_POST_PROCESSING, at_least=0, at_most=1, only=_TOPK,
  )
  server_schedule: Optional[str] = _option(
      None,
      'linear: the server learning rate decays linearly to zero over --rounds: large steps'
      ' first, little noise in the last weights (default: off).',
      group=_POST_PROCESSING, values=['linear'],
  )
  clip_schedule: Optional[str] = _option(
      None,
      "learning_rate: C, and the noise with it, decays as the clients' learning rate does"
      ' (default: off).',
      group=_POST_PROCESSING, values=['learning_rate'], only=_PRIVATE, excludes=('clip_quantile',),
  )
  warm_start: Optional[str] = _option(
      None,
      f'Initial weights. {PUBLIC}: pre-trained on the public examples, as those of {PUBLIC_ONLY}'
      ' (default: random weights).',
      group=PUBLIC_DATA, values=[PUBLIC],
      fill=lambda chosen: None if ALGORITHMS[chosen['algorithm']].federated else PUBLIC,
  )
  whiten: Optional[str] = _option(
      None,
      f'{PUBLIC}: train the last layer in coordinates in which its inputs, on the public examples,'
      ' are uncorrelated and of equal variance: faster steps, and noise of equal effect (default:'
      ' off).',
      group=PUBLIC_DATA, values=[PUBLIC], only=options.when('warm_start'),
  )
  public_examples: Optional[int] = _task_option(
      'public_examples', 'Examples on the server, of people or of a pool that no client has',
      group=PUBLIC_DATA, at_least=1, only=_WITH_PUBLIC,
  )
  public_clients: Optional[int] = _option(
      None,
      'Cut the public examples into this many pseudo-clients, train them as clients do, and rank'
      ' coordinates by the mean of their updates. 0: one training on all public examples, as in the'
      f' paper (default: {PSEUDO_CLIENTS}).',
      group=PUBLIC_DATA, at_least=0, only=_TOPK,
  )
  rounds_per_evaluation: Optional[int] = _option(
      None,
      f'Rounds from one evaluation to the next (default: for {_EVALUATIONS} evaluations).',
      group=_EVALUATION, at_least=1, compared=False,
      fill=lambda chosen: -(-max(chosen['rounds'], 1) // _EVALUATIONS),
  )
  eval_examples: int = _option(
      2000,
      'Random test examples in an evaluation; the last evaluation uses all. 0: all in each, so that'
      ' the best of them is a result too.',
      group=_EVALUATION, at_least=0, compared=False,
  )
  held_out: Optional[int] = _option(
      None,
      'Evaluate on this many examples of people who are not clients and in no other set, instead'
      ' of the test set, for tuning (default: the test set).',
      group=_EVALUATION, at_least=1,
  )
  task_flags: dict[str, Any] = dataclasses.field(kw_only=True)
  # A name for what the others are: not part of what defines a run.
  recipe: Optional[str] = dataclasses.field(default=None, kw_only=True, compare=False)


@dataclasses.dataclass(frozen=True)
class OutputSettings:
  """Sets where a run's files are and how it ends early; `output_dir` may be None."""

  output_dir: Optional[str] = _option(
      None,
      'Directory for config.json, metrics.csv, timings.csv, summary.json, weights.npz,'
      ' privacy_ledger.jsonl, checkpoints and TensorBoard events (default:'
      ' runs/TASK-ALGORITHM-TIME). If the directory has a run with the same flags, resumes it.',
      group=_OUTPUT, common=True,
  )
  overwrite: bool = _option(
      False,
      'Removes the run in --output_dir, except for its privacy ledger, and starts over.',
      group=_OUTPUT,
  )
  dry_run: bool = _option(
      False, 'Prints the plan and what the run would spend, writes nothing, and ends.',
      group=_OUTPUT,
  )
  release_manager: Optional[str] = _option(
      None,
      'MODULE:FUNCTION: a function without arguments that returns a tff.program.ReleaseManager,'
      ' which receives each row of metrics.csv with its round as the key: for MLflow, W&B and the'
      ' like (default: none).',
      group=_OUTPUT,
  )


@dataclasses.dataclass(frozen=True)
class _Presets:
  """Names of sets of flags, which are no settings of their own."""

  row: Optional[str] = _option(
      None,
      "Sets the task and flags of one row of the paper's tables, as in"
      ' table_1/fedsmp_topk/0.005 or, in tables over epsilon, table_4/fedsmp_randk/0.4/2.02;'
      ' flags given explicitly override it.',
      group=_RUN,
  )
  recipe: Optional[str] = _option(
      None,
      'A named set of tuned flags for the task (tasks/experiments/recipes/TASK/NAME.flags);'
      ' flags given explicitly override it. best, the default of tasks.run where the task has it:'
      " the most accuracy at a valid epsilon; paper: the paper's setting; none: each flag's"
      " own default. --dry_run prints the resulting plan.",
      group=_RUN, common=True,
  )
  config: Optional[str] = _option(
      None,
      'The directory of a run, or its config.json: sets the flags of that run; flags given'
      ' explicitly override it.',
      group=_RUN, excludes=('row', 'recipe'),
  )


_TABLES = (RunSettings, _Presets, runtime_lib.RuntimeSettings, OutputSettings)


def help_lines(full: bool) -> list[str]:
  """The help of the flags of a run: of all, by group, or of the common ones."""
  made = _new_flags(_TABLES)
  if not full:
    title = f'The flags that most runs need. Defaults are those of --recipe={recipes.NONE}.'
    return [*_bare_commands(), *options.common_help_lines(title, made, *_TABLES)]
  lines = options.help_lines(made, *_TABLES)
  for task in datasets.TASKS:
    own = (options.help_of(made[name]) for name in task_flags_lib.names(task))
    lines += ['', f'Only for --task={task}:', *own]
  return [*lines, '', 'Flags from a file, one a line: --flagfile=FILE']


def _bare_commands() -> list[str]:
  """What the help prints of commands that name no more than a task with the default recipe."""
  lines = ['', f'Without further flags a task runs with --recipe={recipes.BEST}:']
  for task in datasets.TASKS:
    if recipes.BEST in recipes.names(task):
      text = f'--task={task}: {" ".join(recipes.flags_of(task, recipes.BEST))}'
      lines.append(options.wrapped(text))
  return lines


def parse(
    arguments: Sequence[str],
    *tables: type,
    program: str = _PROGRAM,
    default_recipe: Optional[str] = None,
) -> tuple[RunSettings, runtime_lib.RuntimeSettings, OutputSettings, *tuple[Any, ...]]:
  """Parses the flags of a run; changes nothing, and depends on nothing but its arguments.

  Args:
    arguments: Flags as tasks.run takes them.
    *tables: Dataclasses of further options that the command line may have.
    program: The command that prints help.
    default_recipe: The recipe where no preset is named, the task has this recipe, and the system
      trains on clients.

  Returns:
    A run's settings, where it runs, its output, and an instance of each further dataclass.

  Raises:
    InputError: If something is not a flag, or a flag is missing, out of range or without
      effect.
  """
  parsed = _read(arguments, tables, program)
  names = options.make(_Presets, parsed)
  if names.config is not None:
    arguments = _preceded_by(_flags_of_run(names.config), arguments, tables, program)
  if names.row is not None:
    row = paper_tables.flags_of(paper_tables.named(names.row))
    arguments = _preceded_by(row, arguments, tables, program)
  given = _read(arguments, tables, program)
  task, recipe = given['task'].value, names.recipe
  if names == _Presets() and default_recipe in recipes.names(task or ''):
    recipe = default_recipe if ALGORITHMS[given['algorithm'].value].federated else None
  if recipe in (None, recipes.NONE) or task is None:
    recipe = None
  else:
    lines = parsed.read_flags_from_files([f'--flagfile={recipes.file_of(task, recipe)}'])
    arguments = _preceded_by_recipe(lines, arguments, tables, program)
  parsed = _read(arguments, tables, program)
  others = (runtime_lib.RuntimeSettings, OutputSettings, *tables)
  settings = dataclasses.replace(_run_settings(parsed), recipe=recipe)
  return settings, *(options.make(table, parsed) for table in others)


def _preceded_by(
    preset: Iterable[str], arguments: Sequence[str], tables: Sequence[type], program: str
) -> list[str]:
  """A command line that begins with the flags of a preset.

  Explicit flags win over them by coming later. Left out is what an explicit flag excludes, or
  leaves without effect.
  """
  known = options.options_of(RunSettings)
  explicit = _read(arguments, tables, program)
  given = {name for name in known if explicit[name].present}
  names = {flag: flag.lstrip('-').partition('=')[0] for flag in preset}
  own = {flag: name for flag, name in names.items() if name in known and name not in given}

  def excluded(name):
    return any(other in known[name].excludes or name in known[other].excludes for other in given)

  dropped = {flag for flag, name in own.items() if excluded(name)}
  while True:
    merged = [*(flag for flag in preset if flag not in dropped), *arguments]
    values = options.values_of(RunSettings, _read(merged, tables, program))
    idle = {
        flag
        for flag, name in own.items()
        if known[name].only is not None and not known[name].only.met(values)
    }
    if idle <= dropped:
      return merged
    dropped |= idle


def _preceded_by_recipe(
    lines: Sequence[str], arguments: Sequence[str], tables: Sequence[type], program: str
) -> list[str]:
  """A command line that begins with the flags of a recipe for its system.

  Without --algorithm that is the recipe's first, unless an explicit flag has no effect on it, such
  as --p on a last layer: then it is the default of --algorithm.
  """
  given = _read(arguments, tables, program)
  if given['algorithm'].present:
    lines = recipes.of_algorithm(lines, given['algorithm'].value)
    return _preceded_by(lines, arguments, tables, program)
  first = _preceded_by(recipes.of_algorithm(lines, None), arguments, tables, program)
  values = options.values_of(RunSettings, _read(first, tables, program))
  known = options.options_of(RunSettings).items()
  if all(one.only is None or one.only.met(values) for name, one in known if given[name].present):
    return first
  lines = recipes.of_algorithm(lines, given['algorithm'].value)
  return _preceded_by(lines, arguments, tables, program)


def _flags_of_run(path: str) -> list[str]:
  """The flags that make a run again, without those at their defaults.

  Args:
    path: The run's directory, or its config.json.

  Raises:
    InputError: If there is no such file, or it is not that of a run.
  """
  file = pathlib.Path(path)
  if file.is_dir():
    file /= 'config.json'
  try:
    found = json.loads(file.read_text(encoding='utf-8'))['flags']
    basis = [f'--task={found["task"]}', f'--algorithm={found["algorithm"]}']
  except (OSError, ValueError, KeyError, TypeError):
    raise errors.InputError(
        f"--config={path} is not a run's config.json, or a directory that has one; name one."
    ) from None
  line = basis
  while True:  # What is set changes what other flags are by default.
    made = identity(_run_settings(_read(line, (), _PROGRAM)))
    missing = {n: v for n, v in found.items() if v is not None and v != made.get(n)}
    more = [options.flag_of(name, value) for name, value in missing.items()]
    if not set(more) - set(line):
      return line
    line = [*line, *more]


def identity(settings: RunSettings) -> dict[str, Any]:
  """The flags that define a run, as JSON has them.

  Directories of data are left out: `resuming.check_data` identifies their contents. So is
  `epsilon_budget`, which a run that has spent it may raise.
  """
  values = dataclasses.asdict(settings)
  values |= values.pop('task_flags')
  del values['epsilon_budget'], values['recipe']
  return json.loads(json.dumps({n: v for n, v in values.items() if not n.endswith('_dir')}))


def _new_flags(tables: Sequence[type]) -> flags.FlagValues:
  made = options.new_flags(*tables)
  task_flags_lib.define(made)
  return made


def _read(arguments: Sequence[str], tables: Sequence[type], program: str) -> flags.FlagValues:
  # A task of a module is imported here, since its flags must be known before they are read.
  line = ''
  with contextlib.suppress(flags.Error):  # A --flagfile that is missing is refused below.
    line = ' '.join(flags.FlagValues().read_flags_from_files(arguments))
  for task in re.findall(r'(?:^|\s)--?task[= ](\S+)', line):
    datasets.TASKS[task]  # pylint: disable=pointless-statement
  made = _new_flags([*_TABLES, *tables])
  command.refuse(command.read(made, arguments, program), program)
  return made


def _run_settings(parsed: flags.FlagValues) -> RunSettings:
  task = parsed['task'].value
  own = task_flags_lib.of_task(task, parsed) if task is not None else {}
  settings = options.make(RunSettings, parsed, task_flags=own)
  if settings.mask_rounds is None:  # All coordinates, every round.
    settings = dataclasses.replace(settings, mask_rounds=1)
  _check_rounds(settings, parsed)
  return settings


# What --algorithm=public_only takes, beside the task's own flags and --rounds=0; some have no
# effect, which lets grids have them for all of their runs.
_OF_PUBLIC_ONLY = (
    'task', 'algorithm', 'seed', 'initializer', 'public_examples', 'held_out', 'sampling',
    'rounds_per_evaluation', 'eval_examples',
)


def _check_rounds(settings: RunSettings, parsed: flags.FlagValues) -> None:
  if ALGORITHMS[settings.algorithm].federated:
    if settings.rounds < 1:
      raise errors.InputError(f'--rounds must be an integer >= 1; got {settings.rounds}.')
    return
  for name in ('row', 'recipe'):
    if parsed[name].value not in (None, recipes.NONE):
      raise errors.InputError(
          f'--{name}={parsed[name].value} is for rounds, which --algorithm={settings.algorithm} has'
          f' none of; drop --{name}.'
      )
  for name in options.options_of(RunSettings):
    if name == 'rounds' and not settings.rounds:
      continue
    if parsed[name].present and name not in _OF_PUBLIC_ONLY:
      raise errors.InputError(
          f'--{name} has no effect with --algorithm={settings.algorithm}, which trains on no'
          f' client; drop --{name}.'
      )
