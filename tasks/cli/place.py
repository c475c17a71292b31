"""Defines the options on where rounds run, and sets the TFF context that they ask for."""

from collections.abc import Iterator
import contextlib
import dataclasses
import os
from typing import Optional

from tasks import errors
from tasks.cli import options

_GROUP = 'Where it runs'


@dataclasses.dataclass(frozen=True)
class PlaceSettings:
  """Sets where the data are, and where the rounds of a run run."""

  data_dir: Optional[str] = options.option(
      None,
      'Directory of the data. fashion_mnist: the four IDX files *-ubyte.gz, as Debian\'s package'
      ' dataset-fashion-mnist installs them (the default); svhn: train_32x32.mat, extra_32x32.mat and'
      ' test_32x32.mat; emnist and TFF\'s Shakespeare: where TFF keeps its .sqlite files, and downloads'
      ' them if they are missing (default: ~/.tff).',
      group=_GROUP, compared=False,
  )
  runtime: str = options.option(
      'local',
      'Where clients run. local: in this process, threads over clients, on processors or GPUs;'
      ' ray: on a Ray cluster.',
      group=_GROUP, values=['local', 'ray'],
  )
  devices: Optional[list[str]] = options.option(
      None,
      'TensorFlow devices, such as GPU:0,GPU:1 (default: all GPUs, or the processor where there'
      ' is none).',
      group=_GROUP, only=options.when('runtime', 'local'),
  )
  workers: Optional[int] = options.option(
      None, 'Clients that run at the same time (default: one a GPU, or else one a processor).',
      group=_GROUP, at_least=1, compared=False,
  )
  ray_address: Optional[str] = options.option(
      None,
      "The cluster's address, or auto for the one on this machine (default: a cluster on this"
      ' machine, for this run).',
      group=_GROUP, only=options.when('runtime', 'ray'), compared=False,
  )
  client_timeout: float = options.option(
      600.0,
      'Seconds that one client may take before its worker is ended and it runs again elsewhere.',
      group=_GROUP, above=0, only=options.when('runtime', 'ray'), compared=False,
  )


def prepare(seeded: bool) -> None:
  """Sets what TensorFlow reads from its environment, before it runs anything.

  It reads each of them once: in a process that has run something without a seed, a seeded
  run gets another graph (of the cross entropy), so other last bits, than by its command.

  Args:
    seeded: Whether two runs must be equal, on GPUs too.
  """
  if seeded:
    os.environ['TF_DETERMINISTIC_OPS'] = '1'


@contextlib.contextmanager
def context(settings: PlaceSettings) -> Iterator[None]:
  """Runs the computations of a `with` block in the place that the settings name.

  Raises:
    InputError: If that place does not exist.
  """
  from fedsmp_tff import runtime  # pylint: disable=g-import-not-at-top

  if settings.runtime == 'ray':
    made = runtime.ray_context(
        settings.ray_address,
        settings.workers,
        client_timeout=settings.client_timeout,
    )
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
          " with 'ray start --head', or drop the flag."
      ) from None
    yield
