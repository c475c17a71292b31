"""The systems that `--algorithm` names, in the order of colors and legends."""

import fedsmp_tff
from tasks.cli import plugins
from tasks.systems import randk
from tasks.systems import system
from tasks.systems import topk

_TOPK = dict(
    mask='largest updates on the public set, the same for all clients',
    sparsifier=topk.sparsifier, needs_public=True, options=topk.Options,
)
_RANDK = dict(
    mask='random coordinates, the same for all clients',
    sparsifier=randk.sparsifier, options=randk.Options,
)
_DENSE = dict(mask='all coordinates', sparsifier=lambda *_: fedsmp_tff.Dense(), masked=False)

_BUILT_IN = (
    system.System('fedsmp_topk', 'Fed-SMP top-k', **_TOPK),
    system.System('fedsmp_randk', 'Fed-SMP rand-k', **_RANDK),
    system.System('dp_fedavg', 'DP-FedAvg', **_DENSE),
    system.System('fedavg', 'FedAvg', private=False, **_DENSE),
    system.System('fedavg_topk', 'FedAvg top-k', private=False, **_TOPK),
    system.System('fedavg_randk', 'FedAvg rand-k', private=False, **_RANDK),
    system.System(
        'fedsmp_released', 'Fed-SMP past releases',
        'largest past releases and random coordinates, the same for all clients',
        lambda s, _: fedsmp_tff.ReleasedTopK(s.p, mask_rounds=s.mask_rounds),
    ),
    system.System(
        'public_only', 'public-only baseline', private=False, needs_public=True,
        fixed={'rounds': 0, 'warm_start': 'public', 'trainable': 'all'}, **_DENSE,
    ),
)
# By name; `find` adds those of modules.
SYSTEMS = {built_in.name: built_in for built_in in _BUILT_IN}
NAMES = tuple(SYSTEMS)


def find(name: str) -> system.System:
  """Returns the system of a name, or of a module; see `plugins.find`."""
  return plugins.find('algorithm', name, SYSTEMS, 'SYSTEM', system.System)
