"""Which GPUs' speeds were compared with runs that others published, and how far off they were.

``python validation/compared_gpus.py`` writes what the package ships: of every GPU the runs of the
blind askings whose tokens/s were told, and the median of what was told at first beside what was
published. What was mended afterwards does not count there. The ranges are of what is told now, by
``blind/told_now.json``, which ``--ask`` makes anew: between the tenth and the ninetieth percentile
of the seconds that were published in parts of those that are told, each project counting once; of a
GPU alone where twenty projects ran on it.
"""

import argparse
import contextlib
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blind_asked import ask

from brimful.errors import InputError
from brimful.hardware.compared import FILE
from brimful.hardware.names import find_gpu, split_counts

BLIND = Path(__file__).parent / "blind"
NOW = BLIND / "told_now.json"
SPEED, UNLIKE = "tokens_per_s", "speed_unlike"
SHIPPED = Path(__file__).parents[1] / "src" / "brimful" / "data" / FILE
TENTH = 0.1
FEWEST_PROJECTS = 20
OTHERS = ""
_SITES = re.compile(r"^(https?://)?(www\.)?(github\.com/)?")
Row = dict[str, Any]


def rows() -> Iterator[Row]:
    """Yield every row of every asking."""
    for path in sorted(BLIND.glob("*.jsonl")):
        yield from map(json.loads, path.read_text("utf-8").splitlines())


def compared() -> dict[str, Any]:
    """Return what is shipped: see ``brimful.hardware.compared.AllCompared``."""
    first, now = defaultdict[str, list[float]](list), _ratios_now()
    for row in rows():
        error = (row["asked"].get(SPEED) or {}).get("error")
        if error is not None and _gpu(row):
            first[_gpu(row)].append(abs(error))
    own = {name: each for name, each in now.items() if len(each) >= FEWEST_PROJECTS}
    others = defaultdict[str, list[float]](list)
    for name in now.keys() - own.keys():
        for project, each in now[name].items():
            others[project] += each
    return {
        "gpus": {
            name: {
                "runs": len(each),
                "error": round(statistics.median(each), 3),
                **({"range": _range(own[name])} if name in own else {}),
            }
            for name, each in sorted(first.items())
        },
        "others": _range(others),
    }


def _ratios_now() -> dict[str, dict[str, list[float]]]:
    """Return published seconds in parts of those told now: by GPU, by project."""
    said = json.loads(NOW.read_text("utf-8"))
    found = defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
    for row in rows():
        if row["id"] in said and _gpu(row) and UNLIKE not in row:
            found[_gpu(row)][project_of(row)].append(said[row["id"]] / row["figures"][SPEED])
    return found


def project_of(row: Row) -> str:
    """Return whose run a row is: owner and name of a repository, or the beginning of its source."""
    source = _SITES.sub("", row["source"])
    named = re.match(r"[\w.-]+/[\w.-]+", source)
    return (named[0] if named else source[:40]).lower()


def _range(by_project: dict[str, list[float]]) -> dict[str, Any]:
    """Return where eight of ten are, each project counting once."""
    each = sorted((one, 1 / len(many)) for many in by_project.values() for one in many)
    low, high = (_quantile(each, share * len(by_project)) for share in (TENTH, 1 - TENTH))
    return {"projects": len(by_project), "low": round(low, 2), "high": round(high, 2)}


def _quantile(weighed: list[tuple[float, float]], up_to: float) -> float:
    total = 0.0
    for value, weight in weighed:
        total += weight
        if total >= up_to:
            return value
    return weighed[-1][0]


def _gpu(row: Row) -> str:
    flags = row.get("flags") or []
    typed = flags[flags.index("--gpus") + 1] if "--gpus" in flags else ""
    named = row.get("run", {}).get("gpu", typed)
    try:
        return find_gpu(split_counts(named).gpu) if named else ""
    except InputError:
        return ""


def ask_anew() -> None:
    """Ask for every speed again, and keep what is told in a file of its own."""
    said = {}
    for row in (row for row in rows() if SPEED in row["figures"] and UNLIKE not in row):
        with contextlib.suppress(ValueError):
            said[row["id"]] = ask(row | row.get("anew", {})).get(SPEED)
    kept = {name: round(speed, 2) for name, speed in said.items() if speed}
    NOW.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ask", action="store_true", help="ask for the speeds anew, before")
    if parser.parse_args().ask:
        ask_anew()
    SHIPPED.write_text(json.dumps(compared(), indent=1) + "\n", "utf-8")
