"""Write ``docs/laws.md``: ``python docs/generate_laws.py``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "validation"))

from laws import LAWS

PAGE = Path(__file__).parent / "laws.md"
_HEAD = """# Laws

How predictions must change when the job, the plan or the machine does, each drawn at random in the
test suite (`validation/laws.py`). *Padding* is the term by which a law may miss.

| law | of | padding |
|---|---|---|
"""


def page() -> str:
    """Return the page, a line per law."""
    return _HEAD + "".join(f"| {law.name} | {law.quantity} | {law.padding} |\n" for law in LAWS)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
