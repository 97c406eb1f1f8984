"""Write ``docs/laws.md``: ``python docs/generate_laws.py``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

HERE = Path(__file__).parent
VALIDATION = HERE.parent / "validation"
sys.path[:0] = [str(HERE), str(VALIDATION)]

from evidence import read_evidence  # noqa: E402
from laws_of_costs import ALL_LAWS  # noqa: E402
from page_parts import folded  # noqa: E402

if TYPE_CHECKING:
    from laws_rows import LawRow

PAGE = HERE / "laws.md"
_HEAD = """# Laws

How answers must change when the job, the plan or the machine does (`validation/laws.py`,
`validation/laws_of_costs.py`). Cases are drawn at random, a few of each law in the test suite, more
by `python validation/prove.py --part laws`, whose figures these are. *Padding* is the term by which
a law may miss. *Cases* are those that have an answer; the others are refused.

| law | of | padding | cases | broken |
|---|---|---|---:|---:|
"""


def page() -> str:
    """Return the page, a line per law."""
    evidence = read_evidence("laws", VALIDATION)
    rows = {row.law: row for row in cast("tuple[LawRow, ...]", evidence.rows)}
    lines = [
        f"| {law.name} | {law.quantity} | {law.padding} | {rows[law.name].num_looked_at} | "
        f"{len(rows[law.name].broken)} |\n"
        for law in ALL_LAWS
    ]
    made = evidence.provenance
    told = folded(f"Made on {made.date} with {', '.join(made.versions)}.")
    return _HEAD + "".join(lines) + "\n" + told


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
