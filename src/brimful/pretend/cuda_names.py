"""``torch.cuda`` as the pretend GPU answers it: the names that training programs call.

Everything is asked of the ``gpu`` device's own module. What stands in neither is PyTorch's own and
says that there is no CUDA.
"""

import warnings
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from brimful.pretend import device, streams

_FORWARDED = (
    "device_count", "current_device", "set_device", "current_stream", "default_stream",
    "set_stream", "stream", "synchronize", "get_device_capability", "get_device_name",
    "get_device_properties", "init", "manual_seed", "manual_seed_all", "seed", "initial_seed",
    "get_rng_state", "set_rng_state", "memory_stats", "memory_allocated", "max_memory_allocated",
    "mem_get_info", "reset_peak_memory_stats", "empty_cache", "is_bf16_supported",
)  # fmt: skip
"""Answered by ``torch.gpu`` under the same name."""
_HOMES = ("memory", "random")
"""Modules of ``torch.cuda`` that hold some of these names as well."""
_MIB = 2**20
CUDA_VERSION = "13.0"
"""That of PyTorch's default wheels since 2.11, where the one that is installed has none."""


def names() -> dict[str, Any]:
    """Return what stands in ``torch.cuda`` while the pretend GPU is called ``cuda``."""
    backend = torch.gpu
    answers = {name: getattr(backend, name) for name in _FORWARDED}
    return {
        **answers,
        **_being_there(),
        **_memory(backend),
        "Stream": streams.Stream,
        "Event": streams.Event,
        "device": streams.UseDevice,
        "device_of": _device_of,
        "seed_all": backend.seed,
        "get_rng_state_all": lambda: [backend.get_rng_state()],
        "set_rng_state_all": _nothing,
        "get_arch_list": lambda: ["sm_{}{}".format(*device.card().capability)],
        "is_tf32_supported": lambda: device.card().capability >= (8, 0),
        "can_device_access_peer": lambda *_: True,
        "cudart": lambda: _Runtime,
        "_cudart": _Runtime,
    }


def _being_there() -> dict[str, Any]:
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "_is_in_bad_fork": lambda: False,
        "_is_compiled": lambda: True,
        "_lazy_init": _nothing,
        "_lazy_call": lambda call, **_: call(),
    }


def _memory(backend: Any) -> dict[str, Any]:
    """Name what is asked of memory; reserved is not known while a program runs."""
    return {
        # At least what is allocated; the replay of the allocator says how much more.
        "memory_reserved": backend.memory_reserved,
        "max_memory_reserved": backend.max_memory_reserved,
        "memory_cached": backend.memory_reserved,
        "max_memory_cached": backend.max_memory_reserved,
        "memory_summary": lambda *_, **__: f"{backend.memory_allocated() / _MIB:.1f} MiB allocated",
        "memory_snapshot": lambda *_, **__: [],
        "reset_max_memory_allocated": backend.reset_peak_memory_stats,
        "reset_max_memory_cached": backend.reset_peak_memory_stats,
        "reset_accumulated_memory_stats": _nothing,
        "ipc_collect": _nothing,
        "get_allocator_backend": lambda: "native",
        "set_per_process_memory_fraction": _ignored("set_per_process_memory_fraction"),
        "_record_memory_history": _nothing,
        "_dump_snapshot": _ignored("_dump_snapshot", "; use brimful pretend --snapshot FILE"),
    }


def _nothing(*_args: object, **_kwargs: object) -> None:
    """Do what a GPU would do that leaves no trace in memory."""


def _ignored(name: str, instead: str = "") -> Callable[..., None]:
    def ignore(*_args: object, **_kwargs: object) -> None:
        warnings.warn(f"the pretend GPU ignores torch.cuda.{name}{instead}", stacklevel=2)

    return ignore


def _device_of(tensor: torch.Tensor) -> streams.UseDevice:
    return streams.UseDevice(tensor.device if tensor.is_cuda else None)


class _Ranges:
    """Stands for the NVTX library: ranges that nobody records."""

    rangePushA = rangePop = rangeStartA = rangeEnd = markA = staticmethod(lambda *_: 0)  # noqa: N815


class _Runtime:
    """Stands for the runtime's bindings (``torch/csrc/cuda/shared/cudart.cpp``): all succeeds."""

    cudaError = SimpleNamespace(success=0)  # noqa: N815
    cudaGetErrorString = staticmethod(lambda _code: "no error")  # noqa: N815
    cudaProfilerStart = cudaProfilerStop = staticmethod(lambda: 0)  # noqa: N815
    cudaHostRegister = cudaHostUnregister = staticmethod(lambda *_: 0)  # noqa: N815
    cudaStreamCreate = cudaStreamDestroy = staticmethod(lambda *_: 0)  # noqa: N815
    cudaMemGetInfo = staticmethod(lambda where=None: torch.gpu.mem_get_info(where))  # noqa: N815


def replacements() -> Iterator[tuple[ModuleType, str, Any]]:
    """Yield module, name and value of everything that is replaced in ``torch.cuda``."""
    answers = names()
    for name, value in answers.items():
        yield torch.cuda, name, value
        for home in _HOMES:
            module = getattr(torch.cuda, home)
            if hasattr(module, name):
                yield module, name, value
    # Libraries choose kernels and recipes by it; a build without CUDA says None.
    yield torch.version, "cuda", torch.version.cuda or CUDA_VERSION
    # Libraries of kernels take it while they are imported; none of their kernels is ever called.
    yield torch._C, "_cuda_getCurrentRawStream", lambda _device: 0  # noqa: SLF001
    yield torch.cuda.nvtx, "_nvtx", _Ranges
    yield torch.cuda.profiler, "start", _nothing
    yield torch.cuda.profiler, "stop", _nothing
