"""Which GPUs' speeds were compared with runs that others published, and how far off they were.

``python validation/compared_gpus.py`` writes what the package ships: of every GPU the runs of the
blind askings whose tokens/s were told, and the median of what was told at first beside what was
published. What was mended afterwards does not count.
"""

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from brimful.errors import InputError
from brimful.hardware.compared import FILE
from brimful.hardware.names import find_gpu, split_counts

BLIND = Path(__file__).parent / "blind"
SPEED = "tokens_per_s"
SHIPPED = Path(__file__).parents[1] / "src" / "brimful" / "data" / FILE


def compared() -> dict[str, dict[str, Any]]:
    """Return of each GPU how many runs were compared, and the median of their errors' sizes."""
    errors: dict[str, list[float]] = defaultdict(list)
    for path in sorted(BLIND.glob("*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            row = json.loads(line)
            error = (row["asked"].get(SPEED) or {}).get("error")
            name = _gpu(row)
            if error is not None and name:
                errors[name].append(abs(error))
    return {
        name: {"runs": len(each), "error": round(statistics.median(each), 3)}
        for name, each in sorted(errors.items())
    }


def _gpu(row: dict[str, Any]) -> str:
    flags = row.get("flags") or []
    typed = flags[flags.index("--gpus") + 1] if "--gpus" in flags else ""
    named = row.get("run", {}).get("gpu", typed)
    try:
        return find_gpu(split_counts(named).gpu) if named else ""
    except InputError:
        return ""


if __name__ == "__main__":
    SHIPPED.write_text(json.dumps(compared(), indent=1) + "\n", "utf-8")
