"""Defines every option of `tasks.run` once, and parses a command line into settings."""

from collections.abc import Callable, Collection, Sequence
import dataclasses
import json
from typing import Any, Optional

from absl import flags

from fedsmp_tff.mechanism import mechanism as mechanism_lib
from fedsmp_tff.privacy import sampling as sampling_lib
from tasks import datasets
from tasks import errors
from tasks import systems
from tasks.cli import command
from tasks.cli import options
from tasks.cli import place as place_lib
from tasks.models import initializers
from tasks.systems import system as system_lib

_PROGRAM = 'python -m tasks.run'
# Values of --warm_start, --trainable and --server_learning_rate_schedule.
NONE, PUBLIC = 'none', 'public'
ALL, HEAD = 'all', 'head'
CONSTANT, LINEAR = 'constant', 'linear_decay'

_RUN = 'What to run'
_PRIVACY = 'Privacy'
_TRAINING = 'Training'
_PUBLIC_DATA = 'Public data'
_EVALUATION = 'Evaluation'
_OUTPUT = 'Output'
_EVALUATIONS = 20

_option = options.option


def _when_system(predicate: Callable[[system_lib.System], bool]) -> options.Condition:
  ours = [name for name in systems.SYSTEMS.names if predicate(systems.SYSTEMS[name])]
  return options.Condition(
      options.when('algorithm', *ours).text,
      lambda chosen: predicate(systems.SYSTEMS[chosen['algorithm']]),
  )


_MASKED = _when_system(lambda system: system.masked)
_PRIVATE = _when_system(lambda system: system.private)
_FEDERATED = _when_system(lambda system: system.federated)
_NEEDS_PUBLIC = _when_system(lambda system: system.needs_public)
# What a run has public examples for.
_WITH_PUBLIC = options.Condition(
    f'{_NEEDS_PUBLIC.text}, or --warm_start={PUBLIC}',
    lambda chosen: _NEEDS_PUBLIC.met(chosen) or chosen['warm_start'] == PUBLIC,
)


def _task_option(field: str, text: str, **facts: Any) -> Any:
  """An option whose default is a task's own."""
  values = {name: getattr(datasets.TASKS[name].defaults, field) for name in datasets.TASKS.names}
  stated = ', '.join(f'{name} {value}' for name, value in values.items() if value is not None)
  default = f' (default by task: {stated}).' if stated else '.'
  return _option(
      None, text + default,
      fill=lambda chosen: getattr(datasets.TASKS[chosen['task']].defaults, field), **facts,
  )


