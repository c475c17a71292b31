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
_prefix = '{0.name}_'.format  # Of a task's own flags.


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
  """Returns an option whose default depends on the task."""
  def default(task):
    return getattr(datasets.TASKS[task].defaults, field)

  stated = ', '.join(f'{t} {default(t)}' for t in datasets.NAMES if default(t) is not None)
  text += f' (default by task: {stated}).' if stated else '.'
  return _option(None, text, default_fn=lambda values: default(values['task']), **facts)


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
      f'<{" | ".join(datasets.NAMES)} | MODULE>: Data, model and defaults. MODULE: a'
      ' Python module with a TASK (docs/extending.md).',
      **_RUN,
  )
  algorithm: str = _option(
      'fedsmp_topk',
      f'<{" | ".join(methods.NAMES)} | MODULE>: Training method. fedsmp_*: k selected'
      ' coordinates, with clipping and noise. dp_fedavg: all coordinates, with clipping and noise.'
      ' fedavg*: no privacy. Not in the paper: fedsmp_released selects the top k of past releases,'
      ' without public data; public_only is the pre-trained model, with --rounds=0. MODULE: a'
      ' Python module with a METHOD (docs/extending.md).',
      **_RUN,
  )
  trainable: str = _task_option(
      'trainable',
      'Trained layers. all: every layer. head: the last layer; its inputs are whitened, the layers'
      ' before it are pre-trained on public examples and frozen, and d, k and p refer to it;'
      f' requires --warm_start={PUBLIC}',
      **_RUN, values=[ALL, HEAD],
  )
  p: Optional[float] = _task_option(
      'p', 'Compression ratio in (0, 1]: masks select k = max(1, round(p d)) of d coordinates',
      **_RUN, above=0, at_most=1, requires=_MASKED, in_comparisons=False,
  )
  mask_rounds: int = _option(
      1, 'Number of rounds per mask; 1, as in the paper, for a new mask in each round.',
      group=_RUN['group'], at_least=1, at_most=_INT32_MAX, requires=_MASKED,
  )
  rounds: int = _task_option(
      'rounds', 'Number of rounds, T; 0 evaluates the initial weights alone, at epsilon = 0',
      **_RUN, at_least=0, at_most=_INT32_MAX, in_comparisons=False,
  )
  clients_per_round: int = _task_option(
      'clients_per_round',
      'Number of clients per round, r; the mean if --sampling=poisson, about the mean if'
      ' --sampling=allocation',
      **_TRAINING, common=True, at_least=1,
  )
  seed: Optional[int] = _option(
      None,
      'Seed of partition, initial weights, sampling, masks, shuffling and, FOR SIMULATION ONLY,'
      ' noise: anyone who knows the seed can remove the noise (default: fresh randomness).',
      **_RUN, at_least=0, at_most=2**63 - 1, in_comparisons=False,
  )
  epsilon: Optional[float] = _task_option(
      'epsilon', 'Epsilon of all rounds together; sets the smallest sufficient sigma',
      **_PRIVACY, common=True, above=0, excludes=('noise_multiplier',), in_comparisons=False,
  )
  noise_multiplier: Optional[float] = _task_option(
      'noise_multiplier', 'sigma, in place of --epsilon: noise stddev of the sum over clients / C',
      **_PRIVACY, at_least=0, excludes=('epsilon',), in_comparisons=False,
  )
  clip: Optional[float] = _task_option(
      'clip',
      "Clipping norm C (L2) of a client's masked update (rand-k: after its scale d/k)",
      **_PRIVACY, common=True, above=0,
  )
  sampling: str = _option(
      None,
      'Sampling of clients. poisson: each client independently with probability r/n; adjacency: add'
      ' or remove one client. fixed_size: exactly r clients, as in Algorithm 1; adjacency: replace'
      ' one client, which requires at least twice the noise for the same epsilon. allocation: each'
      ' client in one secret round of each block of n/r rounds; adjacency: add or remove one'
      ' client; less noise than poisson for the same epsilon if --rounds is a few blocks (default: poisson;'
      ' without privacy, fixed_size).',
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
      'Upper limit on the epsilon spent by this run and by the runs that it overwrote in'
      ' --output_dir. A round that would exceed it does not begin, and the run ends with status 1.'
      ' A resumed run may change it (default: no limit).',
      **_PRIVACY, above=0, in_comparisons=False,
  )
  delta: Optional[float] = _option(
      None, 'delta in (0, 1) (default: n^-1.1).', **_PRIVACY, above=0, below=1
  )
  clip_quantile: Optional[float] = _option(
      None,
      'Target quantile in (0, 1) of adaptive clipping: C starts at --clip and follows this quantile'
      ' of the update norms, at a cost that epsilon includes (default: off).',
      **_PRIVACY, above=0, below=1,
  )
  learning_rate: float = _task_option(
      'learning_rate', 'Learning rate of the clients in round 0', **_TRAINING, above=0
  )
  momentum: float = _task_option(
      'momentum', 'Momentum of the clients, reset in each round', **_TRAINING, at_least=0, below=1
  )
  batch_size: int = _task_option(
      'batch_size', 'Examples per minibatch of a client',
      **_TRAINING, at_least=1, at_most=_INT32_MAX,
  )
  local_epochs: int = _task_option(
      'local_epochs', 'Epochs per client and round', **_TRAINING, at_least=1, at_most=_INT32_MAX
  )
  max_client_examples: Optional[int] = _task_option(
      'max_client_examples',
      'Maximum number of its examples that a client trains on in a round, drawn anew; unset: all',
      **_TRAINING, at_least=1, at_most=_INT32_MAX,
  )
  server_optimizer: str = _option(
      SGD,
      'Scale of the mean update. sgd: --server_learning_rate. fedexp: computed from each release.',
      **_TRAINING, requires=_PRIVATE, values=[SGD, FEDEXP],
  )
  server_learning_rate: Optional[float] = _task_option(
      'server_learning_rate', 'Server learning rate, for the mean update',
      **_TRAINING, requires=options.when('server_optimizer', SGD), above=0,
  )
  server_learning_rate_schedule: str = _task_option(
      'server_learning_rate_schedule',
      'Schedule of the server learning rate. linear_decay: to zero over --rounds, for less noise in'
      ' the last weights; epsilon is unchanged',
      **_TRAINING, values=[CONSTANT, LINEAR],
  )
  initializer: str = _option(
      'keras', "Library whose default initial weights are used; torch, as in the paper's code.",
      group=_RUN['group'], values=list(initializers.INITIALIZERS),
  )
  warm_start: str = _task_option(
      'warm_start',
      f'Initial weights. {NONE}: random. {PUBLIC}: pre-trained on the public examples',
      group=_PUBLIC_DATA, values=[NONE, PUBLIC],
  )
  public_examples: Optional[int] = _task_option(
      'public_examples', 'Number of public examples, from non-clients or a pool without owners',
      group=_PUBLIC_DATA, at_least=1, requires=_WITH_PUBLIC,
  )
  rounds_per_evaluation: int = _option(
      None, f'Number of rounds per evaluation (default: for {_EVALUATIONS} evaluations).',
      group=_EVALUATION, at_least=1, in_comparisons=False,
      default_fn=lambda values: -(-(values['rounds'] or 1) // _EVALUATIONS),
  )
  eval_examples: int = _option(
      2000,
      'Number of random test examples per evaluation, the same in each; the first and the last use'
      ' all as well. 0: all in each, and the summary has the best accuracy of these rounds.',
      group=_EVALUATION, at_least=0, in_comparisons=False,
  )
  validation_examples: Optional[int] = _option(
      None,
      'Size of a validation set to evaluate on instead of the test set, for tuning. Its owners are'
      ' disjoint from clients and all other sets (default: off).',
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
        prefix = _prefix(plugin) if flag == 'task' else ''
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
  task, method = (registry[parsed[flag].value] for flag, registry in _REGISTRIES.items())
  for name, value in method.fixed.items():
    if parsed[name].present and parsed[name].value != value:
      raise errors.InputError(
          f'{options.flag_of(name, parsed[name].value)} has no effect, because'
          f' --algorithm={parsed["algorithm"].value} means {options.flag_of(name, value)}. Remove'
          ' one of the two flags.'
      )
    parsed.set_default(name, value)
  settings, own = options.make(RunSettings, parsed), {}
  for condition, prefix, table in _plugin_tables((settings.task, settings.algorithm)):
    if (prefix, table) == (_prefix(task), task.options):
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
  prefix = _prefix(datasets.TASKS[settings.task])
  task_values = values.pop('task_options') or {}
  values |= {prefix + name: value for name, value in task_values.items()}
  values |= values.pop('method_options') or {}
  return json.loads(json.dumps(values))
