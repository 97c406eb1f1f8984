"""``brimful infer``: a model that writes text, run for real on this machine."""

import argparse
from pathlib import Path

import msgspec

from brimful.cli import flags, inference
from brimful.cli.output import DOES_NOT_FIT, FITS, show, show_json
from brimful.errors import UnsupportedError

HELP = (
    "load a model in a format of weights, read prompts and write tokens on this machine's CPU, and "
    "lay predicted, simulated and measured memory side by side; weights are a folder's own, plain "
    "or of brimful convert, else random"
)
SCHEMA = "brimful.inference-run/1"
_PLAIN = "*.safetensors"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    flags.add_model(parser)
    flags.add_job(parser)
    flags.add_strategy(parser, searched=False)
    inference.add_arguments(parser)
    flags.add_json(parser)
    parser.set_defaults(task=inference.TASK)


def run(args: argparse.Namespace) -> int:
    """Predict, simulate, run and print."""
    job, cluster = inference.asked(args)
    if cluster.device.kernels != "cpu":
        raise UnsupportedError(
            f"brimful infer measures on a CPU in this version and {cluster.name} is a GPU; use "
            f"--gpus local on a machine without one, or brimful simulate --task inference"
        )
    from brimful.quiet import quiet_libraries

    quiet_libraries()
    from brimful.cost.exported import exported_format
    from brimful.cost.inference import estimate_inference
    from brimful.measure.inference import measure_inference
    from brimful.simulate.inference import simulate_inference

    estimate, simulation = estimate_inference(job, cluster), simulate_inference(job, cluster)
    folder = Path(args.model)
    is_exported = exported_format(job.model) is not None
    has_weights = folder.is_dir() and any(folder.glob(_PLAIN))
    measurement = measure_inference(
        job,
        weights=str(folder) if has_weights and not is_exported else None,
        exported=folder if is_exported else None,
    )
    if args.json:
        told = {"estimate": estimate, "simulation": simulation, "measurement": measurement}
        asked = {**inference.inputs_json(job, cluster), "schema": SCHEMA}
        show_json({**asked, **{k: msgspec.structs.asdict(v) for k, v in told.items()}})
    else:
        from brimful.report.inference import measured_tables

        words = f"of {folder}" if has_weights else "random"
        show(measured_tables(job, cluster, estimate, simulation, measurement, weights=words))
    fits = measurement.measured_peak_allocated_bytes <= estimate.usable_bytes
    return FITS if fits else DOES_NOT_FIT
