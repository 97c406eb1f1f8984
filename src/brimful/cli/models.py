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
    from brimful.models.config import load_model, parameter_count, registry

    specs = [load_model(name) for name in registry()]
    if args.json:
        show_json({"schema": "brimful.models/1", "models": [_row(spec) for spec in specs]})
    else:
        from brimful.report.text import listing
        from brimful.units import format_count

        show(
            listing(
                ("model", "type", "parameters"),
                [(s.name, s.model_type, format_count(parameter_count(s).total)) for s in specs],
                numbers=("parameters",),
            )
        )
    return 0


def _row(spec: "ModelSpec") -> dict[str, Any]:
    from brimful.models.config import parameter_count

    # Every parameter of a dense decoder is active.
    total = parameter_count(spec).total
    return {
        "name": spec.name,
        "model_type": spec.model_type,
        "num_parameters": total,
        "num_active_parameters": total,
    }
