"""A datasheet in words: every value of it, each with its source."""

from typing import NamedTuple, get_args

from brimful.hardware.abilities import abilities
from brimful.hardware.datasheets import Datasheet, MatrixType, source_of
from brimful.hardware.links import Link, node_links
from brimful.hardware.usable import usable_memory
from brimful.units import format_bytes, format_rate, format_seconds

_UNKNOWN = "unknown"
_COUNTED = {"tdp_w": "power limit", "num_multiprocessors": "multiprocessors"}


class Fact(NamedTuple):
    """A value in words.

    Attributes:
        name: What it is.
        value: With its unit.
        source: ``document; note``, or the rule that it follows from.
    """

    name: str
    value: str
    source: str


def facts(sheet: Datasheet) -> tuple[Fact, ...]:
    """List every value of a GPU's datasheet with its source."""
    return (
        Fact("reported as", ", ".join(sheet.reported_names), ""),
        Fact("on the box", format_bytes(sheet.memory_bytes), source_of(sheet, "memory_bytes")),
        _usable(sheet),
        _target(sheet),
        *(_rate(sheet, kind) for kind in get_args(MatrixType)),
        Fact(
            "memory traffic",
            format_rate(sheet.memory_bytes_per_s, "B"),
            source_of(sheet, "memory_bytes_per_s"),
        ),
        *(_link(sheet, link) for link in node_links(sheet)),
        *_joined(sheet),
        *(_count(sheet, field, name) for field, name in _COUNTED.items()),
        Fact("launch time", format_seconds(sheet.op_overhead_s), "assumed"),
    )


def _joined(sheet: Datasheet) -> tuple[Fact, ...]:
    """Say how many the fastest link joins, where those are of several machines."""
    if not sheet.linked:
        return ()
    fastest = node_links(sheet)[0].name
    value = f"{sheet.linked} GPUs, over machines of {sheet.per_node}"
    return (Fact(f"joined by {fastest}", value, source_of(sheet, "linked")),)


def _usable(sheet: Datasheet) -> Fact:
    memory = usable_memory(sheet)
    if memory.is_known:
        return Fact("usable", format_bytes(memory.num_bytes), source_of(sheet, "usable_bytes"))
    band = f"{format_bytes(memory.low_bytes)} to {format_bytes(memory.high_bytes)}"
    return Fact("usable", f"{band}; planned with the least", memory.why)


def _target(sheet: Datasheet) -> Fact:
    is_cuda = sheet.maker == "NVIDIA"
    capability = f"compute capability {sheet.capability}, " if is_cuda else ""
    return Fact("chip", f"{capability}{sheet.target}", source_of(sheet, "capability"))


def _rate(sheet: Datasheet, kind: MatrixType) -> Fact:
    rate = getattr(sheet.matrix_flops_per_s, kind)
    unit = "OP" if kind == "int8" else "FLOP"
    value = _UNKNOWN if rate is None else format_rate(rate, unit) if rate else "no units for it"
    return Fact(f"{kind} matrices", value, source_of(sheet, f"matrix_flops_per_s.{kind}"))


def _link(sheet: Datasheet, link: Link) -> Fact:
    value = _UNKNOWN
    if link.bytes_per_s is not None and link.total_bytes_per_s is not None:
        one, both = format_rate(link.bytes_per_s, "B"), format_rate(link.total_bytes_per_s, "B")
        value = f"{one} per direction, {both} in total"
    latency = f"latency {format_seconds(link.latency_s)} assumed"
    return Fact(link.name, value, f"{source_of(sheet, f'links.{link.kind}')}; {latency}")


def _count(sheet: Datasheet, field: str, name: str) -> Fact:
    value = getattr(sheet, field)
    if value is None:
        return Fact(name, _UNKNOWN, "")
    return Fact(name, f"{value} W" if field == "tdp_w" else str(value), source_of(sheet, field))


def ability_words(sheet: Datasheet) -> tuple[tuple[str, str], ...]:
    """List what a GPU really has, as names and values."""
    has = abilities(sheet)
    return (
        ("tensor cores", ", ".join(has.tensor_core_types) or "none"),
        ("bf16", has.bf16),
        ("attention, 16 bits", _kernels(has.attention_16bit)),
        ("attention, fp32", _kernels(has.attention_fp32)),
        *(("note", note) for note in has.notes),
    )


def _kernels(names: tuple[str, ...] | None) -> str:
    if names is None:
        return _UNKNOWN
    return ", ".join((*names, "eager"))
