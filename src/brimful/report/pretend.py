"""A ``PretendReport`` for the terminal: at most 100 columns wide, and plain when piped."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from brimful.pretend.report_values import (
    AtCapacity,
    Failure,
    Missed,
    ModuleBytes,
    OwnerBytes,
    PretendReport,
    Tensor,
)
from brimful.pretend.scripts import short_line
from brimful.report.tables import (
    add_row,
    bullets,
    items_table,
    pairs_table,
    phases_table,
    plain_table,
)
from brimful.report.words import ABSENT, share_words
from brimful.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

NUM_TENSORS = 12
"""Lines of a table that a terminal shows; ``--json`` has more."""
NUM_OWNERS = 8
NUM_PARTS = 6
NUM_MOSTLY = 2
NUM_UNKNOWN = 8
NUM_KERNELS = 12
NO_MODULE = "(no submodule)"


def pretend_tables(report: PretendReport) -> "Group":
    """Lay out what a program does to a GPU's memory.

    Returns which request fails, the peak and what is alive at it, whose it is, what is kept for
    backward, phases, totals, and what is not known.
    """
    from rich.console import Group
    from rich.text import Text

    failure = report.at_capacity.failure
    parts: list[RenderableType] = [
        *([] if failure is None else [bullets("What fails", tuple(failure_lines(failure)))]),
        items_table(report.items, f"Alive at the peak, in {report.peak_phase} (simulated)"),
        *([_models(report)] if report.models else []),
        _owners(report),
        _tensors(report),
        *([] if report.kept is None else [_kept(report)]),
        phases_table(report.phases, "simulated", where="highest in"),
        pairs_table(total_pairs(report), title="Totals (simulated)"),
        *(bullets(title, lines) for title, lines in note_lines(report)),
    ]
    spaced: list[RenderableType] = [row for part in parts for row in (part, Text(""))]
    return Group(*spaced)


def failure_lines(failure: Failure) -> Iterator[str]:
    """Say which request fails, when, and whose it is."""
    tensor = failure.tensor
    where = f"event {failure.event} of {failure.num_events}"
    yield f"out of memory in {tensor.phase} ({where})"
    yield (
        f"with {format_bytes(failure.allocated_bytes)} allocated and "
        f"{format_bytes(failure.reserved_bytes)} reserved"
    )
    yield (
        f"when {format_bytes(tensor.num_bytes)} were asked for: "
        f"{tensor.item}, {tensor.shape} {tensor.dtype}"
    )
    node = f", {tensor.node}" if tensor.node else ""
    yield f"by {tensor.module or NO_MODULE}, {short_op(tensor.op)}{node}"
    if tensor.line:
        yield f"at {tensor.line}"


def short_op(op: str) -> str:
    """Leave out of an operation's name what every name has: ``aten.mm.default`` is ``mm``."""
    return op.removeprefix("aten.").removesuffix(".default")


def _plural(count: int, one: str, many: str) -> str:
    return one if count == 1 else many


def _owners(report: PretendReport) -> "Table":
    table = plain_table("Whose it is")
    for name in ("bytes", "share"):
        table.add_column(name, justify="right")
    table.add_column("module", ratio=1)
    table.add_column("modules", justify="right")
    table.add_column("mostly", ratio=1)
    total = report.simulated_peak_allocated_bytes
    for owner in report.owners[:NUM_OWNERS]:
        _owner_rows(table, owner, total)
    rest = report.owners[NUM_OWNERS:]
    if rest:
        num_bytes = sum(owner.whole.num_bytes for owner in rest)
        cells = (format_bytes(num_bytes), share_words(num_bytes, total))
        add_row(table, (*cells, f"{len(rest)} more", "", ""))
    return table


