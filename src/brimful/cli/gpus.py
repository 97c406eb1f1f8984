"""``brimful gpus``: the known GPUs, and this machine."""

import argparse

import msgspec

from brimful.cli import flags
from brimful.cli.output import show, show_json

HELP = "list the known GPUs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the table and what this machine is."""
    from brimful.hardware.gpus import gpus
    from brimful.hardware.probe import probe_local

    devices = [probe_local(), *gpus().values()]
    if args.json:
        show_json(
            {"schema": "brimful.gpus/1", "gpus": [msgspec.structs.asdict(d) for d in devices]}
        )
        return 0
    from brimful.report.text import listing
    from brimful.units import format_bytes, format_rate

    def rate(value: float, unit: str) -> str:
        return format_rate(value, unit) if value else "unknown"

    rows = [
        (
            d.name,
            format_bytes(d.usable_bytes),
            rate(d.matrix_flops_per_s.fp32, "FLOP"),
            rate(d.matrix_flops_per_s.bf16, "FLOP"),
            rate(d.memory_bytes_per_s, "B"),
            d.description,
        )
        for d in devices
    ]
    numbers = ("usable", "fp32", "bf16", "bandwidth")
    show(listing(("gpu", *numbers, "what it is"), rows, numbers=numbers))
    return 0
