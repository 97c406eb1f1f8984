"""How many GPUs a file of settings says itself: processes that its launcher starts, or degrees."""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

LAUNCHED = "launched"
"""The section by which a command line's file says what its launcher starts."""
_DEGREES = {
    "parallelism": (
        "dp", "tp", "pp", "context_parallel_size", "data_parallel_replicate_degree",
        "data_parallel_shard_degree", "tensor_parallel_degree", "pipeline_parallel_degree",
        "context_parallel_degree",
    ),
    "": (
        "tensor_parallel_dim", "context_parallel_dim", "data_parallel_replicate_dim",
        "data_parallel_shard_dim",
    ),
}  # fmt: skip
"""Degrees of nanotron and torchtitan, and of torchtune, by their section."""
_SHARDED = {"dp", "data_parallel_shard_degree", "data_parallel_shard_dim"}
"""Of which one says that the product is of all GPUs."""
_SINGLE = "_single_device"


class GpuCount(NamedTuple):
    """How many GPUs a file says, and by what."""

    num: int
    words: str


def gpus_of(content: Mapping[str, Any]) -> GpuCount | None:
    """Return how many GPUs a file says; None: it says nothing of them."""
    launched = content.get(LAUNCHED)
    if isinstance(launched, Mapping):
        return GpuCount(int(launched["processes"]), str(launched["by"]))
    tune = content.get("tune")
    if isinstance(tune, Mapping):
        if str(tune.get("run", "")).endswith(_SINGLE):
            return GpuCount(1, f"tune run {tune['run']}")
        if tune.get("processes"):
            return GpuCount(int(tune["processes"]), "tune run")
    devices, nodes = content.get("devices"), content.get("num_nodes", 1)
    if type(devices) is int and type(nodes) is int and devices > 0 and nodes > 0:
        return GpuCount(devices * nodes, "devices" + " x num_nodes" * (nodes > 1))
    num = content.get("num_processes")
    if type(num) is int and num > 0:
        return GpuCount(num, "num_processes")
    return next(filter(None, (_product(content, name) for name in _DEGREES)), None)


def _product(content: Mapping[str, Any], section: str) -> GpuCount | None:
    said = content.get(section, {}) if section else content
    if not isinstance(said, Mapping):
        return None
    degrees = {name: said[name] for name in _DEGREES[section] if type(said.get(name)) is int}
    if not _SHARDED & {*degrees} or min(degrees.values(), default=0) < 1:
        return None
    words = " x ".join(f"{name} {num}" for name, num in degrees.items() if num > 1)
    return GpuCount(prod(degrees.values()), words or "its degrees of 1")