def _models(report: PretendReport) -> "Table":
    """Lay out what each of several models has."""
    table = plain_table("By model: parameters, gradients, state, and what its passes left")
    for name in ("bytes", "share"):
        table.add_column(name, justify="right")
    for name in ("model", "class", "mostly"):
        table.add_column(name, ratio=1)
    for each in report.models:
        mostly = ", ".join(f"{name} {format_bytes(size)}" for name, size in each.items[:NUM_MOSTLY])
        share = share_words(each.num_bytes, report.simulated_peak_allocated_bytes)
        add_row(table, (format_bytes(each.num_bytes), share, each.name, each.model, mostly))
    return table


def _owner_rows(table: "Table", owner: OwnerBytes, total: int) -> None:
    whole = owner.whole
    items = sorted(owner.items, key=lambda item: -item.num_bytes)[:NUM_MOSTLY]
    mostly = ", ".join(f"{item.name} {format_bytes(item.num_bytes)}" for item in items)
    add_row(table, (*_module_cells(whole, total, whole.module or NO_MODULE), mostly))
    parts = [part for part in owner.parts if part.module != whole.module]
    for part in parts[:NUM_PARTS]:
        name = f"  {part.module.removeprefix(whole.module)}"
        add_row(table, (*_module_cells(part, total, name), ""), style="dim")
    if len(parts) > NUM_PARTS:
        num_bytes = sum(part.num_bytes for part in parts[NUM_PARTS:])
        cells = (format_bytes(num_bytes), share_words(num_bytes, total))
        add_row(table, (*cells, f"  {len(parts) - NUM_PARTS} more", "", ""), style="dim")


def _module_cells(part: ModuleBytes, total: int, name: str) -> tuple[str, ...]:
    share = share_words(part.num_bytes, total)
    return (format_bytes(part.num_bytes), share, name, str(part.num_modules))


def _tensors(report: PretendReport) -> "Table":
    table = plain_table("Largest tensors at the peak, like ones together")
    table.add_column("bytes", justify="right")
    table.add_column("count", justify="right")
    table.add_column("tensor", ratio=5)
    table.add_column("made by", ratio=6)
    for alike in report.alike[:NUM_TENSORS]:
        one = alike.one
        stream = f", stream {one.stream}" if one.stream else ""
        tensor = f"{one.item}: {one.shape} {one.dtype}{stream}"
        maker = " ".join(filter(None, (alike.module or NO_MODULE, short_op(one.op), one.node)))
        where = f"{maker} ({short_line(one.line)})" if one.line else maker
        add_row(table, (format_bytes(alike.num_bytes), str(alike.num_tensors), tensor, where))
    return table


def _kept(report: PretendReport) -> "Table":
    kept = report.kept
    assert kept is not None
    table = plain_table(f"Kept for backward by {kept.phase}: {format_bytes(kept.num_bytes)}")
    for name in ("bytes", "share"):
        table.add_column(name, justify="right")
    table.add_column("module", ratio=1)
    table.add_column("modules", justify="right")
    for part in kept.modules[:NUM_TENSORS]:
        add_row(table, _module_cells(part, kept.num_bytes, part.module or NO_MODULE))
    rest = kept.modules[NUM_TENSORS:]
    if rest:
        num_bytes = sum(part.num_bytes for part in rest)
        cells = (format_bytes(num_bytes), share_words(num_bytes, kept.num_bytes))
        add_row(table, (*cells, f"{len(rest)} more", ""))
    return table


def total_pairs(report: PretendReport) -> list[tuple[str, str]]:
    """List the totals by name; an indented name belongs to the one above it."""
    reserved = report.reserved
    configured = format_bytes(reserved.simulated_peak_reserved_bytes)
    native = format_bytes(reserved.simulated_peak_reserved_native_bytes)
    expandable = format_bytes(reserved.simulated_peak_reserved_expandable_bytes)
    fragments = format_bytes(reserved.simulated_peak_inactive_split_bytes)
    return [
        ("card", f"{report.card}, {_capacity_words(report.at_capacity)}"),
        ("allocator", report.allocator or "PyTorch's defaults"),
        ("peak allocated", format_bytes(report.simulated_peak_allocated_bytes)),
        ("  in blocks", f"{format_bytes(report.simulated_peak_block_bytes)}, with rounding"),
        ("peak reserved", f"{configured}, if it can have all it asks for"),
        ("  by settings", f"native {native}, expandable segments {expandable}"),
        ("  by stream", _pool_words(report)),
        ("  fragments", f"at most {fragments} free inside segments in use"),
        ("masks, scores", _attention_words(report)),
        ("host tensors", format_bytes(report.host.simulated_peak_bytes)),
        ("events", str(report.num_events)),
    ]


