"""What a script's steps say, as values: where it was ended, and what they leave behind."""

import msgspec

BUDGET_S = 45
"""Seconds that a script has where nobody says."""
ENOUGH_STEPS = 2
"""Of an optimizer, after which a step's memory is known: the first makes its state."""
_SOON = 100
"""Steps in which a card that is full by then is taken to be: few scripts let go more seldom."""


class Cut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a script was ended before its own end.

    Attributes:
        seconds: That it had run.
        num_steps: That every optimizer seen had made; 0: none was seen to make one.
        phase: In which it was.
        num_alike: Steps that said the same, for which it was ended sooner; 0: it was not.
        is_passed: Whether the rest of its data was passed over, and what follows was run.
        error: In what ended what was run behind its data; empty: nothing was.
        held_by: What of the script holds what these leave behind; empty: nothing was seen to.
    """

    seconds: int
    num_steps: int
    phase: str
    num_alike: int = 0
    is_passed: bool = False
    held_by: str = ""
    error: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether a whole step's memory is known."""
        return self.num_steps >= ENOUGH_STEPS


class Without(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is left of a program whose named fault is mended, by replays of its requests.

    Attributes:
        least_bytes: What the allocator holds at least.
        most_bytes: At most.
        fits: Whether it completes at capacity; None: it is not known.
    """

    least_bytes: int
    most_bytes: int
    fits: bool | None


def fits_all(cut: Cut | None, full_in: int | None, *, fits: bool | None) -> bool | None:
    """Return whether a whole program completes; None: what was run of it does not say.

    ``cut``: where it was ended; None: it was not. ``full_in``: steps in which what grows fills the
    card; None: nothing does.
    """
    if not fits or cut is None:
        return fits
    if full_in is not None:
        return False if full_in <= _SOON else None
    return fits if cut.is_settled else None
