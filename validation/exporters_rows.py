"""Rows of the part that hands exports to the parsers of their targets."""

import msgspec
from cases import Case


class ReadBack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One value that a parser read.

    Attributes:
        name: What it is called there.
        meant: What the plan says, as text.
        read: What the parser made of the export, as text.
    """

    name: str
    meant: str
    read: str


class ExporterRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One plan exported to one target.

    Attributes:
        case: The plan's job and strategy.
        devices: The plan's cluster, as ``--gpus`` has it.
        target: As ``--to`` has it.
        versions: Of the target, each as ``name version``.
        parser: Who read it.
        refused: Why it was not exported; empty where it was.
        sha256: Of the exported text.
        values: What was read back; none where it was refused.
        complaint: What the parser said against it; empty where it accepted.
        lost: What the target does not say, each as ``field (what it changes)``.
        losses: Of every step where the export was run, by the target.
        our_losses: The same by Brimful from the same weights and rows.
    """

    case: Case
    devices: str
    target: str
    versions: tuple[str, ...]
    parser: str
    refused: str
    sha256: str
    values: tuple[ReadBack, ...]
    complaint: str
    lost: tuple[str, ...]
    losses: tuple[float, ...] = ()
    our_losses: tuple[float, ...] = ()
