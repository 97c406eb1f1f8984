"""What a search found, as a value and as ``search.json`` in a run's folder."""

from typing import Literal

import msgspec

from brimful.values.strategy import Strategy

SEARCH_SCHEMA = "brimful.search/2"
Rung = Literal["predicted", "simulated"]
INTERRUPTED = "it was interrupted"
"""What ended a search that Ctrl-C ended."""


class Considered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One strategy that the search looked at.

    Attributes:
        strategy: The strategy.
        peak_bytes: Its peak of allocated bytes, on the rung that the record names.
        step_s: Its predicted seconds per optimizer step, whose work is of a profile or traced; None
            where the rates are unknown.
        fits: Whether that peak stays within the usable bytes; where it was simulated for a GPU,
            whether the caching allocator completes.
        note: Why it won, lost or was rejected, in words; may be empty.
    """

    strategy: Strategy
    peak_bytes: int
    step_s: float | None
    fits: bool
    note: str


class Untried(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a search that ended early did not look at.

    Attributes:
        why: What ended it.
        num_strategies: Combinations of micro-batch, kind of checkpointing and loss chunks that were
            neither simulated nor decided by what was: a larger batch than one that is too large is.
        num_most: All that there are of these.
        ways: The kinds of them nothing of which was simulated, in words.
    """

    why: str
    num_strategies: int
    num_most: int
    ways: tuple[str, ...]


class SearchRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The strategies worth showing, and how many there were.

    Attributes:
        schema: ``SEARCH_SCHEMA``.
        rung: How the peaks of all rows were found.
        rows: The winner first, then runners-up, then the nearest of the rejected.
        num_considered: Strategies whose memory was computed or simulated.
        num_fitting: Those of them that fit.
        untried: What was left when the search ended early; None: it came to its end.
        left_out: What was not looked at although there was time, and why, in words.
    """

    schema: str
    rung: Rung
    rows: tuple[Considered, ...]
    num_considered: int
    num_fitting: int
    untried: Untried | None = None
    left_out: tuple[str, ...] = ()
