"""The script that runs programs for real: their peaks, by the profiler's allocation events.

No tape is near it. Of an allocation it is also known within which operation it began and whether it
ended there: what a kernel takes for itself is no tensor of the program.
"""

import gc
import importlib
import json
import sys
import warnings
from typing import NamedTuple

import torch
from torch._C._profiler import _EventType

TABLES = (
    "tests.pretend.programs", "tests.pretend.training_programs",
    "tests.pretend.transformer_programs",
)  # fmt: skip
KERNELS = {
    "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution_backward",
    "aten::native_batch_norm_backward", "aten::_adaptive_avg_pool2d_backward",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
}  # fmt: skip
"""Operations of one kernel, which allocates more than its results."""


class Event(NamedTuple):
    """An allocation, or with negative bytes a free; ``until_ns``: the end of its kernel, or 0."""

    time_ns: int
    address: int
    num_bytes: int
    until_ns: int


def programs():
    """Return every program of the tables by name."""
    found = {}
    for table in TABLES:
        found |= importlib.import_module(table).PROGRAMS
    return found


def events(roots):
    """Walk the profiler's event tree."""
    found, stack = [], [(root, 0) for root in roots]
    while stack:
        event, until = stack.pop()
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            found.append(Event(event.start_time_ns, fields.ptr, fields.alloc_size, until))
        elif not until and event.name in KERNELS:
            until = event.end_time_ns
        stack.extend((child, until) for child in event.children)
    return sorted(found)


def peaks(found):
    """Return the peak, and the peak without what kernels gave back before they ended."""
    begun, stays = {}, []
    for event in found:
        if event.num_bytes > 0:
            begun[event.address] = event
        elif event.address in begun:
            start = begun.pop(event.address)
            is_scratch = event.time_ns <= start.until_ns
            stays += [(start.time_ns, start.num_bytes, is_scratch)]
            stays += [(event.time_ns, event.num_bytes, is_scratch)]
    stays += [(start.time_ns, start.num_bytes, False) for start in begun.values()]
    stays.sort(key=lambda row: row[0])
    return [highest(stays), highest([row for row in stays if not row[2]])]


def highest(rows):
    live = most = 0
    for _, num_bytes, _ in rows:
        live += num_bytes
        most = max(most, live)
    return most


def measured(program):
    """Run a program for real; return its peaks in bytes."""
    gc.freeze()
    gc.disable()  # a cycle is then freed by neither run, and not by chance in one
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        program("cpu")
    gc.enable()
    return peaks(events(profiler.profiler.kineto_results.experimental_event_tree()))


def main(path, *names):
    """Write both peaks of the programs that are named."""
    warnings.simplefilter("ignore")
    known = programs()
    found = {name: measured(known[name]) for name in names}
    with open(path, "w") as file:  # noqa: PTH123 - a script of its own
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
