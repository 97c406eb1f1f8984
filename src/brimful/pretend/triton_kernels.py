"""Triton on the pretend GPU: kernels are launched and nothing runs.

With the ``triton`` wheel installed its own decorators, heuristics and autotuners run; what is
replaced is the launch itself and the driver, which answers as the pretended card does. An autotuner
tries its configurations as on a real card: it holds the buffer that flushes the card's cache, and
makes the copies that it restores from. As nothing takes any time, the first configuration wins, and
what Triton keeps of trials on disk is neither read nor written.

Source: triton 3.9.0, ``runtime/jit.py``, ``runtime/autotuner.py``, ``testing.py`` and
``backends/nvidia/driver.py``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from brimful.pretend import device
from brimful.pretend.known_values import KnownValues
from brimful.pretend.other_kernels import OtherKernels
from brimful.pretend.when_imported import Changes

_REGISTERS = 65536
"""32-bit registers of a multiprocessor, of every card since capability 3.0 (CUDA's guide)."""
_FLUSHED_BYTES = 256 * 2**20
"""What ``do_bench`` clears before each call (``get_empty_cache_for_benchmark``)."""


def changes(kernels: OtherKernels, known: KnownValues) -> Mapping[str, Changes]:
    """Return what is replaced in Triton, by module."""

    def launches(jit: Any) -> Iterator[tuple[Any, str, Any]]:
        if not hasattr(jit.JITFunction, STANDS_IN):  # whose launches are noted already
            yield jit.JITFunction, "run", _run(kernels, known)

    return {
        "triton.runtime.jit": launches,
        "triton.runtime.autotuner": _no_results_on_disk,
        "triton.testing": _benchmarks,
        "triton.runtime.driver": _no_driver_yet,
        "triton.backends.nvidia.driver": _card_drivers,
    }


STANDS_IN = "stands_in_for_triton"
"""An attribute of what is no class of Triton's."""


def _run(kernels: OtherKernels, known: KnownValues) -> Any:
    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:  # noqa: ARG001
        """Launch a kernel; to compile it beforehand (``warmup``) is nothing at all."""
        if warmup:
            return
        for hook in kernel.pre_run_hooks:
            hook(*args, **kwargs)
        named = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
        kernels.launch(kernel.__name__, named, known)

    return run


def flushing() -> torch.Tensor:
    """Return the buffer that an autotuner clears before it measures."""
    return torch.empty(_FLUSHED_BYTES // 4, dtype=torch.int, device="cuda")


def benchmark(call: Any, *, quantiles: Any = None, **_how: Any) -> Any:
    """Call a kernel as a benchmark does, the cache's buffer beside it; it takes no time."""
    call()
    flushed = flushing()
    call()
    del flushed
    return 0.0 if quantiles is None else [0.0] * len(quantiles)


def _benchmarks(testing: Any) -> Iterator[tuple[Any, str, Any]]:
    yield testing, "do_bench", benchmark


def _no_results_on_disk(autotuner: Any) -> Iterator[tuple[Any, str, Any]]:
    if hasattr(autotuner.Autotuner, "check_disk_cache"):  # older ones keep nothing on disk
        yield autotuner.Autotuner, "check_disk_cache", _tried_anew


def _tried_anew(_tuner: Any, _key: Any, _configs: Any, benchmark_all: Any) -> bool:
    """Try the configurations; say that their results do not come from disk."""
    benchmark_all()
    return False


def _no_driver_yet(runtime: Any) -> Iterator[tuple[Any, str, Any]]:
    for name in ("_default", "_active"):
        yield runtime.driver, name, None


def _card_drivers(nvidia: Any) -> Iterator[tuple[Any, str, Any]]:
    yield nvidia.CudaDriver, "__init__", lambda driver: _init(driver, nvidia.GPUDriver)


def _init(driver: Any, above: Any) -> None:
    """Make a driver that asks ``torch.cuda``; the real one compiles C that asks CUDA."""
    driver.utils = CardUtils()
    above.__init__(driver)


class CardUtils:
    """What CUDA's own driver says of a device."""

    @staticmethod
    def get_device_properties(_device: int) -> dict[str, int]:
        """Return what is known of the card, under Triton's names; clock rates are not."""
        found = device.card()
        known = {
            "max_shared_mem": found.shared_bytes_per_block,
            "multiprocessor_count": found.multi_processor_count,
        }
        return {
            "max_num_regs": _REGISTERS,
            "warpSize": 32,
            **{name: value for name, value in known.items() if value},
        }
