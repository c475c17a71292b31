"""The public-only baseline: the pre-trained model, without clients."""

from tasks.systems import dense
from tasks.systems import system

SYSTEM = system.System(
    'public_only', 'public-only baseline', '', dense.SYSTEM.sparsifier,
    private=False, masked=False, needs_public=True, federated=False,
)
