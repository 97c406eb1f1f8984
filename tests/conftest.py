"""Settings that must stand before torch and the libraries of models are imported."""

import os
import zlib
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
"""Tests use tiny tensors: threads would wait for each other, most of all beside other tests."""
os.environ["HF_HUB_OFFLINE"] = "1"
"""Tests ask no network; where there is none, the hub's client would try again and again."""

HERE = Path(__file__).parent
ALL_CASES = bool(os.environ.get("BRIMFUL_ALL_CASES"))
KEPT_ONE_IN = {
    "build/test_decoders.py": 3,
    "cost/test_adapted.py": 6,
    "cost/test_other_architectures.py": 4,
    "pretend/test_fsdp.py": 3,
    "pretend/test_programs.py": 4,
    "simulate/test_decoders.py": 8,
    "simulate/test_unrolled.py": 5,
    "simulate/test_adapters.py": 6,
    "simulate/test_attention_kernels.py": 6,
    "simulate/test_optimizers.py": 6,
    "simulate/test_tasks.py": 6,
}
"""Long files: of how many cases of a parameter one is run, unless all are asked for (``make
test-all``)."""


def pytest_collection_modifyitems(config, items):
    """Leave out of long files what is not in the sample; names decide, so that workers agree."""
    if ALL_CASES:
        return
    left_out = {item for item in items if not _kept(item)}
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=list(left_out))


def _kept(item):
    one_in = KEPT_ONE_IN.get(str(item.path.relative_to(HERE)), 1)
    return "[" not in item.name or zlib.crc32(item.name.encode()) % one_in == 0
