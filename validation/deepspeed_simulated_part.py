"""DeepSpeed on the pretend GPU, unmodified, against the same script for real on gloo.

Peaks of the first process, host and device together. Gloo's threads let go of what they have sent
some time after, which only adds: real runs pause behind each collective, and of some tries the
lowest counts. Of stage 3, which sends most, some are higher all the same; with a group that moves
nothing, everything else real, these are equal to a few bytes.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import msgspec
from deepspeed_cases import NUM_TRIES, SimulatedCase, every_case
from deepspeed_rows import DeepSpeedPeak
from deepspeed_site import deepspeed_site, run_processes, version_at
from evidence import Summary, relative, spread_of
from progress import shown

_SCRIPT = Path(__file__).parent / "deepspeed_step.py"
BAR, LAG, NUM_WITHIN = 0.01, 0.05, 24
_QUICK = 3


def run(*, seed: int, quick: bool) -> tuple[list[DeepSpeedPeak], Summary]:
    """Run every case on the pretend GPU and for real; nothing is drawn."""
    del seed
    cases = every_case()[:: _QUICK**2] if quick else every_case()
    groups = defaultdict[int, list[SimulatedCase]](list)
    for case in cases:
        groups[case.num_processes].append(case)
    rows = list[DeepSpeedPeak]()
    with deepspeed_site() as site, tempfile.TemporaryDirectory() as folder:
        version = version_at(site)
        for size, mine in shown("groups of processes", list(groups.items())):
            said, seen = (_peaks(how, mine, site, Path(folder), size) for how in _HOW)
            rows += [_row(case, said[case.name], seen[case.name], version) for case in mine]
    return rows, summarize(rows)


_HOW = ("pretended", "for-real")


def _peaks(
    how: str, cases: list[SimulatedCase], site: str, folder: Path, size: int
) -> dict[str, int]:
    asked, told = folder / "cases.json", folder / f"{how}.json"
    asked.write_bytes(msgspec.json.encode(cases))
    command = [str(_SCRIPT), how, str(asked), str(told)]
    if how == "for-real":
        run_processes(command, site, num_processes=size)
    else:
        paths = [site, os.environ.get("PYTHONPATH", "")]
        path = os.pathsep.join(filter(None, paths))
        subprocess.run(  # noqa: S603 - our own file
            [sys.executable, *command], check=True, env={**os.environ, "PYTHONPATH": path}
        )
    found: dict[str, int] = json.loads(told.read_text("utf-8"))
    return found


def _row(case: SimulatedCase, said: int, seen: int, version: str) -> DeepSpeedPeak:
    return DeepSpeedPeak(
        case=case,
        deepspeed_version=version,
        simulated_peak_allocated_bytes=said,
        measured_peak_allocated_bytes=seen,
        peak_error=relative(said, seen),
    )


def summarize(rows: list[DeepSpeedPeak]) -> Summary:
    """Sum up, and say which cases miss a bar."""
    within = sum(abs(row.peak_error) <= BAR for row in rows)
    few = [f"{within} of {len(rows)} within {BAR:.0%}"] if within < NUM_WITHIN else []
    far = [f"{r.peak_error:+.2%}: {r.case.name}" for r in rows if not -LAG <= r.peak_error <= BAR]
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(spread_of("peak", [row.peak_error for row in rows]),),
        bars=(
            f"{NUM_WITHIN} peaks within {BAR:.0%} of a real run on gloo, the lowest of {NUM_TRIES}",
            f"none more than {BAR:.0%} above one, or {LAG:.0%} below: gloo holds what it has sent",
        ),
        missed=(*few, *far),
        findings=(
            f"by DeepSpeed {', '.join(sorted({row.deepspeed_version for row in rows}))}",
            f"{within} of {len(rows)} within {BAR:.0%}",
        ),
    )
