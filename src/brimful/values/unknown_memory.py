"""Operations of whose kernels' own memory nothing is known, and what a peak is then called.

A peak is exact only where of every operation it is known what its kernel takes beside its results.
Where it is not, every report says so in its first line.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from brimful.units import format_bytes

NUM_STATED = 3
"""Operators that the first line names."""
NAME_WIDTH = 60


class UnknownOp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operation of whose kernel's own memory nothing is known, and how often it was called."""

    op: str
    num_calls: int


def unknown_ops_of(num_calls: Mapping[str, int]) -> tuple[UnknownOp, ...]:
    """List operations, those called most often first."""
    ordered = sorted(num_calls.items(), key=lambda pair: (-pair[1], pair[0]))
    return tuple(UnknownOp(op=op, num_calls=count) for op, count in ordered)


def peak_statement(peak_bytes: int, unknown_ops: Sequence[UnknownOp]) -> str:
    """Say what the peak is, and if the memory of some kernels is unknown, that it is a bound.

    ``unknown_ops``: operations of whose kernels' own memory nothing is known.
    """
    words = [f"{_short(one.op)} ({_calls(one.num_calls)})" for one in unknown_ops]
    return _statement(peak_bytes, words)


def named_statement(peak_bytes: int, unknown_ops: Sequence[str]) -> str:
    """Say the same where calls were not counted: most blocks of a model are not traced.

    ``unknown_ops``: operations of whose kernels' own memory nothing is known.
    """
    return _statement(peak_bytes, [_short(op) for op in unknown_ops])


def unknown_words(ops: Sequence[str], left_bytes: int, most: int = NUM_STATED) -> str:
    """Say which kernels may take more than was counted, and how much is left for them.

    ``ops``: operations of whose kernels' own memory nothing is known. ``left_bytes``: what an
    allocator may hold beyond what was counted. ``most``: of them that are named.
    """
    names = {_short(op).lstrip("_") for op in ops}
    forward = sorted(name for name in names if not _is_backward_of(name, names))
    shown = forward[:most]
    rest = len(forward) - most
    more = f" and {rest} more" if rest > 0 else ""
    left = format_bytes(max(0, left_bytes))
    if most < NUM_STATED:
        return f"what {', '.join(shown)}{more} take beside results; {left} are left"
    whose = "those of " if len(ops) > 1 else ""
    return (
        f"what kernels take beside their results, {whose}{', '.join(shown)}{more}; {left} are left "
        f"for that"
    )


def _is_backward_of(name: str, names: Collection[str]) -> bool:
    return name.removesuffix("_backward") in names and name.endswith("_backward")


def _statement(peak_bytes: int, words: Sequence[str]) -> str:
    peak = format_bytes(peak_bytes)
    if not words:
        return f"simulated peak {peak}"
    shown = list(words[:NUM_STATED])
    rest = len(words) - NUM_STATED
    if rest > 0:
        shown.append(f"{rest} more {'operators' if rest > 1 else 'operator'}")
    return f"peak at least {peak}: the memory of some kernels is not known: {', '.join(shown)}"


def _calls(count: int) -> str:
    return f"{count} {'call' if count == 1 else 'calls'}"


def _short(op: str) -> str:
    name = op.removeprefix("aten.").removesuffix(".default")
    return name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 3]}..."
