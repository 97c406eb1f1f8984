"""Settings that must stand before torch and the libraries of models are imported."""

import os
from pathlib import Path

from suite_sample import sample

os.environ["OMP_NUM_THREADS"] = "1"
"""Tests use tiny tensors: threads would wait for each other, most of all beside other tests."""
os.environ["HF_HUB_OFFLINE"] = "1"
"""Tests ask no network; where there is none, the hub's client would try again and again."""

HERE = Path(__file__).parent
ALL_CASES = bool(os.environ.get("BRIMFUL_ALL_CASES"))


def pytest_collection_modifyitems(config, items):
    """Leave out what is not in the sample, where whole files or more are run.

    What is named on the command line (``file.py::test``) is run.
    """
    if ALL_CASES or any("::" in str(argument) for argument in config.args):
        return
    kept = sample([_name(item) for item in items])
    left_out = [item for item in items if _name(item) not in kept]
    items[:] = [item for item in items if _name(item) in kept]
    config.hook.pytest_deselected(items=left_out)


def _name(item):
    function = item.nodeid.partition("::")[2]
    return f"{item.path.relative_to(HERE)}::{function}"