def _capacity_words(at: AtCapacity) -> str:
    words = f"{format_bytes(at.card_bytes)} less {format_bytes(at.outside_bytes)} outside PyTorch"
    if at.budget_bytes is not None:
        words += f"; budget {format_bytes(at.budget_bytes)}"
    return f"{words}: the allocator can have {format_bytes(at.capacity_bytes)}"


def _pool_words(report: PretendReport) -> str:
    streams: dict[int, int] = {}
    for pool in report.reserved.pools:
        streams[pool.stream] = streams.get(pool.stream, 0) + pool.num_bytes
    words = (f"{format_bytes(num_bytes)} on {_stream(s)}" for s, num_bytes in streams.items())
    return ", ".join(words)


def _stream(number: int) -> str:
    return f"stream {number}" if number else "the default stream"


def _attention_words(report: PretendReport) -> str:
    attention = report.attention
    if attention.largest is None:
        return "no tensor of [batch, heads, n, n]"
    masks = format_bytes(attention.simulated_peak_mask_bytes)
    scores = format_bytes(attention.simulated_peak_score_bytes)
    return f"masks {masks}, scores {scores} at most; largest {_tensor_words(attention.largest)}"


def _tensor_words(tensor: Tensor) -> str:
    words = f"{tensor.shape} {tensor.dtype} of {short_op(tensor.op)}"
    return f"{words} ({short_line(tensor.line)})" if tensor.line else words


def _launches(report: PretendReport) -> Iterator[str]:
    kernels = report.beside_torch.launched
    for kernel in kernels[:NUM_KERNELS]:
        count = kernel.num_launches
        yield f"{kernel.kernel} ({count} {_plural(count, 'launch', 'launches')})"
    if len(kernels) > NUM_KERNELS:
        yield f"{len(kernels) - NUM_KERNELS} more"


def _missed(missed: Missed) -> str:
    """Name a package, who looked for it, and what stands in for it."""
    instead = f"; --assume {missed.package}" if missed.can_be_assumed else ""
    return f"{missed.package} ({', '.join(map(short_line, missed.lines))}){instead}"


def note_lines(report: PretendReport) -> Iterator[tuple[str, Sequence[str]]]:
    """Say what the numbers rest on and what is not in them: headings, each with its lines."""
    outside = [
        f"{part.name} {format_bytes(part.low_bytes)} to {format_bytes(part.high_bytes)}: "
        f"{part.source}"
        for part in report.outside
    ]
    yield "Outside the allocator, not in any number above", outside
    if report.unknown_ops:
        shown = [
            f"{unknown.op} ({unknown.num_calls} {_plural(unknown.num_calls, 'call', 'calls')})"
            for unknown in report.unknown_ops[:NUM_UNKNOWN]
        ]
        if len(report.unknown_ops) > NUM_UNKNOWN:
            shown.append(f"{len(report.unknown_ops) - NUM_UNKNOWN} more")
        yield "Kernels that may take memory of their own, unknown to Brimful", shown
    beside = report.beside_torch
    if beside.launched:
        yield "Kernels beside PyTorch's that were launched", list(_launches(report))
    if beside.missed:
        missed = [_missed(each) for each in beside.missed]
        yield "Looked for and not installed here; with them other kernels may run", missed
    if report.assumptions or beside.stood_in:
        yield "Assumptions", (*beside.stood_in, *report.assumptions)
    yield "Made with", [", ".join(report.versions) or ABSENT]
