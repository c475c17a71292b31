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
from tasks import methods
from tasks.cli import command
from tasks.cli import options
from tasks.cli import plugins
from tasks.methods import method as method_lib
from tasks.models import initializers
from tasks.training import runtime_flags as runtime_flags_lib

# Values of --warm_start, --trainable, --server_optimizer and --server_learning_rate_schedule.
NONE, PUBLIC = 'none', 'public'
ALL, HEAD = 'all', 'head'
SGD, FEDEXP = 'sgd', 'fedexp'
CONSTANT, LINEAR = 'constant', 'linear_decay'
TRAINING = 'Training'  # The group of options that have an effect in rounds alone.

_EVALUATIONS = 20
_REGISTRIES = {'task': datasets.TASKS, 'algorithm': methods.METHODS}
_FINDERS = {'task': datasets.find, 'algorithm': methods.find}
_option = options.option
task_prefix = '{0.name}_'.format  # Of a task's own flags.


def _when_method(predicate: Callable[[method_lib.Method], bool]) -> options.Condition:
  built_in = [name for name in methods.NAMES if predicate(methods.METHODS[name])]
  return options.Condition(
      options.when('algorithm', *built_in).text,
      lambda values: predicate(methods.METHODS[values['algorithm']]),
  )


_MASKED = _when_method(lambda method: method.masked)
_PRIVATE = _when_method(lambda method: method.private)
_NEEDS_PUBLIC = _when_method(lambda method: method.needs_public)
_WITH_PUBLIC = options.Condition(
    f'{_NEEDS_PUBLIC.text}, or --warm_start={PUBLIC}',
    lambda values: _NEEDS_PUBLIC.met(values) or values['warm_start'] == PUBLIC,
)
# Facts that the options of a group share.
_RUN = {'group': 'Run', 'common': True}
_INT32_MAX = 2**31 - 1
_PRIVACY = {'group': 'Privacy', 'requires': _PRIVATE}
_TRAINING = {'group': TRAINING}
_PUBLIC_DATA, _EVALUATION = 'Public data', 'Evaluation'


def _task_option(field: str, text: str, **facts: Any) -> Any:
  """Returns an option whose default depends on the task, and perhaps on the method."""
  def default(values):
    return getattr(datasets.TASKS[values['task']].defaults.for_method(values['algorithm']), field)

  texts = {name: datasets.TASKS[name].defaults.state(field) for name in datasets.NAMES}
  stated = ', '.join(f'{name} {own}' for name, own in texts.items() if own)
  text += f' (default by task: {stated}).' if stated else '.'
  return _option(None, text, default_fn=default, **facts)


