"""The systems that `--algorithm` names, in the order of colors and legends."""

from tasks.cli import plugins
from tasks.systems import dense
from tasks.systems import randk
from tasks.systems import released
from tasks.systems import topk

SYSTEMS = plugins.Registry(
    'algorithm', 'SYSTEM',
    (
        topk.SYSTEM, randk.SYSTEM, dense.SYSTEM, dense.WITHOUT_PRIVACY, topk.WITHOUT_PRIVACY,
        randk.WITHOUT_PRIVACY, released.SYSTEM, dense.PUBLIC_ONLY,
    ),
)
