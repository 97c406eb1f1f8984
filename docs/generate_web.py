"""Write docs/web/llama-3.1-8b.html, the page of one model that needs no server: two minutes.

``python docs/generate_web.py``; ``--again`` sets the page anew around the answers that it holds,
after a change of its words, script or style only.
"""

import sys
from pathlib import Path

from brimful.web.static_page import held_cells, static_page

MODEL = "llama-3.1-8b"
PAGE = Path(__file__).parent / "web" / f"{MODEL}.html"


def main() -> None:
    """Write it."""
    cells = held_cells(PAGE.read_text("utf-8")) if "--again" in sys.argv[1:] else None
    PAGE.write_text(static_page(MODEL, cells), "utf-8")


if __name__ == "__main__":
    main()
