import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def gpu_rows():
    """The schema's module, under a name that no other folder's ``rows`` can take."""
    spec = importlib.util.spec_from_file_location("gpu_rows", ROOT / "benchmarks/gpu/rows.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_rows"] = module
    spec.loader.exec_module(module)
    return module
