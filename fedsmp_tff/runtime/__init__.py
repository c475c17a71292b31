"""Contexts that run a round: on TFF's own worker, in this process, or on a Ray cluster."""

from fedsmp_tff.runtime.local import local_context as local_context
from fedsmp_tff.runtime.local import set_local_context as set_local_context
from fedsmp_tff.runtime.map_reduce import NoMapReduceFormError as NoMapReduceFormError
from fedsmp_tff.runtime.ray_cluster import WorkersLostError as WorkersLostError
from fedsmp_tff.runtime.ray_cluster import ray_context as ray_context
from fedsmp_tff.runtime.tff_worker import set_tff_context as set_tff_context
from fedsmp_tff.runtime.tff_worker import tff_context as tff_context
