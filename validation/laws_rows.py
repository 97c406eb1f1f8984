"""Rows of evidence on the laws of the first two rungs."""

import msgspec


class LawRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A law, and how often it was looked at.

    Attributes:
        law: What must hold.
        rung: 1: between predictions; 2: simulations take part.
        quantity: What of an answer it is about.
        padding: The term by which it may miss, and where that comes from.
        num_drawn: Cases.
        num_looked_at: Of them, those that have an answer; the others are refused.
        broken: What did not hold.
    """

    law: str
    rung: int
    quantity: str
    padding: str
    num_drawn: int
    num_looked_at: int
    broken: tuple[str, ...]
