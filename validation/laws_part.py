"""Laws of the first two rungs, drawn more often than the suite draws them."""

from evidence import Summary
from laws import Law, broken, more_memory
from laws_of_costs import ALL_LAWS, SIMULATED
from laws_rows import LawRow
from progress import shown

NUM_DRAWN, NUM_SEARCHED, NUM_SIMULATED = 400, 40, 8
NUM_QUICK = 3
LEAST_SHARE = 0.5
"""Of the draws: with fewer that have an answer the law was hardly looked at."""


def run(*, seed: int, quick: bool) -> tuple[list[LawRow], Summary]:
    """Draw cases of every law."""
    rows = [look_at(law, seed=seed, quick=quick) for law in shown("laws", list(ALL_LAWS))]
    return rows, summarize(rows)


def look_at(law: Law, *, seed: int, quick: bool) -> LawRow:
    """Draw cases of one law."""
    is_simulated = law.check in SIMULATED
    num = NUM_SIMULATED if is_simulated else NUM_SEARCHED if law.check is more_memory else NUM_DRAWN
    num = NUM_QUICK if quick else num
    held, found = broken(law, num=num, seed=seed)
    return LawRow(
        law=law.name,
        rung=2 if is_simulated else 1,
        quantity=law.quantity,
        padding=law.padding,
        num_drawn=num,
        num_looked_at=held,
        broken=tuple(found),
    )


def summarize(rows: list[LawRow]) -> Summary:
    """Say which laws do not hold, and which were hardly looked at."""
    missed = [f"{row.law}: {fault}" for row in rows for fault in row.broken]
    missed += [
        f"{row.law}: {row.num_looked_at} of {row.num_drawn} draws have an answer"
        for row in rows
        if row.num_looked_at < LEAST_SHARE * row.num_drawn
    ]
    drawn, looked_at = sum(r.num_drawn for r in rows), sum(r.num_looked_at for r in rows)
    return Summary(
        num_drawn=drawn,
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(),
        bars=("every law holds in every draw that has an answer",),
        missed=tuple(missed),
        findings=(f"{len(rows)} laws, {looked_at:,} cases",),
    )
