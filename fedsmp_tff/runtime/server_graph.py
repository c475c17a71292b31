"""The server's graph of a computation, whose shared calls run on the workers."""

from collections.abc import Sequence
import functools
from typing import NamedTuple, Optional

import numpy as np
import tensorflow as tf

from fedsmp_tff.runtime import graphs
from fedsmp_tff.runtime import shared_calls
from fedsmp_tff.runtime import workers as workers_lib


class Started(NamedTuple):
  """A call of a server's graph up to its shared calls.

  Attributes:
    job: The shared calls.
    carried: The tensors that the rest of the graph takes from what ran before.
    results: The results of the shared calls so far, in their order.
  """

  job: workers_lib.Job
  carried: list[tf.Tensor]
  results: list[np.ndarray]


class ServerGraph:
  """A graph that runs here, but for its shared calls, which the workers run."""

  def __init__(self, graph: graphs.Graph):
    """Initializes.

    Args:
      graph: The graph; `shared_calls.function` marks its shared calls.
    """
    self._split = split = shared_calls.split(graph)
    if split is None:
      self._whole = graph.function()
      return
    self._before, self._after = split.before.function(), split.after.function()
    self._work = _work_of(split.call)

  def start(self, inputs: Sequence[tf.Tensor]) -> Optional[Started]:
    """Runs all that precedes the shared calls.

    Args:
      inputs: The first of the graph's inputs.

    Returns:
      The call as far as it is; None if there are no shared calls, or they need more inputs.
    """
    split = self._split
    if split is None or any(i >= len(inputs) for i in split.known):
      return None
    tensors = self._before(*(inputs[i] for i in split.known))
    common, rest = tensors[: split.num_common], tensors[split.num_common :]
    num = split.num_own
    units = [rest[i * num : (i + 1) * num] for i in range(split.num_calls)]
    return Started(
        workers_lib.Job(self._work, common, units), rest[split.num_calls * num :], []
    )

  def finish(
      self,
      workers: workers_lib.Workers,
      inputs: Sequence[tf.Tensor],
      started: Optional[Started] = None,
  ) -> list[tf.Tensor]:
    """Runs the graph to its end.

    Args:
      workers: Where shared calls run that have not.
      inputs: All of the graph's inputs.
      started: What `start` returned, with the results of all shared calls; None to start here.

    Returns:
      The graph's outputs.
    """
    if self._split is None:
      return self._whole(*inputs)
    if started is None:
      started = self.start(inputs)
      started.results.extend(result.values[0] for result in workers.run([started.job]))
    return self._after(*inputs, *started.carried, *started.results)


# A process calls one function where it begins and in each round: workers make it ready once, which
# takes 3.5 s for the paper's RNN.
@functools.lru_cache(maxsize=8)
def _work_of(call: graphs.Graph) -> workers_lib.Work:
  return workers_lib.Work(call, kind='public training')
