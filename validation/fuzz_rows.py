"""Rows of evidence on inputs drawn at random: how many of each kind, and what each came to."""

import msgspec


class FuzzReason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The opening words of a refusal, names and numbers left out, and how often it was said."""

    says: str
    num_examples: int


class FuzzFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input on which a property does not hold.

    Attributes:
        argv: The command line.
        files: Names and contents of the files that it reads, cut where they are long.
        fault: Which property, and what there was instead.
    """

    argv: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    fault: str


class FuzzRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one kind of input came to.

    Attributes:
        kind: What was drawn.
        num_examples: Command lines that were run.
        num_fit: Answered, and the job fits (exit code 0).
        num_unfit: Answered, and the job does not fit (exit code 1).
        num_refused: Refused in one sentence (exit code 2).
        slowest_s: The most CPU seconds that one took.
        grown_bytes: How far the process's highest resident size rose meanwhile.
        reasons: Of the refusals, the most frequent ones.
        faults: Inputs on which a property does not hold; at most ``MOST_FAULTS``.
    """

    kind: str
    num_examples: int
    num_fit: int
    num_unfit: int
    num_refused: int
    slowest_s: float
    grown_bytes: int
    reasons: tuple[FuzzReason, ...]
    faults: tuple[FuzzFault, ...]
