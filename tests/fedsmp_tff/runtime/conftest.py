"""Each place where rounds run."""

import pytest

from fedsmp_tff import runtime

_CONTEXTS = {
    'local': runtime.local_context,
    'local, 1 worker': lambda: runtime.local_context(workers=1),
    'local, 2 devices': lambda: runtime.local_context(['CPU:0', 'cpu:1'], 2),
    'ray': lambda: runtime.ray_context(workers=2),
}


@pytest.fixture(scope='module', params=[
    pytest.param(name, marks=[pytest.mark.slow] * (name == 'ray')) for name in _CONTEXTS
])
def each_context(request):
  """Runs the module's tests in each place, one place after the other."""
  with _CONTEXTS[request.param]():
    yield request.param
