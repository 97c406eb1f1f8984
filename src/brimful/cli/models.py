"""``brimful models``: the registry."""

import argparse
from typing import TYPE_CHECKING, Any

from brimful.cli import flags
from brimful.cli.output import show, show_json

if TYPE_CHECKING:
    from brimful.models.spec import ModelSpec

HELP = "list the known models"
_GPU = "h100-80gb"
_TRACED = "once traced"
"""By formulas of a profile that is traced when a model is first asked for."""
_SEQ_LEN = 2048


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    flags.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the registry."""
    from brimful.models.registry import registry

    rows = [_row(name, entry) for name, entry in registry().items()]
    if args.json:
        show_json({"schema": "brimful.models/1", "models": rows})
    else:
        from brimful.report.text import listing

        show(
            listing(
                ("model", "type", "parameters", "active", "predicted"),
                [_cells(row) for row in rows],
                numbers=("parameters", "active"),
            )
        )
    return 0


def _row(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    from brimful.models.architectures import ARCHITECTURES
    from brimful.models.config import active_parameters, load_model, parameter_count

    row = {"name": name, "model_type": entry["model_type"]}
    if entry["model_type"] not in ARCHITECTURES:
        # Reading such a model would import transformers; its count is data.
        return {
            **row,
            "num_parameters": entry["num_parameters"],
            "num_active_parameters": None,
            "predicted": _TRACED,
        }
    spec = load_model(name)
    return {
        **row,
        "num_parameters": parameter_count(spec).total,
        "num_active_parameters": active_parameters(spec),
        "predicted": _predicted(spec),
    }


def _predicted(spec: "ModelSpec") -> str:
    """Say what predicts a model's training as it usually is, on one GPU."""
    from brimful.cost.formula import is_traceable, missing_formula
    from brimful.hardware.gpus import load_cluster
    from brimful.models.config import default_task
    from brimful.models.kernels import attentions_of
    from brimful.values.job import plain_job
    from brimful.values.strategy import Attention, Strategy

    job = plain_job(spec, task=default_task(spec), seq_len=min(_SEQ_LEN, spec.max_seq_len))
    attention: Attention = "sdpa" if "sdpa" in attentions_of(job) else "eager"
    strategy = Strategy(
        micro_batch=1, activation_checkpointing="none", loss_chunks=1, attention=attention
    )
    device = load_cluster(_GPU, memory_limit_bytes=None).device
    if is_traceable(job, strategy, device):
        return _TRACED
    return "by simulation" if missing_formula(job, strategy, device) else "by formula"


def _cells(row: dict[str, Any]) -> tuple[str, str, str, str, str]:
    from brimful.units import format_count

    total, active = row["num_parameters"], row["num_active_parameters"]
    # A dense model has one figure; saying it twice would hide which models have two.
    shown = "" if active in {None, total} else format_count(active)
    return row["name"], row["model_type"], format_count(total), shown, row["predicted"]
