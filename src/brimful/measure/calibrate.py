"""Measures the rates of this machine that a step's time is predicted from.

The rates are fair averages over what a training step does, not the best that the machine can
do: see ``kernels.py``. The model they serve is
``step_s = matrix_flops / rate + moved_bytes / bandwidth + num_ops * overhead``.
"""

import datetime as dt
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from brimful.hardware.calibration import (
    CALIBRATION_SCHEMA,
    QUIET_LOAD,
    Calibration,
    calibrated,
    load_calibration,
    save_calibration,
)
from brimful.hardware.cluster import Device, MatrixRates
from brimful.process.versions import versions

if TYPE_CHECKING:
    from brimful.measure.kernels import Block, Kernel

__all__ = ["calibrate", "load_calibration"]

_BUDGET_S = 5.0
_MAX_ROUNDS = 7
_MIN_ROUNDS = 3
_BF16_CAPABILITY = 8.0
"""CUDA GPUs before Ampere emulate bf16; there the rate stays 0, unknown."""


def calibrate(
    device: Device,
    *,
    on_progress: Callable[[str, float], None],
    blocks: "tuple[Block, ...]" = (),
) -> Device:
    """Measure the rates of this machine and store them for ``probe_local``.

    Every kernel runs once per round, so that a disturbance spreads over all of them. A kernel's
    time is the lower quartile over the rounds, and the shortest where other programs were busy:
    they only ever slow it, on a CPU by up to ten times, because threads then wait for each other.
    How much CPU others used is kept.

    ``device``: what ``probe_local`` returned; its kernels decide where to run. ``on_progress``:
    called with what was done and the finished fraction, 0 to 1. ``blocks``: sizes of the steps that
    are stood for; empty: those that keep the device busy. Returns the device with measured rates
    and ``calibrated`` set. Raises RunError: the result cannot be stored.
    """
    import torch

    from brimful.measure.kernels import kernels

    bf16 = device.kernels == "cpu" or device.capability >= _BF16_CAPABILITY
    started_s = time.perf_counter()
    to_time = kernels(torch.device(device.kernels), bf16=bf16, blocks=blocks)
    on_progress("kernels built", 0.05)
    others = _OthersLoad()
    # Time each kernel once per round until the budget or the rounds are used up.
    _round(to_time, device.kernels)  # first touch of the memory, and of the kernels' own caches
    times_s: list[list[float]] = []
    while len(times_s) < _MAX_ROUNDS:
        spent_s = time.perf_counter() - started_s
        if len(times_s) >= _MIN_ROUNDS and spent_s > _BUDGET_S * len(times_s) / (len(times_s) + 1):
            break
        times_s.append(_round(to_time, device.kernels))
        on_progress(f"round {len(times_s)}", 0.1 + 0.85 * len(times_s) / _MAX_ROUNDS)
    conditions = _Conditions(device.description, torch.get_num_threads(), others.fraction())
    calibration = _summed_up(conditions, to_time, times_s)
    save_calibration(calibration)
    on_progress("stored", 1.0)
    return calibrated(device, calibration)


def _round(to_time: list["Kernel"], where: str) -> list[float]:
    return [_seconds(kernel.run, where) for kernel in to_time]


def _seconds(run: Callable[[], object], where: str) -> float:
    import torch

    wait = torch.cuda.synchronize if where == "cuda" else (lambda: None)
    wait()
    start_s = time.perf_counter()
    result = run()
    wait()
    elapsed_s = time.perf_counter() - start_s
    del result
    return elapsed_s


class _Conditions(NamedTuple):
    machine: str
    num_threads: int
    others_load: float


class _OthersLoad:
    """Watches how much of this machine's CPU other programs use from now on."""

    def __init__(self) -> None:
        self._start_s = self._cpu_s()

    def fraction(self) -> float:
        """Return their share of the whole CPU since the start, 0 to 1."""
        total_s, busy_s, own_s = (
            now - then for now, then in zip(self._cpu_s(), self._start_s, strict=True)
        )
        return min(1.0, max(0.0, busy_s - own_s) / total_s) if total_s > 0 else 0.0

    @staticmethod
    def _cpu_s() -> tuple[float, float, float]:
        import psutil

        times, own = psutil.cpu_times(), psutil.Process().cpu_times()
        total_s = float(sum(times))
        idle_s = float(times.idle + getattr(times, "iowait", 0.0))
        return total_s, total_s - idle_s, float(own.user + own.system)


def _summed_up(
    conditions: _Conditions, to_time: list["Kernel"], rounds_s: list[list[float]]
) -> Calibration:
    amounts: dict[str, float] = defaultdict(float)
    typical_s: dict[str, float] = defaultdict(float)
    per_round_s: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(rounds_s))
    for kernel, times_s in zip(to_time, zip(*rounds_s, strict=True), strict=True):
        amounts[kernel.rate] += kernel.share * kernel.amount
        typical_s[kernel.rate] += kernel.share * _undisturbed_s(times_s, conditions.others_load)
        for index, time_s in enumerate(times_s):
            per_round_s[kernel.rate][index] += kernel.share * time_s
    rates = {rate: amounts[rate] / typical_s[rate] for rate in amounts}
    return Calibration(
        schema=CALIBRATION_SCHEMA,
        versions=versions(),
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        machine=conditions.machine,
        num_threads=conditions.num_threads,
        matrix_flops_per_s=MatrixRates(fp32=rates["fp32"], bf16=rates.get("bf16", 0.0)),
        memory_bytes_per_s=rates["memory"],
        copy_bytes_per_s=rates["copy"],
        op_overhead_s=1 / rates["launch"],
        spread=max(map(_spread, per_round_s.values())),
        others_load=conditions.others_load,
    )


def _undisturbed_s(times_s: tuple[float, ...], others_load: float) -> float:
    if others_load > QUIET_LOAD:
        return min(times_s)
    return statistics.quantiles(times_s, n=4, method="inclusive")[0]


def _spread(times_s: list[float]) -> float:
    """Half the interquartile range over the median."""
    low, middle, high = statistics.quantiles(times_s, n=4, method="inclusive")
    return (high - low) / 2 / middle
