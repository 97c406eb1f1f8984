"""How much memory the run takes at this moment, for the person who watches it."""

import contextlib
import resource
import sys
from pathlib import Path

import psutil
import torch

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""Source: Linux, Documentation/filesystems/proc.rst: 5 resets the peak resident size."""


def used_bytes(device: torch.device) -> int:
    """Bytes in use: allocated on a GPU, resident in the process on a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return int(psutil.Process().memory_info().rss)


def peak_bytes(device: torch.device) -> int:
    """Return the largest value of ``used_bytes`` since ``reset_peak``.

    Where the operating system cannot forget a process's peak (not Linux) it is the largest since
    the process began.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak(device: torch.device) -> None:
    """Forget the peak so far: preparing the data is not training."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        _CLEAR_REFS.write_text(_RESET_PEAK)
