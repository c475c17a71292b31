"""The flags that say where rounds run, and the TFF context that they mean."""

from collections.abc import Iterator
import contextlib
import dataclasses
import os
from typing import Optional

from absl import flags

from fedsmp_tff import runtime
from tasks import errors

_RUNTIME = flags.DEFINE_enum(
    'runtime',
    'local',
    ['local', 'ray', 'tff'],
    'Where clients run. local: in this process, threads over clients, on processors'
    " or GPUs; ray: on a Ray cluster; tff: in TFF's own worker process, on"
    ' processors.',
)
_DEVICES = flags.DEFINE_list(
    'devices', None,
    'For --runtime=local: TensorFlow devices, such as GPU:0,GPU:1 (default: all GPUs,'
    ' or the processor where there is none).',
)
_WORKERS = flags.DEFINE_integer(
    'workers', None,
    'Clients that run at the same time (default: one a GPU, or else one a processor).',
)
_RAY_ADDRESS = flags.DEFINE_string(
    'ray_address', None,
    "For --runtime=ray: the cluster's address, or auto for the one on this machine"
    ' (default: a cluster on this machine, for this run).',
)
_CLIENT_TIMEOUT = flags.DEFINE_float(
    'client_timeout', None,
    'For --runtime=ray: seconds that one client may take before its worker is ended'
    ' and it runs again elsewhere (default: 600).',
)
_BF16 = flags.DEFINE_boolean(
    'bf16', False,
    'Lets oneDNN round the inputs of matrix products and convolutions on processors to'
    ' bfloat16 (TF_SET_ONEDNN_FPMATH_MODE): other results, and perhaps faster ones,'
    ' where TensorFlow has kernels for it.',
)
NAMES = tuple(
    holder.name
    for holder in (
        _RUNTIME, _DEVICES, _WORKERS, _RAY_ADDRESS, _CLIENT_TIMEOUT, _BF16
    )
)
# Which flags a runtime has a use for, beside --runtime and --bf16.
_OF_USE = {
    'local': ('devices', 'workers'),
    'ray': ('workers', 'ray_address', 'client_timeout'),
    'tff': ('workers',),
}


@dataclasses.dataclass(frozen=True)
class RuntimeSettings:
  """Where a run's rounds run: the flags' values."""

  runtime: str
  devices: Optional[list[str]]
  workers: Optional[int]
  ray_address: Optional[str]
  client_timeout: float
  bf16: bool


def from_flags() -> RuntimeSettings:
  """The settings that the parsed flags make.

  Raises:
    InputError: If one is out of range, or of no use with --runtime.
  """
  for name in NAMES:
    if (
        name not in ('runtime', 'bf16', *_OF_USE[_RUNTIME.value])
        and flags.FLAGS[name].present
    ):
      raise errors.InputError(
          f'--{name} is of no use with --runtime={_RUNTIME.value}; leave it out, or'
          ' choose another runtime.'
      )
  if _WORKERS.value is not None and _WORKERS.value < 1:
    raise errors.InputError(
        f'--workers={_WORKERS.value} is not an integer at least 1; change it.'
    )
  timeout = 600.0 if _CLIENT_TIMEOUT.value is None else _CLIENT_TIMEOUT.value
  if not 0 < timeout < float('inf'):
    raise errors.InputError(
        f'--client_timeout={timeout} is not a number of seconds greater than 0 and'
        ' finite; change it.'
    )
  return RuntimeSettings(
      _RUNTIME.value,
      _DEVICES.value,
      _WORKERS.value,
      _RAY_ADDRESS.value,
      timeout,
      _BF16.value,
  )


def prepare(settings: RuntimeSettings, seeded: bool) -> None:
  """Sets what TensorFlow reads from its environment, before it runs anything.

  It reads each of them once: in a process that has run something without a seed, a seeded
  run gets another graph (of the cross entropy), so other last bits, than by its command.

  Args:
    settings: Where rounds run; workers on other machines get the same environment.
    seeded: Whether two runs must be equal, on GPUs too.
  """
  if settings.bf16:
    os.environ['TF_SET_ONEDNN_FPMATH_MODE'] = 'BF16'
  if seeded:
    os.environ['TF_DETERMINISTIC_OPS'] = '1'


@contextlib.contextmanager
def context(settings: RuntimeSettings) -> Iterator[None]:
  """Runs the computations of a `with` block where the settings say.

  Raises:
    InputError: If that place can't be had.
  """
  if settings.runtime == 'ray':
    made = runtime.ray_context(
        settings.ray_address,
        settings.workers,
        client_timeout=settings.client_timeout,
    )
  elif settings.runtime == 'tff':
    made = runtime.tff_context(settings.workers)
  else:
    made = runtime.local_context(settings.devices, settings.workers)
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(made)
    except ValueError as error:  # Of the flags, only these are not checked yet.
      raise errors.InputError(
          f'--devices={",".join(settings.devices or [])}: {error}'
      ) from None
    except (ConnectionError, ImportError) as error:
      raise errors.InputError(
          f'--ray_address={settings.ray_address or ""}: {error}; start the cluster'
          " with 'ray start --head', or leave the flag out."
      ) from None
    yield
