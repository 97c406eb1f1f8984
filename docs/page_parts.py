"""What generated pages are made of: folded paragraphs, and tables."""

from collections.abc import Collection, Sequence
from textwrap import fill

WIDTH = 100


def folded(text: str) -> str:
    """Fold a paragraph; one more line makes it stand by itself."""
    return fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, words: Collection[str] = ()
) -> str:
    """Lay out a table; columns that hold words begin on the left, numbers end on the right.

    Args:
        head: Names of the columns.
        rows: As many cells each.
        words: Names of columns beside the first that hold words.
    """
    first, *rest = head
    rule = ["---", *("---" if name in words else "---:" for name in rest)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [[first, *rest], rule, *rows])