@dataclasses.dataclass(frozen=True)
class RunSettings:
  """Everything that defines a run: the values of the flags, filled in from the task.

  `clip`, `noise_multiplier` and `epsilon` are None without privacy, and one of the latter two with it.
  What else is None follows from the data (see `builders.privacy_spec`) or is off.

  Attributes:
    task_options: An instance of `Task.options`; None if the task has none.
    system_options: An instance of `System.options`; None if the system has none.
  """

  task: str = _option(
      None,
      'Data, model and defaults; or a module with a TASK of your own (docs/extending.md).',
      group=_RUN, common=True, values=list(datasets.TASKS.names), other_values='MODULE',
      required=True,
  )
  algorithm: str = _option(
      'fedsmp_topk',
      'System. fedsmp_*: k selected coordinates, the same for all clients, clipped and noised;'
      ' dp_fedavg: the same on all coordinates; fedavg*: without privacy. Not in the paper:'
      ' fedsmp_released, the top k of past releases, without public data; public_only, the model'
      ' pre-trained on the public examples, without clients. Or a module with a SYSTEM of your own'
      ' (docs/extending.md).',
      group=_RUN, common=True, values=list(systems.SYSTEMS.names), other_values='MODULE',
  )
  trainable: str = _task_option(
      'trainable',
      'all: every layer. head: the last layer, on whitened features of the layers before it, which are'
      ' pre-trained on the public examples and frozen; d, k and p are those of the last layer. Needs'
      f' --warm_start={PUBLIC}',
      group=_RUN, common=True, values=[ALL, HEAD],
  )
  p: Optional[float] = _task_option(
      'p', 'Compression ratio in (0, 1]: masks select k = max(1, round(p d)) of d coordinates',
      group=_RUN, common=True, above=0, at_most=1, only=_MASKED, compared=False,
  )
  mask_rounds: int = _option(
      1, 'Number of rounds that a mask serves. 1: a mask per round, as in the paper.',
      group=_RUN, at_least=1, only=_MASKED,
  )
  rounds: int = _task_option(
      'rounds', 'Rounds T', group=_RUN, common=True, at_least=1, compared=False, only=_FEDERATED
  )
  clients_per_round: int = _task_option(
      'clients_per_round', 'Clients r per round',
      group=_RUN, common=True, at_least=1, only=_FEDERATED,
  )
  seed: Optional[int] = _option(
      None,
      'Fixes partition, initial weights, sampling, masks, shuffling and, FOR SIMULATION ONLY, the'
      ' noise: anyone who knows the seed can remove it (default: none, everything is fresh).',
      group=_RUN, common=True, at_least=0, at_most=2**63 - 1, compared=False,
  )
  epsilon: Optional[float] = _task_option(
      'epsilon',
      'Epsilon of all rounds: the smallest sigma that spends at most this much',
      group=_PRIVACY, common=True, above=0, only=_PRIVATE, excludes=('noise_multiplier',),
      compared=False,
  )
  noise_multiplier: Optional[float] = _task_option(
      'noise_multiplier',
      'sigma, instead of --epsilon: the noise stddev of the sum over clients is sigma times the'
      ' clipping norm',
      group=_PRIVACY, at_least=0, only=_PRIVATE, excludes=('epsilon',), compared=False,
  )
  clip: Optional[float] = _task_option(
      'clip', 'Clipping norm C (L2) of the masked update of a client',
      group=_PRIVACY, common=True, above=0, only=_PRIVATE,
  )
  sampling: str = _option(
      None,
      'poisson: each client independently with probability r/n; adjacency: add or remove one client.'
      ' fixed: exactly r clients, as in Algorithm 1; adjacency: replace one client, which takes at'
      ' least twice the noise for the same epsilon (default: poisson; fixed for fedavg*).',
      group=_PRIVACY, values=[sampling_lib.POISSON, sampling_lib.FIXED],
      fill=lambda chosen: sampling_lib.POISSON if _PRIVATE.met(chosen) else sampling_lib.FIXED,
  )
  noise: str = _option(
      mechanism_lib.GAUSSIAN,
      'gaussian: in reals, then 32-bit integers. discrete_gaussian: integers modulo 2^16 or more,'
      ' whose guarantee needs no floating point.',
      group=_PRIVACY, values=list(mechanism_lib.KINDS), only=_PRIVATE,
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
  clip_schedule: Optional[str] = _option(
      None,
      'learning_rate: C, and the noise with it, decays as the learning rate of the clients does;'
      ' epsilon is unchanged (default: off).',
      group=_PRIVACY, values=['learning_rate'], only=_PRIVATE, excludes=('clip_quantile',),
  )
  learning_rate: float = _task_option(
      'learning_rate', 'Learning rate of clients in round 0',
      group=_TRAINING, above=0, only=_FEDERATED,
  )
  momentum: float = _task_option(
      'momentum', 'Momentum of clients, zero at the start of every round',
      group=_TRAINING, at_least=0, below=1, only=_FEDERATED,
  )
  batch_size: int = _task_option(
      'batch_size', 'Minibatch of clients', group=_TRAINING, at_least=1, only=_FEDERATED
  )
  local_epochs: int = _task_option(
      'local_epochs', 'Epochs of a client per round', group=_TRAINING, at_least=1, only=_FEDERATED
  )
  server_learning_rate: float = _task_option(
      'server_learning_rate', 'Learning rate of the server, on the mean update',
      group=_TRAINING, above=0, only=_FEDERATED,
  )
  server_learning_rate_schedule: str = _task_option(
      'server_learning_rate_schedule',
      'linear_decay: the server learning rate decays linearly to zero over --rounds: large steps first,'
      ' little noise in the last weights; epsilon is unchanged',
      group=_TRAINING, values=[CONSTANT, LINEAR], only=_FEDERATED,
  )
  initializer: str = _option(
      'keras',
      "Library whose default initial weights the model has. The paper's code was PyTorch.",
      group=_TRAINING, values=list(initializers.INITIALIZERS),
  )
  warm_start: str = _task_option(
      'warm_start',
      f'Initial weights. {PUBLIC}: pre-trained on the public examples, as public_only.'
      f' {NONE}: random',
      group=_PUBLIC_DATA, values=[NONE, PUBLIC], only=_FEDERATED,
  )
  public_examples: Optional[int] = _task_option(
      'public_examples', 'Number of examples on the server, of people or of a pool that no client has',
      group=_PUBLIC_DATA, at_least=1, only=_WITH_PUBLIC,
  )
  rounds_per_evaluation: int = _option(
      None,
      f'Rounds from one evaluation to the next (default: for {_EVALUATIONS} evaluations).',
      group=_EVALUATION, at_least=1, compared=False,
      fill=lambda chosen: -(-(chosen['rounds'] or 1) // _EVALUATIONS),
  )
  eval_examples: int = _option(
      2000,
      'Random test examples in an evaluation; the last evaluation uses all. 0: all in each, so that'
      ' the best of them is a result too.',
      group=_EVALUATION, at_least=0, compared=False,
  )
  validation_examples: Optional[int] = _option(
      None,
      'Size of a validation set to evaluate on instead of the test set, for tuning. Its owners are'
      ' disjoint from clients and all other sets (default: off).',
      group=_EVALUATION, at_least=1,
  )
  task_options: Any = dataclasses.field(kw_only=True)
  system_options: Any = dataclasses.field(kw_only=True)

  @property
  def system(self) -> system_lib.System:
    """The system."""
    return systems.SYSTEMS[self.algorithm]


@dataclasses.dataclass(frozen=True)
class OutputSettings:
  """Sets where a run's data and files are; `output_dir` may be None."""

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


_TABLES = (RunSettings, place_lib.PlaceSettings, OutputSettings)


def help_lines(full: bool) -> list[str]:
  """The help of the flags of a run: of all, by group, or of the common ones."""
  made = _new_flags()
  if not full:
    return options.common_help_lines('The flags that most runs need:', made, *_TABLES)
  lines = options.help_lines(made, *_TABLES, *_system_tables())
  for task in datasets.TASKS.values():
    if task.options is not None:
      lines += ['', f'Only for --task={task.name}:']
      lines += [options.help_of(made[_prefix(task) + n]) for n in options.options_of(task.options)]
  return [
      *lines, '',
      'Flags from a file, one a line: --flagfile=FILE. Those that have no effect with --algorithm',
      'are ignored there, and are an error on the command line.',
  ]


def parse(
    arguments: Sequence[str], *tables: type, program: str = _PROGRAM
) -> tuple[RunSettings, place_lib.PlaceSettings, OutputSettings, *tuple[Any, ...]]:
  """Parses the flags of a run; changes nothing, and depends on nothing but its arguments.

  Args:
    arguments: Flags as tasks.run takes them.
    *tables: Dataclasses of further options that the command line may have.
    program: The command that prints help.

  Returns:
    The settings of a run, where it runs, its output, and an instance of each further dataclass.

  Raises:
    InputError: If something is not a flag, or a flag is missing, out of range or without
      effect.
  """
  _import_plugins(arguments, program)
  parsed, explicit = _new_flags(*tables), _new_flags(*tables)
  command.refuse(command.read(parsed, arguments, program), program)
  command.read(explicit, _without_flagfiles(arguments), program)
  presets = {name for name in parsed if parsed[name].present and not explicit[name].present}
  settings = _run_settings(parsed, presets)
  return settings, *(options.make(table, parsed, presets) for table in (*_TABLES[1:], *tables))


def identity(settings: RunSettings) -> dict[str, Any]:
  """The flags that define a run, as JSON has them.

  `epsilon_budget` is left out, which a run that has spent it may raise.
  """
  values = {
      name: getattr(settings, name) for name in options.options_of(type(settings))
      if name != 'epsilon_budget'
  }
  task = datasets.TASKS[settings.task]
  if task.options is not None:
    own = dataclasses.asdict(settings.task_options)
    values |= {_prefix(task) + name: value for name, value in own.items()}
  if settings.system_options is not None:
    values |= dataclasses.asdict(settings.system_options)
  return json.loads(json.dumps(values))


def _run_settings(parsed: flags.FlagValues, presets: Collection[str]) -> RunSettings:
  own = {'task_options': None, 'system_options': None}
  # Made first without its own options, which need to know the task and the system.
  settings = options.make(RunSettings, parsed, presets, **own)
  task = datasets.TASKS[settings.task]
  for other in datasets.TASKS.values():
    for name in options.options_of(other.options) if other.options and other is not task else ():
      _refuse(_prefix(other) + name, f'--task={other.name}', parsed, presets)
  for table in _system_tables():
    if table is not settings.system.options:
      users = [s.name for s in systems.SYSTEMS.values() if s.options is table]
      for name in options.options_of(table):
        _refuse(name, options.when('algorithm', *users).text, parsed, presets)
  if settings.trainable == HEAD and settings.warm_start == NONE:
    raise errors.InputError(
        f'--trainable={HEAD} needs a pre-trained body; set --warm_start={PUBLIC}, or --trainable={ALL}.'
    )
  if task.options is not None:
    own['task_options'] = options.make(task.options, parsed, presets, _prefix(task))
  if settings.system.options is not None:
    own['system_options'] = options.make(settings.system.options, parsed, presets)
  if not settings.system.federated:
    # A run without its rounds: what rounds would do has no effect.
    of_rounds = [n for n, o in options.options_of(RunSettings).items() if o.only is _FEDERATED]
    own |= {name: getattr(task.defaults, name) for name in of_rounds}
    own |= {'rounds': 0, 'clients_per_round': 1, 'warm_start': PUBLIC, 'trainable': ALL}
  return dataclasses.replace(settings, **own)


def _refuse(
    name: str, condition: str, parsed: flags.FlagValues, presets: Collection[str]
) -> None:
  """Raises `InputError` if a flag without effect is set on the command line."""
  if parsed[name].present and name not in presets:
    raise errors.InputError(
        f'--{name} has no effect unless {condition}; set it, or drop --{name}.'
    )


def _import_plugins(arguments: Sequence[str], program: str) -> None:
  """Imports the modules that --task and --algorithm name, so that their flags are known."""
  made = options.new_flags(RunSettings)
  try:
    made([program, *arguments], known_only=True)
  except (flags.Error, ValueError):
    return  # `parse` says what is wrong.
  if made['task'].value is not None:
    datasets.TASKS[made['task'].value]  # pylint: disable=pointless-statement
  systems.SYSTEMS[made['algorithm'].value]  # pylint: disable=pointless-statement


def _new_flags(*tables: type) -> flags.FlagValues:
  made = options.new_flags(*_TABLES, *_system_tables(), *tables)
  for task in datasets.TASKS.values():
    if task.options is not None:
      options.define(made, task.options, _prefix(task))
  return made


def _system_tables() -> list[type]:
  tables = [system.options for system in systems.SYSTEMS.values() if system.options is not None]
  return list(dict.fromkeys(tables))


def _prefix(task: Any) -> str:
  return f'{task.name}_'


def _without_flagfiles(arguments: Sequence[str]) -> list[str]:
  kept, is_file = [], False
  for argument in arguments:
    name, has_value, _ = argument.lstrip('-').partition('=')
    if name == 'flagfile' and argument.startswith('-'):
      is_file = not has_value
    elif is_file:
      is_file = False
    else:
      kept.append(argument)
  return kept
