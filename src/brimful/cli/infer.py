"""``brimful infer``: a model that writes text, run for real on this machine."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from brimful.cli import flags, inference
from brimful.cli.output import DOES_NOT_FIT, FITS, show_json, tell
from brimful.cli.page import add_page
from brimful.cli.progress import Progress
from brimful.errors import UnsupportedError

if TYPE_CHECKING:
    from brimful.show.answer import Answer

HELP = (
    "load a model in a format of weights, read prompts and write tokens on this machine's CPU, and "
    "say how fast; memory is predicted, simulated and measured. Weights are a folder's own, plain "
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
    add_page(parser)
    flags.add_verbose(parser)
    flags.add_json(parser)
    parser.set_defaults(task=inference.TASK)


def run(args: argparse.Namespace) -> int:
    """Predict, simulate, run and print."""
    job, cluster = inference.asked(args)
    if args.prompt_len is None and job.seq_len > 1:  # something is to be written
        job = msgspec.structs.replace(job, prompt_len=job.seq_len // 2)
    if cluster.device.kernels != "cpu":
        raise UnsupportedError(
            f"brimful infer measures on a CPU in this version and {cluster.name} is a GPU; use "
            f"--gpus local on a machine without one, or brimful simulate --task inference"
        )
    from brimful.process.library_output import quiet_libraries

    quiet_libraries()
    from brimful.cost.exported import exported_format
    from brimful.cost.inference import estimate_inference
    from brimful.measure.inference import measure_inference
    from brimful.simulate.inference import simulate_inference

    with Progress("simulating", quiet=args.json):
        estimate, simulation = estimate_inference(job, cluster), simulate_inference(job, cluster)
    folder = Path(args.model)
    is_exported = exported_format(job.model) is not None
    has_weights = folder.is_dir() and any(folder.glob(_PLAIN))
    with Progress("loading, reading and writing, under the profiler and without", quiet=args.json):
        measurement = measure_inference(
            job,
            weights=str(folder) if has_weights and not is_exported else None,
            exported=folder if is_exported else None,
        )
    if args.json:
        told = {"estimate": estimate, "simulation": simulation, "measurement": measurement}
        asked = {**inference.inputs_json(job, cluster), "schema": SCHEMA}
        show_json({**asked, **{k: msgspec.structs.asdict(v) for k, v in told.items()}})

    def answer() -> "Answer":
        from brimful.report.inference import measured_tables
        from brimful.show.answer import Answer
        from brimful.show.inference import measured_summary
        from brimful.show.summary import Fact

        words = f"of {folder}" if has_weights else "random"
        tables = measured_tables(job, cluster, estimate, simulation, measurement, weights=words)
        summary = measured_summary(job, cluster, estimate, simulation, measurement)
        next_words = "-v prints every item, predicted, simulated and measured"
        return Answer(summary, (Fact("next", next_words),), (tables,))

    tell(args, answer)
    fits = measurement.measured_peak_allocated_bytes <= estimate.usable_bytes
    return FITS if fits else DOES_NOT_FIT
