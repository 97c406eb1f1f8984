"""``brimful gpus``: the known GPUs, one of them in full, and this machine."""

import argparse
from typing import TYPE_CHECKING, Any

import msgspec

from brimful.cli import flags
from brimful.cli.output import show, show_json

if TYPE_CHECKING:
    from brimful.hardware.datasheets import Datasheet

HELP = "list the known GPUs, or show one in full with its sources"
_RATES = ("fp32", "tf32", "fp16", "bf16", "fp8")
_LEGEND = (
    "rates in TFLOP/s, dense, with fp32 accumulation: - no units for the type, ? unknown",
    "GiB: what PyTorch can allocate; ~ assumed, the least that is likely",
    "memory and link in GB/s; link: to the node's other GPUs, one direction",
    "flash: PyTorch's FlashAttention-2 in 16 bits; ?: not known, listed only",
)
_UNKNOWN, _NONE = "?", "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    parser.usage = "%(prog)s [GPU] [flags]"
    parser.add_argument("gpu", nargs="?", metavar="GPU", help="a name of the list; default all")
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table and what this machine is, or one GPU."""
    from brimful.hardware.datasheets import datasheets
    from brimful.hardware.names import find_gpu, unknown_gpu

    sheets = datasheets()
    if args.gpu is None:
        _show_all(sheets, as_json=args.json)
        return 0
    name = find_gpu(args.gpu)
    if not name:
        raise unknown_gpu(args.gpu)
    if args.json:
        show_json({"schema": "brimful.gpus/1", "gpus": [_row(name, sheets[name])]})
    else:
        _show_one(name, sheets[name])
    return 0


def _show_all(sheets: "dict[str, Datasheet]", *, as_json: bool) -> None:
    from brimful.hardware.nvidia_smi import find_node
    from brimful.hardware.probe import probe_local

    local, node = probe_local(), find_node()
    if as_json:
        rows = [_row(name, sheet) for name, sheet in sheets.items()]
        machine = {**msgspec.structs.asdict(local), "node": node}
        show_json({"schema": "brimful.gpus/1", "gpus": [machine, *rows]})
        return
    from brimful.hardware.nvidia_smi import describe_pairs
    from brimful.report.tables import bullets
    from brimful.report.text import device_table, listing

    numbers = ("GiB", *_RATES, "memory", "link")
    header = ("gpu", *numbers, "flash", "architecture")
    cells = [_cells(name, sheet) for name, sheet in sheets.items()]
    show(listing(header, cells, numbers=numbers), bullets("", _LEGEND), device_table(local))
    if node.gpus:
        from brimful.units import format_bytes

        found = [f"{gpu.name}, {format_bytes(gpu.usable_bytes)}" for gpu in node.gpus]
        show(bullets(f"GPUs here, links: {describe_pairs(node.pairs)}", found))


def _cells(name: str, sheet: "Datasheet") -> tuple[str, ...]:
    from brimful.hardware.abilities import abilities
    from brimful.hardware.links import node_links
    from brimful.hardware.usable import usable_memory
    from brimful.units import GIB

    memory, attention = usable_memory(sheet), abilities(sheet).attention_16bit
    link = node_links(sheet)[0].bytes_per_s
    return (
        name,
        f"{'' if memory.is_known else '~'}{memory.num_bytes / GIB:.2f}",
        *(_tera(getattr(sheet.matrix_flops_per_s, kind)) for kind in _RATES),
        f"{sheet.memory_bytes_per_s / 1e9:.0f}",
        _UNKNOWN if link is None else f"{link / 1e9:.0f}",
        _UNKNOWN if attention is None else "yes" if "flash" in attention else "no",
        sheet.architecture,
    )


def _tera(rate: float | None) -> str:
    if rate is None:
        return _UNKNOWN
    return f"{rate / 1e12:.4g}" if rate else _NONE


def _row(name: str, sheet: "Datasheet") -> dict[str, Any]:
    """Return all that is known of a GPU; a device's fields only where it can be planned for."""
    from brimful.hardware.abilities import abilities
    from brimful.hardware.datasheets import cited_documents
    from brimful.hardware.devices import gpus
    from brimful.hardware.links import node_links
    from brimful.hardware.usable import usable_memory

    device, memory = gpus().get(name), usable_memory(sheet)
    return {
        "name": name,
        "usable_bytes": memory.num_bytes,
        **(msgspec.structs.asdict(device) if device else {}),
        "plannable": device is not None,
        "datasheet": sheet,
        "usable_memory": memory,
        "abilities": abilities(sheet),
        "links": node_links(sheet),
        "documents": cited_documents(sheet),
    }


def _show_one(name: str, sheet: "Datasheet") -> None:
    from brimful.hardware.compared import runs_words
    from brimful.hardware.datasheets import cited_documents
    from brimful.hardware.sheet_words import ability_words, facts
    from brimful.report.tables import pairs_table
    from brimful.report.text import listing

    title = f"{name}: {sheet.description}, {sheet.architecture}"
    cited = cited_documents(sheet).items()
    has = (*ability_words(sheet), ("compared", runs_words(name)))
    show(
        title,
        listing(("", "value", "source"), facts(sheet), numbers=()),
        pairs_table(has, title="What it really has"),
        pairs_table([(key, f"{d.title} {d.url}") for key, d in cited], title="Sources"),
    )
