"""Where a round runs. Today: TFF's own local worker process, owned by ours."""

from fedsmp_tff.runtime.tff_worker import set_tff_context as set_tff_context
from fedsmp_tff.runtime.tff_worker import tff_context as tff_context
