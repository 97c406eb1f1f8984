"""``brimful models``: the registry."""

import argparse
from typing import TYPE_CHECKING, Any

from brimful.cli import flags
from brimful.cli.output import show, show_json

if TYPE_CHECKING:
    from brimful.models.spec import ModelSpec

HELP = "list the known models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the registry."""
    from brimful.models.config import load_model
    from brimful.models.registry import registry

    rows = [_row(load_model(name)) for name in registry()]
    if args.json:
        show_json({"schema": "brimful.models/1", "models": rows})
    else:
        from brimful.report.text import listing

        show(
            listing(
                ("model", "type", "parameters", "active"),
                [_cells(row) for row in rows],
                numbers=("parameters", "active"),
            )
        )
    return 0


def _row(spec: "ModelSpec") -> dict[str, Any]:
    from brimful.models.config import active_parameters, parameter_count

    return {
        "name": spec.name,
        "model_type": spec.model_type,
        "num_parameters": parameter_count(spec).total,
        "num_active_parameters": active_parameters(spec),
    }


def _cells(row: dict[str, Any]) -> tuple[str, str, str, str]:
    from brimful.units import format_count

    total, active = row["num_parameters"], row["num_active_parameters"]
    # A dense model has one figure; saying it twice would hide which models have two.
    shown = format_count(active) if active != total else ""
    return row["name"], row["model_type"], format_count(total), shown
