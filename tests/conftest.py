"""Settings that must stand before torch and the libraries of models are imported."""

import gc
import os
import signal
import tempfile
from collections import defaultdict

import pytest
from hypothesis.internal.conjecture import providers

import processes
from brimful.process import child as child_process
from few_cases import chosen, named

gc.disable()
"""Until all is collected: what is imported stays, and would be looked at again and again."""

os.environ["OMP_NUM_THREADS"] = "1"
"""Tests use tiny tensors: threads would wait for each other, most of all beside other tests."""
_CACHE = tempfile.TemporaryDirectory(prefix="brimful-tests-")
os.environ["BRIMFUL_CACHE"] = _CACHE.name
"""What tests trace is theirs: nothing is taken from the user's cache, and nothing is left there."""
os.environ["HF_HUB_OFFLINE"] = "1"
"""Tests ask no network; where there is none, the hub's client would try again and again."""

signal.signal(signal.SIGINT, signal.default_int_handler)
"""What a shell starts in the background ignores Ctrl-C, and so would all that tests start."""

providers._get_local_constants = lambda: providers._local_constants
"""Hypothesis draws no constants of modules that are loaded, which hang on what other tests load."""

child_process.START_METHOD = "forkserver"
processes.server()
"""Workers of a run too are forks; what the server loads is said before any of them starts."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark as long what ``few`` leaves out, before marks are looked at."""
    are_all = not any("::" in arg for arg in config.args)
    functions = defaultdict(list)
    for item in items:
        if item.get_closest_marker("few"):
            functions[item.path, item.originalname].append(item)
    for cases in functions.values():
        mark = cases[0].get_closest_marker("few")
        if only := mark.kwargs.get("only"):
            kept = set(named([case.callspec.id for case in cases], only, are_all=are_all))
        else:
            kept = set(chosen([case.callspec.params for case in cases], *mark.args, **mark.kwargs))
        for place, case in enumerate(cases):
            if place not in kept:
                case.add_marker(pytest.mark.long)


def pytest_collection_finish():
    """Look no more at what was imported: libraries and tests stay until the end."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 20, 100)  # else looks at all that is kept take a twentieth of the time
