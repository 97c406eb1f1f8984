"""Runs a script as it is, on this machine's CPU, and says the peak of its tensors.

``python validation/script_worker.py SCRIPT [ARGUMENT...]`` prints one JSON object as its last line.
It never imports the tape: what is measured here knows nothing of what was simulated.
"""

import runpy
import sys
from pathlib import Path

import msgspec
import numpy as np
import torch

from brimful.measure.allocations import classify, collect, lifetimes, live_bytes
from brimful.quiet import quiet_libraries


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the profiler's allocation events say of a script's run.

    Attributes:
        measured_peak_allocated_bytes: The most that was alive at once.
        measured_lasting_bytes: What was alive at the end of the first step's update and before it,
            i.e. at the lowest point between the first and the last tenth of the events.
    """

    measured_peak_allocated_bytes: int
    measured_lasting_bytes: int
