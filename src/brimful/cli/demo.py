"""``brimful demo``: the whole ladder on this machine: probe, plan, simulate, train, verdict."""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.cli import output_paths, parsing
from brimful.cli.output import DOES_NOT_FIT, FITS, show, show_summary
from brimful.errors import RunError
from brimful.hardware.cluster import Cluster, Device, offered_bytes
from brimful.text.escaping import json_text
from brimful.text.terminal import say
from brimful.units import MIB, format_bytes, format_count, format_seconds
from brimful.values.job import Job, Precision, plain_job

if TYPE_CHECKING:
    from brimful.search.solve import Solution
    from brimful.values.plan import Plan

HELP = "plan, simulate, train and check a real job of about 25 M parameters on this machine"

MODEL = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 7,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}
"""A Llama-type decoder of 25 M parameters."""
MEMORY_LIMIT = 640 * MIB
SEQ_LEN = 256
GLOBAL_BATCH = 8
LEARNING_RATE = 1.5e-3
NUM_STEPS = 150
"""About two minutes on two cores with fast bf16 products; enough to learn from context."""
MIXED_GAIN = 1.5
"""bf16-mixed is taken where bf16 matrix products are this much faster than fp32 ones."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's flags."""
    add = parser.add_argument
    add(
        "--memory-limit",
        type=parsing.size("--memory-limit"),
        default=MEMORY_LIMIT,
        help=f"what tensors may take (default {format_bytes(MEMORY_LIMIT)})",
    )
    add(
        "--out",
        type=output_paths.output_folder("--out"),
        default=None,
        help="folder of the run (default runs/...)",
    )
    add(
        "--steps",
        type=parsing.whole("--steps"),
        default=NUM_STEPS,
        help=f"optimizer steps (default {NUM_STEPS})",
    )


def run(args: argparse.Namespace) -> int:
    """Climb the ladder."""
    from brimful.process.library_output import quiet_libraries

    quiet_libraries()
    out = args.out or Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    cluster = _probe(args.memory_limit)
    found = _plan(cluster, args.steps)
    plan = found.plan
    if not found.record.rows[0].fits:
        _headline("nothing fits", "give a larger --memory-limit")
        return DOES_NOT_FIT
    from brimful.files.writing import write_text
    from brimful.report.run_folder import record_command
    from brimful.values.plan import write_yaml

    write_yaml(found.plan, out / "plan.yaml")
    write_text(out / "search.json", json_text(found.record))
    record_command(out, sys.argv)
    _simulate(plan, out)
    _train(out)
    return _report(out)


def _headline(title: str, rest: str = "") -> None:
    say(f"\n== {title} {'- ' + rest if rest else ''}".rstrip(), flush=True)


def _probe(memory_limit_bytes: int) -> Cluster:
    from brimful.cli.progress import Progress
    from brimful.hardware.calibration import QUIET_LOAD, load_calibration
    from brimful.hardware.gpus import load_cluster
    from brimful.hardware.probe import probe_local
    from brimful.report.text import device_table

    _headline("1 of 6: this machine", "its rates are measured once and remembered")
    device = probe_local()
    stored = load_calibration(device.description)
    if not device.calibrated or stored is None or stored.others_load > QUIET_LOAD:
        from brimful.measure.calibrate import calibrate

        with Progress("calibrating", quiet=False) as progress:
            device = calibrate(device, on_progress=progress.update)
    show(device_table(device))
    return load_cluster("local", memory_limit_bytes=memory_limit_bytes)


def _precision(device: Device) -> Precision:
    rates = device.matrix_flops_per_s
    faster = rates.bf16 >= MIXED_GAIN * rates.fp32
    name: Precision = "bf16-mixed" if faster else "fp32"
    say(
        f"precision {name}: bf16 matrix products run at "
        f"{rates.bf16 / rates.fp32:.2f} x the rate of fp32 here"
    )
    return name


def _job(precision: Precision, num_steps: int) -> Job:
    from brimful.models.config import read_config

    return plain_job(
        read_config("demo-25m", MODEL),
        precision=precision,
        seq_len=SEQ_LEN,
        global_batch=GLOBAL_BATCH,
        num_steps=num_steps,
        learning_rate=LEARNING_RATE,
        warmup_steps=max(1, num_steps // 10),
    )


def _plan(cluster: Cluster, num_steps: int) -> "Solution":
    from brimful.cost.estimate import estimate
    from brimful.models.config import parameter_count
    from brimful.search.pins import Pins
    from brimful.search.solve import solve
    from brimful.show.plan import plan_summary
    from brimful.show.run import RunFacts, speed_facts
    from brimful.values.strategy import Strategy

    _headline("2 of 6: the job", "a decoder on the Python standard library's own sources")
    precision = _precision(cluster.device)
    job = _job(precision, num_steps)
    total = parameter_count(job.model).total
    say(f"{job.model.name}: {format_count(total)} parameters, {job.tokens_per_step} tokens a step")
    naive = Strategy(
        micro_batch=GLOBAL_BATCH,
        activation_checkpointing="none",
        loss_chunks=1,
        attention="sdpa",
    )
    peak = estimate(job, cluster, naive).predicted_peak_allocated_bytes
    say(
        f"naive settings (whole batch at once) need {format_bytes(peak)}; "
        f"the limit is {format_bytes(offered_bytes(cluster))}"
    )
    _headline("3 of 6: the plan", "every strategy is predicted, the fastest that fits wins")
    found = solve(job, cluster, Pins(None, None, None), attention="sdpa", objective="time")
    made = found.plan.estimate
    step_s = made.predicted_step_s if made else None
    facts = speed_facts(job, made, step_s, cluster=cluster) if made else ()
    show_summary(plan_summary(found, RunFacts(facts)))
    return found


def _simulate(plan: "Plan", out: Path) -> None:
    from brimful.files.writing import write_text
    from brimful.simulate.run import simulate

    _headline("4 of 6: the simulation", "the plan's own code on a pretend GPU")
    simulation = simulate(plan.job, plan.cluster, plan.strategy)
    write_text(out / "simulation.json", json_text(simulation))
    say(
        f"simulated peak {format_bytes(simulation.simulated_peak_allocated_bytes)} in "
        f"{format_seconds(simulation.simulate_s)}, {simulation.num_events} allocations and frees"
    )


def _train(out: Path) -> None:
    """Train in a process of its own, so that what is measured never saw the tape."""
    _headline("5 of 6: the run", f"measured; Ctrl-C stops it with a checkpoint in {out}")
    command = [sys.executable, "-m", "brimful", "train", str(out / "plan.yaml")]
    command += ["--data", "stdlib", "--out", str(out)]
    done = subprocess.run(command, check=False)  # noqa: S603 - our own command line
    if done.returncode != FITS:
        raise RunError(f"training ended with exit code {done.returncode}; its message is above")


def _report(out: Path) -> int:
    from brimful.report.html import write_report

    _headline("6 of 6: the report")
    say(f"open {write_report(out)}")
    return FITS
