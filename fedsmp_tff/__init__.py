"""Fed-SMP on TensorFlow Federated: private sums over k selected coordinates.

Algorithm 1 of Hu, Guo, Gong, "Federated Learning with Sparsified Model
Perturbation" (d weights, k selected coordinates, r clients per round):

  1. the server chooses ONE mask of k coordinates for the round: at random (RandK), or the top k of
     an update on public data (TopK);
  2. it broadcasts the weights and the mask to r clients;
  3. each client trains tau steps and takes old minus new weights;
  4. selects the k coordinates, scaled by d/k with RandK;
  5. clips them to L2 norm C;
  6. adds N(0, C^2 sigma^2 / r) to each of them;
  7. encodes them as integers, and one secure sum adds the integers of all clients;
  8. the server decodes, divides by r, and subtracts the mean from the weights;
  9. epsilon follows from sigma, the sampling of clients and the number of rounds;
  10. epsilon does not depend on k (integer noise: almost not); the release of fewer coordinates has
      less total noise.

Masks from past releases (`ReleasedTopK`, or your own `Sparsifier`) cost no epsilon.

Start at `build_fed_smp` for a learning process, or at `FedSmpFactory` for an aggregator in another
process (with `no_client_metrics`: TFF's default releases exact client metrics).

The public API is `__all__`: the names below, and the modules of the packages `privacy`, `program`,
`runtime` and `theory`. Every other module is internal and may change.

This package imports TensorFlow and TFF when a name that needs them is first used. `PrivacySpec`,
`privacy` and the theorems of `theory` work on any platform.
"""

import importlib
from typing import Any

from fedsmp_tff import _platform

__version__ = '0.2.0'

_NAMES = {
    'aggregator': ('FedSmpFactory', 'no_client_metrics'),
    'cohorts': ('cohort',),
    'learning_process': ('build_fed_smp', 'tag_client'),
    'local_training': ('LocalTraining', 'examples_of'),
    'mechanism.adaptive_clipping': ('AdaptiveClipping',),
    'mechanism.channel': ('Channel', 'GaussianChannel', 'LatticeChannel'),
    'mechanism.integer_noise': ('DiscreteGaussian',),
    'mechanism.mechanism': ('Gaussian', 'Mechanism'),
    'privacy.spec': ('PrivacySpec',),
    'released': ('ReleasedTopK',),
    'sparsifiers': (
        'Dense', 'PublicContext', 'PublicTraining', 'RandK', 'SizedSparsifier', 'Sparsifier',
        'TopK',
    ),
    'state': ('FedSmpState', 'Release'),
}
_PACKAGES = ('privacy', 'program', 'runtime', 'theory')
_WITHOUT_TFF = (
    'mechanism.adaptive_clipping', 'mechanism.integer_noise', 'mechanism.mechanism', 'privacy',
    'privacy.spec', 'theory',
)

_MODULES = {name: module for module, names in _NAMES.items() for name in names}
_MODULES |= {package: package for package in _PACKAGES}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
  """Imports a public name when it is first used (PEP 562)."""
  module = _MODULES.get(name)
  if module is None:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  if module not in _WITHOUT_TFF and _platform.problem():
    raise ImportError(_platform.problem())
  value = importlib.import_module(f'{__name__}.{module}')
  if name not in _PACKAGES:
    value = getattr(value, name)
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})
