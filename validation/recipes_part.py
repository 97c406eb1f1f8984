"""Precision recipes side by side: fp16-mixed beside bf16-mixed, and what becomes of fp16 alone.

Each comparison is ``brimful precision --compare --json`` in a process of its own: the job that
``brimful demo`` trains, its model narrowed for the sake of a CPU without units for fp16, and the
two examples as they are. Once more with the epsilon that the doctor advises: is it the cause?
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec
from cases import Case
from evidence import Summary, spread_of
from progress import shown
from recipe_rows import ComparedRow

from brimful.cli.demo import GLOBAL_BATCH, LEARNING_RATE, MODEL, NUM_STEPS
from brimful.compare.record import Comparison, RecipeRow

EXAMPLES = Path(__file__).parents[1] / "examples"
BAR = 0.01
RECIPES = ("fp32", "bf16-mixed", "fp16-mixed", "fp16")
MIXED, REFERENCE, PURE = "fp16-mixed", "bf16-mixed", "fp16"
NUM_SEEDS, NUM_QUICK_STEPS = 3, 6
NARROW = {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2, "vocab_size": 512}
DEMO_FILE = "demo.json"
ADVISED = "with the epsilon that is advised"
"""Ends the name of a job that is run to see that the doctor names the cause."""


class Asked(NamedTuple):
    """One comparison: its name, the arguments of the command, and which recipes."""

    name: str
    arguments: tuple[str, ...]
    recipes: tuple[str, ...] = RECIPES


_DEMO = (
    DEMO_FILE, "--data", "stdlib", "--precision", "fp32", "--seq-len", "64",
    "--global-batch", str(GLOBAL_BATCH), "--micro-batch", str(GLOBAL_BATCH), "--ac", "none",
    "--loss-chunks", "1", "--learning-rate", str(LEARNING_RATE), "--steps", str(NUM_STEPS),
    "--warmup-steps", str(NUM_STEPS // 10),
)  # fmt: skip
_DECODER = ("examples/recipes/decoder.yaml",)
ASKED = (
    Asked("demo", _DEMO),
    Asked("decoder", _DECODER),
    Asked("classifier", ("examples/recipes/classifier.yaml",)),
    Asked(f"decoder {ADVISED}", (*_DECODER, "--epsilon", "1e-4"), ("fp32", PURE)),
)


def run(*, seed: int, quick: bool) -> tuple[list[ComparedRow], Summary]:
    """Compare every job's recipes; nothing is drawn but the first of the seeds."""
    asked = ASKED[1:2] if quick else ASKED
    with tempfile.TemporaryDirectory() as folder:
        _prepare(Path(folder))
        made = [
            (each.name, compare(each, Path(folder), seed=seed, quick=quick))
            for each in shown("recipes", asked)
        ]
    rows = [row for name, comparison in made for row in rows_of(name, comparison)]
    return rows, summarize(rows)


def _prepare(folder: Path) -> None:
    """Lay the examples, their data and the demo's model out as their page says."""
    shutil.copytree(EXAMPLES, folder / "examples")
    command = [sys.executable, "examples/make_data.py", "classify", "data/classify.csv"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)  # noqa: S603 - ours
    (folder / DEMO_FILE).write_text(json.dumps({**MODEL, **NARROW}))


def compare(asked: Asked, folder: Path, *, seed: int, quick: bool) -> Comparison:
    """Run one comparison as users do.

    Raises:
        subprocess.CalledProcessError: It failed; its message is on stderr.
    """
    command = [sys.executable, "-m", "brimful", "precision", *asked.arguments]
    command += ["--gpus", "local", "--compare", ",".join(asked.recipes), "--json"]
    command += ["--seed", str(seed), "--seeds", str(1 if quick else NUM_SEEDS)]
    command += ["--steps", str(NUM_QUICK_STEPS), "--warmup-steps", "0"] if quick else []
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE)  # noqa: S603
    return msgspec.json.decode(done.stdout, type=Comparison)


def rows_of(name: str, made: Comparison) -> list[ComparedRow]:
    """Return a row per recipe of a comparison."""
    plain = next((row for row in made.rows if row.recipe == REFERENCE), None)
    return [_row(name, made, row, plain) for row in made.rows]


def _row(name: str, made: Comparison, row: RecipeRow, plain: RecipeRow | None) -> ComparedRow:
    job = msgspec.structs.replace(
        made.job, precision=row.recipe, loss_scale=row.loss_scale, seed=made.seeds[0]
    )
    return ComparedRow(
        name=name,
        case=Case(job=job, strategy=made.strategy, kernels="cpu"),
        gap=None if plain is None else gap(row, plain),
        row=row,
    )


def gap(row: RecipeRow, plain: RecipeRow) -> float | None:
    """Return the mean over seeds of a recipe's held-out loss relative to another's, less one."""
    losses = {run.seed: run.heldout_loss for run in plain.runs}
    pairs = [(run.heldout_loss, losses.get(run.seed)) for run in row.runs]
    found = [own / other - 1 for own, other in pairs if own is not None and other is not None]
    return statistics.fmean(found) if found else None


def summarize(rows: list[ComparedRow]) -> Summary:
    """Sum up, and say which recipes are not as they should be."""
    mixed = [row for row in rows if row.row.recipe == MIXED]
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(spread_of("fp16-mixed", [row.gap for row in mixed if row.gap is not None]),),
        bars=(
            f"fp16-mixed within {BAR:.0%} of bf16-mixed in held-out loss by the mean of the seeds",
            "no run in fp16-mixed fails",
            "fp16 alone fails, or is more than 1% above fp32, and the doctor names its epsilon",
            "with the epsilon that is advised it is neither",
        ),
        missed=tuple(
            f"{row.name}, {row.row.recipe}: {_missed(row)}" for row in rows if _missed(row)
        ),
        findings=tuple(_finding(row) for row in rows),
    )


def _missed(row: ComparedRow) -> str:
    """Say what is not as it should be; empty where all is."""
    told = row.row
    if told.recipe == MIXED and (told.num_failed or row.gap is None or abs(row.gap) > BAR):
        return f"gap {row.gap}, {told.num_failed} failed"
    if told.recipe != PURE:
        return ""
    if row.name.endswith(ADVISED):
        return "worse or failed" if told.is_in_doubt else ""
    if not told.is_in_doubt:
        return "neither worse nor failed"
    fault = None if told.finding is None else told.finding.fault
    return "" if fault == "epsilon" else f"the doctor says {fault}"


def _finding(row: ComparedRow) -> str:
    """Say in a line what became of a recipe."""
    told = row.row
    loss, failed = told.heldout_loss, [run.failed_step for run in told.runs if run.reason]
    said = f"{row.name}, {told.recipe}:"
    if loss is not None:
        said += f" held-out loss {loss.mean:.4f} ({loss.low:.4f} to {loss.high:.4f})"
    if told.to_reference is not None:
        said += f", {told.to_reference.mean:+.2%} of fp32"
    if row.gap is not None:
        said += f", {row.gap:+.2%} of bf16-mixed"
    if failed:
        said += f" {len(failed)} of {len(told.runs)} failed, in steps {failed}"
    return said + ("" if told.finding is None else f"; {told.finding.text}")