@dataclasses.dataclass(frozen=True)
class RunSettings:
  """Everything that defines a run: the values of the flags, with the task's defaults.

  Values are None if they have no effect, are off, or follow from others or from the data (see
  `experiment._privacy_spec`).

  Attributes:
    task_options: An instance of `Task.options`; None if the task has none.
    method_options: An instance of `Method.options`; None if the method has none.
  """

  task: str = _option(
      None,
      f'<{" | ".join(datasets.NAMES)} | MODULE>: Data, model and defaults. MODULE is a Python'
      ' module with a TASK of your own, as in docs/extending.md.',
      **_RUN,
  )
  algorithm: str = _task_option(
      'algorithm',
      f'<{" | ".join(methods.NAMES)} | MODULE>: Training method. fedsmp_* trains k coordinates with'
      ' clipping and noise: those that change most on public data (topk), random ones (randk), or'
      ' those with the largest past releases (released, not in the paper). dp_fedavg trains all,'
      ' with clipping and noise. fedavg* has no privacy. public_only evaluates the pre-trained'
      ' model, without rounds. MODULE is a Python module with a METHOD of your own, as in'
      ' docs/extending.md',
      **_RUN,
  )
  trainable: str = _task_option(
      'trainable',
      'Trained layers. all: every layer. head: the last layer, with whitened inputs; the layers'
      ' before it are pre-trained on public examples and frozen. d, k and p are then of the last'
      f' layer. head requires --warm_start={PUBLIC}',
      **_RUN, values=[ALL, HEAD],
  )
  p: Optional[float] = _task_option(
      'p', 'Fraction of the d trained coordinates that a mask selects: k = max(1, round(p d))',
      **_RUN, above=0, at_most=1, requires=_MASKED, in_comparisons=False,
  )
  mask_rounds: int = _option(
      1, 'Number of rounds that use one mask. With 1, as in the paper, each round has a new one.',
      group=_RUN['group'], at_least=1, at_most=_INT32_MAX, requires=_MASKED,
  )
  rounds: int = _task_option(
      'rounds', 'Number of rounds T. With 0, the initial weights are evaluated, at epsilon = 0',
      **_RUN, at_least=0, at_most=_INT32_MAX, in_comparisons=False,
  )
  clients_per_round: int = _task_option(
      'clients_per_round',
      'Number r of clients per round. With --sampling=poisson it is the mean, and with allocation it'
      ' is near the mean',
      **_TRAINING, common=True, at_least=1,
  )
  seed: Optional[int] = _option(
      None,
      'Seed of all randomness, FOR SIMULATION ONLY: anyone who knows the seed can remove the noise'
      ' (default: fresh randomness).',
      **_RUN, at_least=0, at_most=2**63 - 1, in_comparisons=False,
  )
  epsilon: Optional[float] = _task_option(
      'epsilon', 'Epsilon of all rounds together. The run uses the smallest noise that suffices',
      **_PRIVACY, common=True, above=0, excludes=('noise_multiplier',), in_comparisons=False,
  )
  noise_multiplier: Optional[float] = _task_option(
      'noise_multiplier',
      'sigma, in place of --epsilon: the standard deviation of the noise in the sum, divided by C',
      **_PRIVACY, at_least=0, excludes=('epsilon',), in_comparisons=False,
  )
  clip: Optional[float] = _task_option(
      'clip',
      "Bound C on the L2 norm of a client's masked update, to which it is clipped",
      **_PRIVACY, common=True, above=0,
  )
  sampling: str = _option(
      None,
      'Sampling of clients. poisson: each client independently with probability r/n; epsilon is for'
      ' adding or removing one client. fixed_size: exactly r clients, as in Algorithm 1; epsilon is'
      ' for replacing one client, and needs at least twice the noise. allocation: each client in one'
      ' secret round of each block of n/r rounds; epsilon is for adding or removing one client, and'
      ' needs less noise than poisson if --rounds is a few blocks (default: poisson; without'
      ' privacy, fixed_size).',
      group=_PRIVACY['group'], values=list(sampling_lib.KINDS),
      default_fn=lambda v: sampling_lib.POISSON if _PRIVATE.met(v) else sampling_lib.FIXED,
  )
  noise: str = _option(
      mechanism_lib.Gaussian.name,
      'Distribution of the noise. gaussian: continuous, rounded to 32-bit integers.'
      ' discrete_gaussian: integers modulo 2^16 or more; its guarantee does not assume real'
      ' arithmetic.',
      **_PRIVACY, values=list(mechanism_lib.NOISES),
  )
  epsilon_budget: Optional[float] = _option(
      None,
      'Upper limit on the total epsilon of this run and of the runs that it overwrote in'
      ' --output_dir. A round that would exceed it does not begin, and the run ends with status 1.'
      ' You may change it when you resume (default: no limit).',
      **_PRIVACY, above=0, in_comparisons=False,
  )
  delta: Optional[float] = _option(
      None, 'The delta of (epsilon, delta) (default: n^-1.1).', **_PRIVACY, above=0, below=1
  )
  clip_quantile: Optional[float] = _option(
      None,
      'Quantile in (0, 1) for adaptive clipping: C starts at --clip and follows this quantile of'
      ' the update norms. Epsilon includes the cost (default: off).',
      **_PRIVACY, above=0, below=1,
  )
  learning_rate: float = _task_option(
      'learning_rate', 'Learning rate of the clients in the first round', **_TRAINING, above=0
  )
  momentum: float = _task_option(
      'momentum', 'Momentum of the clients, reset in each round', **_TRAINING, at_least=0, below=1
  )
  batch_size: int = _task_option(
      'batch_size', 'Number of examples in a minibatch of a client',
      **_TRAINING, at_least=1, at_most=_INT32_MAX,
  )
  local_epochs: int = _task_option(
      'local_epochs', 'Epochs per client and round', **_TRAINING, at_least=1, at_most=_INT32_MAX
  )
  max_client_examples: Optional[int] = _task_option(
      'max_client_examples',
      'Limit of a client\'s examples in a round, drawn anew each time; 0, the default of most: all',
      **_TRAINING, off=0, at_least=0, at_most=_INT32_MAX,
  )
  server_optimizer: str = _option(
      SGD,
      'Size of the server step. sgd: --server_learning_rate. fedexp: computed from each release.',
      **_TRAINING, requires=_PRIVATE, values=[SGD, FEDEXP],
  )
  server_learning_rate: Optional[float] = _task_option(
      'server_learning_rate', 'Learning rate of the server, by which the mean update is multiplied',
      **_TRAINING, common=True, requires=options.when('server_optimizer', SGD), above=0,
  )
  server_learning_rate_schedule: str = _task_option(
      'server_learning_rate_schedule',
      'Schedule of the server learning rate. linear_decay: to zero over all rounds, so that the'
      ' last weights have less noise',
      **_TRAINING, values=[CONSTANT, LINEAR],
  )
  initializer: str = _option(
      'keras', "Library whose default initial weights are used. The paper's code has torch.",
      group=_RUN['group'], values=list(initializers.INITIALIZERS),
  )
  warm_start: str = _task_option(
      'warm_start',
      f'Initial weights. {NONE}: random. {PUBLIC}: pre-trained on the public examples',
      group=_PUBLIC_DATA, values=[NONE, PUBLIC],
  )
  public_examples: Optional[int] = _task_option(
      'public_examples', 'Number of public examples, whose owners are not clients',
      group=_PUBLIC_DATA, at_least=1, requires=_WITH_PUBLIC,
  )
  rounds_per_evaluation: int = _option(
      None, f'Number of rounds per evaluation (default: for {_EVALUATIONS} evaluations).',
      group=_EVALUATION, at_least=1, in_comparisons=False,
      default_fn=lambda values: -(-(values['rounds'] or 1) // _EVALUATIONS),
  )
  eval_examples: int = _option(
      2000,
      'Number of random test examples per evaluation, the same in each. The first and the last'
      ' evaluation use all examples too. With 0 every evaluation uses all, and the summary has the'
      ' best of them.',
      group=_EVALUATION, at_least=0, in_comparisons=False,
  )
  validation_examples: Optional[int] = _option(
      None,
      'Number of validation examples, which are evaluated in place of the test set, for tuning.'
      ' Their owners are not clients and have no other examples (default: off).',
      group=_EVALUATION, at_least=1,
  )
  task_options: Any = None
  method_options: Any = None

  @property
  def method(self) -> method_lib.Method:
    """The method."""
    return methods.METHODS[self.algorithm]


_TABLES = (RunSettings, runtime_flags_lib.RuntimeSettings)
# Flags that may change when a run resumes.
MAY_CHANGE = frozenset([
    'epsilon_budget', *(name for table in _TABLES[1:] for name in options.options_of(table))
])


def _plugin_tables(chosen: Collection[str] = ()) -> list[tuple[str, str, type]]:
  """Returns the options of tasks and methods: condition, prefix of the flags, dataclass.

  Modules that are not `chosen` are left out: two may have options of one name.
  """
  names: dict[tuple[str, str, type], list[str]] = {}
  for flag, registry in _REGISTRIES.items():
    for name, plugin in registry.items():
      if plugin.options is not None and name in (*datasets.NAMES, *methods.NAMES, *chosen):
        prefix = task_prefix(plugin) if flag == 'task' else ''
        names.setdefault((flag, prefix, plugin.options), []).append(plugin.name)
  return [(options.when(key[0], *named).text, *key[1:]) for key, named in names.items()]


def new_flags(*tables: type, chosen: Collection[str] = ()) -> flags.FlagValues:
  """Returns the flags of a run and of further dataclasses of options.

  Args:
    *tables: The dataclasses.
    chosen: Modules that --task and --algorithm name; the options of others are left out.
  """
  flag_values = options.new_flags(*_TABLES, *tables)
  for condition, prefix, table in _plugin_tables(chosen):
    try:
      options.define(flag_values, table, prefix, f'Only for {condition}')
    except flags.DuplicateFlagError as error:
      raise errors.InputError(
          f'{table.__module__}.{table.__name__} (only for {condition}) has an option whose flag'
          f' exists: {str(error).splitlines()[0].rstrip(".")}. Rename the option.'
      ) from None
  return flag_values


def parse(
    arguments: Sequence[str], *tables: type, program: str = 'python -m tasks.run'
) -> tuple[RunSettings, runtime_flags_lib.RuntimeSettings, *tuple[Any, ...]]:
  """Parses the flags of a run; the result depends on the arguments alone.

  Args:
    arguments: Flags of tasks.run.
    *tables: Dataclasses of further options, whose instances are returned last.
    program: The command that prints help.

  Raises:
    InputError: If a flag is unknown, missing, out of range or without effect.
  """
  chosen = plugins.load_chosen(arguments, options.new_flags(RunSettings), _FINDERS)
  parsed = new_flags(*tables, chosen=chosen)
  command.refuse(command.read(parsed, arguments, program), program)
  if parsed['task'].value is None:
    names = ', '.join(datasets.NAMES)
    raise errors.InputError(f'--task is not set. Set it to one of {names}, or to a module.')
  task = datasets.TASKS[parsed['task'].value]
  algorithm = parsed['algorithm'].value or task.defaults.algorithm
  method = methods.METHODS[algorithm]
  for name, value in method.fixed.items():
    if parsed[name].present and parsed[name].value != value:
      raise errors.InputError(
          f'{options.flag_of(name, parsed[name].value)} has no effect, because'
          f' --algorithm={algorithm} means {options.flag_of(name, value)}. Remove'
          ' one of the two flags.'
      )
    parsed.set_default(name, value)
  settings, own = options.make(RunSettings, parsed), {}
  for condition, prefix, table in _plugin_tables((settings.task, settings.algorithm)):
    if (prefix, table) == (task_prefix(task), task.options):
      own['task_options'] = options.make(table, parsed, prefix)
    elif (prefix, table) == ('', method.options):
      own['method_options'] = options.make(table, parsed)
    else:
      for name in (prefix + name for name in options.options_of(table)):
        if parsed[name].present:
          raise options.no_effect(name, condition)
  if settings.trainable == HEAD and settings.warm_start == NONE:
    raise errors.InputError(
        f'--trainable={HEAD} requires pre-trained layers. Set --warm_start={PUBLIC}, or'
        f' --trainable={ALL}.'
    )
  others = (options.make(table, parsed) for table in (*_TABLES[1:], *tables))
  return dataclasses.replace(settings, **own), *others


def identity(settings: RunSettings) -> dict[str, Any]:
  """Returns the flags that define a run, as JSON has them.

  `epsilon_budget` is left out: a run that has spent it may resume with a larger one.
  """
  values = dataclasses.asdict(settings)
  del values['epsilon_budget']
  prefix = task_prefix(datasets.TASKS[settings.task])
  task_values = values.pop('task_options') or {}
  values |= {prefix + name: value for name, value in task_values.items()}
  values |= values.pop('method_options') or {}
  return json.loads(json.dumps(values))
