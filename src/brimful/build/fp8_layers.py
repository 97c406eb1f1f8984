"""Which linear layers of a model the fp8 recipe converts."""

from torch import nn

from brimful.build.adapters import is_adapter, output_layers, paths_of
from brimful.build.precision import fp8
from brimful.build.precision.kept import find_kept
from brimful.values.job import FP8, Job


def use_fp8(model: nn.Module, job: Job, *, emulate: bool) -> nn.Module:
    """Convert what the recipe says, in place: linear layers but the head, adapters, what is kept.

    ``model``: on any device, before it is sharded. ``job``: one of another recipe leaves the model
    as it is. ``emulate``: whether there are no units for fp8. Raises UnsupportedError: torchao is
    not installed, or the model has no such layer.
    """
    if job.precision != FP8:
        return model
    left = {*paths_of(model, output_layers(model)), *find_kept(model, job.keep_fp32)}

    def keeps(path: str) -> bool:
        is_left = any(path == whole or path.startswith(f"{whole}.") for whole in left)
        return is_left or is_adapter(path)

    # Rows of many lengths make any number of tokens.
    return fp8.convert(model, keeps=keeps, emulate=emulate, pads=job.packing == "none")
