"""The methods that `--algorithm` names, in the order of help and tables."""

import fedsmp_tff
from tasks.cli import plugins
from tasks.methods import method
from tasks.methods import randk
from tasks.methods import topk

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
    method.Method('fedsmp_topk', 'Fed-SMP top-k', **_TOPK),
    method.Method('fedsmp_randk', 'Fed-SMP rand-k', **_RANDK),
    method.Method('dp_fedavg', 'DP-FedAvg', **_DENSE),
    method.Method('fedavg', 'FedAvg', private=False, **_DENSE),
    method.Method('fedavg_topk', 'FedAvg top-k', private=False, **_TOPK),
    method.Method('fedavg_randk', 'FedAvg rand-k', private=False, **_RANDK),
    method.Method(
        'fedsmp_released', 'Fed-SMP past releases',
        'largest past releases and random coordinates, the same for all clients',
        lambda s, _: fedsmp_tff.ReleasedTopK(s.p, mask_rounds=s.mask_rounds),
    ),
    method.Method(
        'public_only', 'public-only baseline', private=False, needs_public=True,
        fixed={'rounds': 0, 'warm_start': 'public', 'trainable': 'all'}, **_DENSE,
    ),
)
# By name; `find` adds those of modules.
METHODS = {built_in.name: built_in for built_in in _BUILT_IN}
NAMES = tuple(METHODS)


def find(name: str) -> method.Method:
  """Returns the method of a name, or of a module; see `plugins.find`."""
  return plugins.find('algorithm', name, METHODS, 'METHOD', method.Method)
