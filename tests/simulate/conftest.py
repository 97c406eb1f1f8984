"""The long files of this folder: a fixed sixth of their cases, or all with BRIMFUL_ALL_CASES=1."""

import os
import zlib
from pathlib import Path

LONG = frozenset({
    "test_adapters.py", "test_attention_kernels.py", "test_optimizers.py", "test_search.py",
    "test_tasks.py",
})  # fmt: skip
KEPT_ONE_IN = 6


def pytest_collection_modifyitems(config, items):
    """Leave out what is neither asked for nor in the sample; names decide, so workers agree."""
    if os.environ.get("BRIMFUL_ALL_CASES"):
        return
    here = Path(__file__).parent
    left_out = [i for i in items if i.path.parent == here and i.path.name in LONG and not _kept(i)]
    items[:] = [item for item in items if item not in set(left_out)]
    config.hook.pytest_deselected(items=left_out)


def _kept(item):
    return zlib.crc32(item.name.encode()) % KEPT_ONE_IN == 0
