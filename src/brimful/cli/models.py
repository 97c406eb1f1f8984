"""``brimful models``: the registry."""

import argparse

from brimful.cli import flags
from brimful.cli.output import show, show_json

HELP = "list the known models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the registry."""
    from brimful.models.config import load_model, parameter_count, registry

    rows = []
    for name in registry():
        spec = load_model(name)
        total = parameter_count(spec).total
        rows.append(
            {
                "name": name,
                "model_type": spec.model_type,
                "num_parameters": total,
                "num_active_parameters": total,
            }
        )
    if args.json:
        show_json({"schema": "brimful.models/1", "models": rows})
    else:
        from brimful.report.text import listing
        from brimful.units import format_count

        show(
            listing(
                ("model", "type", "parameters"),
                [(r["name"], r["model_type"], format_count(r["num_parameters"])) for r in rows],
            )
        )
    return 0
