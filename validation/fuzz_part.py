"""Command lines and files drawn at random: none ends in a traceback, no number is absurd."""

import re
import resource
from collections import Counter
from collections.abc import Callable

from evidence import Refusal, Summary
from fuzz_checks import Came, ask
from fuzz_draws import KINDS as DRAWN
from fuzz_draws import Asked
from fuzz_files import KINDS as FILES
from fuzz_rows import FuzzFault, FuzzReason, FuzzRow
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from progress import shown

NUM_EXAMPLES = {
    "strategies": 2700, "flags": 2300, "config.json": 1900, "plan files": 1000, "job files": 1000,
    "price files": 500, "DeepSpeed files": 150, "searches": 50, "exported plans": 200,
    "run folders": 100, "published runs": 600, "calibrations": 200,
}  # fmt: skip
"""How many of each kind; 10,700 in all. A search takes longer than a formula."""
KINDS = {**DRAWN, **FILES}
QUICK_SHARE = 100
MOST_FAULTS, MOST_REASONS, MOST_CHARACTERS = 20, 12, 400
MOST_S, MOST_BYTES = 5.0, 300 * 2**20


def run(*, seed: int, quick: bool) -> tuple[list[FuzzRow], Summary]:
    """Draw and run every kind."""
    sizes = {
        kind: max(2, num // QUICK_SHARE) if quick else num for kind, num in NUM_EXAMPLES.items()
    }
    rows = [row_of(kind, num, seed) for kind, num in shown("kinds", list(sizes.items()))]
    return rows, summarize(rows)


def row_of(kind: str, num_examples: int, seed: int) -> FuzzRow:
    """Draw one kind and count what its examples come to."""
    came: list[Came] = []
    faults: list[FuzzFault] = []
    before = _highest_bytes()

    def take(asked: Asked) -> None:
        found = ask(asked)
        came.append(found)
        faults.extend(_fault(asked, fault) for fault in found.faults)

    draw_all(take, KINDS[kind](), num_examples=num_examples, seed=seed)
    codes = Counter(each.code for each in came)
    reasons = Counter(opening(each.said) for each in came if each.code == 2)  # noqa: PLR2004
    return FuzzRow(
        kind=kind,
        num_examples=len(came),
        num_fit=codes[0],
        num_unfit=codes[1],
        num_refused=codes[2],
        slowest_s=max(each.seconds for each in came),
        grown_bytes=_highest_bytes() - before,
        reasons=tuple(
            FuzzReason(says=s, num_examples=n) for s, n in reasons.most_common(MOST_REASONS)
        ),
        faults=tuple(faults[:MOST_FAULTS]),
    )


def draw_all(
    take: Callable[[Asked], None], draws: st.SearchStrategy[Asked], *, num_examples: int, seed: int
) -> None:
    """Draw examples and hand each to ``take``, which keeps what is wrong and raises nothing."""
    limits = settings(
        max_examples=num_examples,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    seeded(seed)(limits(given(draws)(take)))()


def opening(said: str) -> str:
    """Return a refusal's first words without the names and numbers that differ."""
    plain = re.sub(r"'[^']*'|\"[^\"]*\"|\S*\d\S*", "_", said.removeprefix("brimful: ").strip())
    return " ".join(plain.split(";")[0].split()[:8])[:100]


def _fault(asked: Asked, fault: str) -> FuzzFault:
    files = tuple((name, repr(content[:MOST_CHARACTERS])) for name, content in asked.files)
    argv = tuple(ascii(word)[:MOST_CHARACTERS] for word in asked.argv)
    return FuzzFault(argv=argv, files=files, fault=ascii(fault)[:MOST_CHARACTERS])


def _highest_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def summarize(rows: list[FuzzRow]) -> Summary:
    """Say how many were answered, and which properties did not hold."""
    missed = [
        *(f"{row.kind}: {fault.fault}" for row in rows for fault in row.faults),
        *(f"{row.kind}: {row.slowest_s:.1f} s" for row in rows if row.slowest_s > MOST_S),
        *(
            f"{row.kind}: grew by {row.grown_bytes} bytes"
            for row in rows
            if row.grown_bytes > MOST_BYTES
        ),
    ]
    total, refused = (
        sum(getattr(row, of) for row in rows) for of in ("num_examples", "num_refused")
    )
    return Summary(
        num_drawn=total,
        refusals=tuple(Refusal(reason=row.kind, num_draws=row.num_refused) for row in rows),
        num_cases=len(rows),
        num_rich=0,
        spreads=(),
        bars=(
            "no traceback; exit code 0, 1 or 2; a refusal is one sentence",
            "no negative bytes, no MFU above 100 %, bands in order, items add up to the peak",
            "JSON without NaN or Infinity",
            f"each within {MOST_S:.0f} s of CPU",
            f"each kind within {MOST_BYTES // 2**20} MiB more memory",
        ),
        missed=tuple(missed),
        findings=(f"{total:,} command lines: {total - refused:,} answered, {refused:,} refused",),
    )
