"""The type of the stream of hidden states, and the type in which queries meet keys.

``transformers`` makes masks in the type of what the embedding returns, and so do we: a mask in
another type is cast anew by every block that is sharded with ``cast_forward_inputs``.
"""

from typing import Any

import torch

from brimful.build.blocks import embedding_of
from brimful.build.parallel.stages import held_dtype
from brimful.build.precision import COMPUTE_DTYPE
from brimful.build.precision.kept import returned_by
from brimful.values.job import Job
from brimful.values.strategy import Strategy, gathers


def stream_dtype(model: Any, job: Job, strategy: Strategy) -> torch.dtype:
    """Return the type of hidden states between blocks.

    That is the type in which the embedding is held, or is gathered where it is sharded, unless it
    is kept in fp32 and hands on another.

    ``strategy``: whether parameters are gathered before they compute.
    """
    embedding = embedding_of(model)
    held = held_dtype(embedding)
    gathered = COMPUTE_DTYPE.get(job.precision, held) if gathers(strategy) else held
    return returned_by(embedding) or gathered


def query_dtype(model: Any, job: Job, strategy: Strategy, device: torch.device) -> torch.dtype:
    """Return the type of queries, in which a mask is added without a copy of it.

    ``model``: as for ``stream_dtype``. ``device``: whose autocast decides where it is on.
    """
    if torch.is_autocast_enabled(device.type):
        lowered: torch.dtype = torch.get_autocast_dtype(device.type)
        return lowered
    return stream_dtype(model, job, strategy)
