"""Published runs of torchtitan, each run again on the pretend GPU by its own code of that day.

Every run that is carried and names its command line and commit counts; one that ends otherwise than
with a figure says why. PyTorch is today's, not that of then. Nothing is drawn.
"""

import json
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec
from evidence import Evidence, Summary, spread_of
from program_rows import TitanRow
from progress import shown
from torchtitan_site import Site, packages, torchtitan_site

from brimful.published.rows import PublishedRun, published_runs
from brimful.units import GIB

MEDIAN_BAR, FAR_BAR, FAR_SHARE, TOLD_SHARE = 0.04, 0.1, 0.9, 0.65
EXPLAINED = {
    "tt_l2-7b_2d_ac": (
        "In March 2024 inputs and outputs of tensor parallelism's collectives were held by NCCL's "
        "record_stream after they were freed, as far as the host ran ahead of the device: 47.63 "
        "GiB were active where 22.6 were allocated. PyTorch of today holds none."
    ),
    "tt_l2-7b_2d_sac": (
        "The same tensors of tensor parallelism's collectives: 72.7 GiB were active where 53.4 "
        "were allocated."
    ),
}
"""Which bytes differ, by run, where that is known."""
_QUICK = "tt_l3-8b_ce_before"
_TIMEOUT_S = 1200
_REFUSED = 2
"""Exit code of a run that ended without a figure."""


def run(*, seed: int, quick: bool) -> tuple[list[TitanRow], Summary]:
    """Run every published run's command line."""
    del seed
    runs = [each for each in published_runs("torchtitan") if not quick or each.id == _QUICK]
    with torchtitan_site() as site:
        rows = [row_of(each, site) for each in shown("published runs of torchtitan", runs)]
    return rows, summarize(rows)


def complete(before: Evidence[TitanRow], *, seed: int) -> tuple[list[TitanRow], Summary]:
    """Keep what was simulated of the same command line, and run the rest."""
    del seed
    kept = {(row.id, row.command, row.commit): row for row in before.rows if not row.refused}
    runs = published_runs("torchtitan")
    with torchtitan_site() as site:
        rows = [
            msgspec.structs.replace(
                kept.get((each.id, each.command, commit_of(each))) or row_of(each, site),
                explanation=EXPLAINED.get(each.id, ""),
            )
            for each in shown("published runs of torchtitan", runs)
        ]
    return rows, summarize(rows)


def commit_of(run: PublishedRun) -> str:
    """Return the commit of torchtitan that ran; empty: it is not known."""
    words = run.versions.replace(",", " ").split()
    after = (word for name, word in pairwise(words) if name == "torchtitan")
    return next((word for word in after if len(word) >= len("e7c0cae")), "")


def row_of(run: PublishedRun, site: Site) -> TitanRow:
    """Run a command line on the pretend GPU, beside what was published."""
    peak, refused = _simulated(run, site)
    reserved = peak and peak["simulated_peak_reserved_bytes"] / GIB
    published = run.reserved_gib or 0.0
    return TitanRow(
        id=run.id,
        commit=commit_of(run),
        command=run.command,
        gpu=run.gpu,
        world_size=run.num_devices,
        refused=refused,
        published_reserved_gib=published,
        simulated_reserved_gib=reserved and round(reserved, 3),
        simulated_allocated_gib=peak and round(peak["simulated_peak_allocated_bytes"] / GIB, 3),
        reserved_error=reserved and reserved / published - 1,
        explanation=EXPLAINED.get(run.id, ""),
    )


def _simulated(run: PublishedRun, site: Site) -> tuple[dict[str, Any] | None, str]:
    """Return the process that reserves most; or None, and why."""
    commit = commit_of(run)
    if not run.command or not commit:
        return None, f"its {'commit' if run.command else 'command line'} is not published"
    words = ["--gpus", run.gpu, "--world-size", str(run.num_devices), "--from", run.command]
    done = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-m", "brimful", "simulate", "--json", *words],
        check=False,
        capture_output=True,
        text=True,
        cwd=site.checkout(commit),
        env=site.environment(commit),
        timeout=_TIMEOUT_S,
    )
    if done.returncode == _REFUSED or not done.stdout:
        return None, done.stderr.strip().splitlines()[-1].removeprefix("brimful: ")
    ranks = json.loads(done.stdout)["ranks"]
    return max(ranks, key=lambda rank: rank["simulated_peak_reserved_bytes"]), ""


def summarize(rows: list[TitanRow]) -> Summary:
    """Sum up; what is near is also counted over all rows, of which one without a figure is not."""
    errors = [row.reserved_error for row in rows if row.reserved_error is not None]
    spread = spread_of("reserved", errors)
    near = sum(abs(error) <= FAR_BAR for error in errors)
    missed = (
        [f"told: {len(errors)} of {len(rows)}"] * (len(errors) < TOLD_SHARE * len(rows))
        + [f"median {spread.median:.2%}"] * (spread.median > MEDIAN_BAR)
        + [f"within {FAR_BAR:.0%}: {near} of {len(errors)}"] * (near < FAR_SHARE * len(errors))
    )
    reasons = Counter(row.refused for row in rows if row.refused)
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(spread,),
        bars=(
            (
                f"{TOLD_SHARE:.0%} of all are told; their median within {MEDIAN_BAR:.0%}, "
                f"{FAR_SHARE:.0%} of them within {FAR_BAR:.0%}"
            ),
        ),
        missed=tuple(missed),
        findings=(
            f"by {', '.join(packages())}",
            (
                f"of all {len(rows)} within {FAR_BAR:.0%}: {near} ({near / len(rows):.0%}); "
                f"told {len(errors)}, of which within 1%: {sum(abs(e) <= 0.01 for e in errors)}"  # noqa: PLR2004
            ),
            *(f"not told, {num}: {why}" for why, num in reasons.most_common()),
        ),
    )
