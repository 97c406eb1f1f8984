"""Runs whose memory was measured, as peers are told of them; fixed before any peer was asked.

Everything a peer has a switch for is told to it. What it has no switch for is a reason to leave the
row out of its score where it changes what is held (adapters, sharding it does not know), and is
passed over where it only changes details (pieces of the loss, kernels). Reasons are counted.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cases import Case
from peer_rows import Ask, EstimatorRow, MemoryClass
from sampler import cluster_of

from brimful.cost.estimate import estimate
from brimful.cost.recipes import RECIPES
from brimful.cost.states import held_bytes
from brimful.errors import BrimfulError
from brimful.hardware.gpus import load_cluster
from brimful.models.config import layout_of, parameter_count
from brimful.models.layout import parts
from brimful.models.spec import ModelSpec
from brimful.published.express import Expressed, express, model_of
from brimful.published.predict import Predicted, predict
from brimful.published.rows import PublishedRun, published_runs
from brimful.units import GIB
from brimful.values.job import Job
from brimful.values.strategy import num_checkpointed

VALIDATION = Path(__file__).parents[2] / "validation"
UNGATED = frozenset({"gpt2", "gpt_bigcode", "gpt_neox", "falcon", "phi", "mpt", "bert"})
FP32 = frozenset({"fp32", "tf32"})
ADAM = frozenset({"adamw", "adamw-foreach"})
MOMENTS = 2
LLM_DEFAULT, LLM_TUNED = "llm-analysis", "llm-analysis, tuned"
ACCELERATE, DEEPSPEED = "accelerate estimate-memory", "DeepSpeed's estimators"
ELEUTHER, KORTHIKANTI, HALF_AGAIN = "EleutherAI's calculator", "16 B + Korthikanti", "held x 1.5"
CALLED = (LLM_DEFAULT, LLM_TUNED, ACCELERATE, DEEPSPEED)
STATED = (ELEUTHER, KORTHIKANTI, HALF_AGAIN)
PEERS = (*CALLED, *STATED)


class Subject(NamedTuple):
    """A row without answers, and what peers are told; ``told`` is None where nothing can be."""

    row: EstimatorRow
    told: Ask | None


def published_subjects() -> Iterator[Subject]:
    """Yield every carried run, predicted by us where a formula covers it."""
    simulated = _simulated()
    for run in published_runs():
        memory, measured = _figure(run)
        predicted = predict(run)
        row = EstimatorRow(
            id=run.id,
            source="published",
            family=run.family,
            memory=memory,
            measured_bytes=measured,
            measured_tokens_per_s=run.tokens_per_s,
            simulated_bytes=simulated.get((run.id, memory)),
            gpu_bytes=_usable(run),
            unlike=run.unlike,
            **_said(predicted, memory),
        )
        yield Subject(row, _told_of_published(run))


def every_ask() -> Iterator[Ask]:
    """Yield what peers are told of every row that can be told, without predicting it."""
    published = map(_told_of_published, published_runs())
    own = (_told_of_case(name, row.case) for name, _, row in _own_rows())
    yield from (ask for ask in (*published, *own) if ask)


def _figure(run: PublishedRun) -> tuple[MemoryClass | str, float | None]:
    """Return the class and bytes of the figure nearest to what peers claim: live tensors first."""
    live = run.allocated_gib or run.active_gib
    figures = {"live": live, "reserved": run.reserved_gib, "process": run.process_gib}
    known = [(name, gib * GIB) for name, gib in figures.items() if gib]
    return known[0] if known else ("", None)


def _said(predicted, memory: str) -> dict[str, object]:  # type: ignore[no-untyped-def]  # noqa: ANN001 - either of two values
    """Return our figures; of a band its middle."""
    if not isinstance(predicted, Predicted):
        return {"reason": predicted.reason}
    bands = {"reserved": predicted.reserved_bytes, "process": predicted.process_bytes}
    said: float | None = predicted.allocated_bytes
    if memory in bands:
        band = bands[memory]
        said = (band.low + band.high) / 2 if band else None
    speed = predicted.tokens_per_s
    return {"predicted_bytes": said if memory else None, "predicted_tokens_per_s": speed}


def _simulated() -> dict[tuple[str, str], float]:
    """Return what published programs took on the pretend GPU, by row and class."""
    classes = {"allocated": "live", "active": "live"}
    rows = json.loads((VALIDATION / "published.json").read_bytes())["rows"]
    return {
        (row["id"], classes.get(row["mem_class"], row["mem_class"])): row["simulated_gib"] * GIB
        for row in rows
        if row["simulated_gib"]
    }


def _usable(run: PublishedRun) -> int | None:
    """Return what the run's GPU can give, as its source says or as the data sheet."""
    if run.usable_gib is not None:
        return round(run.usable_gib * GIB)
    try:
        return load_cluster(run.gpu, memory_limit_bytes=None).device.usable_bytes
    except BrimfulError:
        return None


def _told_of_published(run: PublishedRun) -> Ask | None:
    try:
        model = model_of(run.model)
        sizes = _sizes(model)
        expressed = express(run)
    except BrimfulError:
        return None
    held = None
    alone = run.dp_shard * run.dp_replicate * run.tp * run.pp == 1
    if run.method != "full" and alone and isinstance(expressed, Expressed):
        held = held_bytes(expressed.job)
    return Ask(
        id=run.id,
        gpu=run.gpu,
        gpu_bytes=_usable(run),
        held_bytes=held,
        attention=run.attention,
        seq_len=run.seq_len,
        micro_batch=run.micro_batch,
        accumulation=run.accumulation,
        checkpointing="part" if ":" in run.checkpointing else run.checkpointing,
        zero=run.zero,
        dp_shard=run.dp_shard,
        dp_replicate=run.dp_replicate,
        tp=run.tp,
        pp=run.pp,
        **sizes,
        **_recipe(run.method, run.precision, run.optimizer),
    )


def _sizes(model: ModelSpec) -> dict[str, object]:
    """Return what a configuration says, and the parameters that its layout counts.

    Raises:
        BrimfulError: The model has no layout.
    """
    layout = layout_of(model)
    return {
        "hidden": model.hidden_size,
        "layers": model.num_layers,
        "heads": model.num_heads,
        "kv_heads": model.num_kv_heads,
        "intermediate": model.intermediate_size,
        "gated": model.model_type not in UNGATED,
        "vocab": model.vocab_size,
        "max_seq": model.max_seq_len,
        "num_parameters": parameter_count(model).total,
        "largest_layer": max(p.num_elements for group, _ in parts(layout) for p in group),
    }


def _recipe(method: str, precision: str, optimizer: str) -> dict[str, object]:
    recipe = RECIPES[precision]  # type: ignore[index]
    states = {"sgd": 0.0, "adamw-8bit": 2.0, **dict.fromkeys(ADAM, MOMENTS * recipe.updated)}
    moments = states.get(optimizer)
    return {
        "method": method,
        "precision": precision,
        "optimizer": optimizer,
        "weight_bytes": recipe.parameter,
        "gradient_bytes": recipe.gradient,
        "state_bytes": None if moments is None else moments + recipe.master,
    }


def own_subjects() -> Iterator[Subject]:
    """Yield what was measured here on a CPU: full training, then techniques without a formula."""
    yield from (_own(*each) for each in _own_rows())


def _own_rows() -> Iterator[tuple[str, str, object]]:
    """Yield every row of that evidence with its name and the part that it is of."""
    from evidence import read_evidence

    for part in ("simulated_vs_measured", "techniques"):
        for number, row in enumerate(read_evidence(part, VALIDATION).rows):  # type: ignore[arg-type]
            yield f"{part}-{number}", part, row


def _own(name: str, part: str, row) -> Subject:  # type: ignore[no-untyped-def]  # noqa: ANN001 - two kinds of rows
    case: Case = row.case
    said, reason = None, ""
    try:
        made = estimate(case.job, cluster_of(case.kernels), case.strategy)
        said = made.predicted_peak_allocated_bytes
    except BrimfulError as error:
        reason = str(error).partition(";")[0]
    measured = EstimatorRow(
        id=name,
        source="own",
        family=part,
        memory="live",
        measured_bytes=row.measured_peak_allocated_bytes,
        predicted_bytes=said,
        reason=reason,
        simulated_bytes=row.simulated_peak_allocated_bytes,
    )
    return Subject(measured, _told_of_case(name, case))


def _told_of_case(name: str, case: Case) -> Ask | None:
    job, strategy = case.job, case.strategy
    if job.task != "causal-lm":
        return None
    try:
        sizes = _sizes(job.model)
        held = None if job.method == "full" else held_bytes(job)
    except BrimfulError:
        return None
    return Ask(
        id=name,
        gpu="cpu",
        gpu_bytes=None,
        held_bytes=held,
        attention=strategy.attention,
        seq_len=job.seq_len,
        micro_batch=strategy.micro_batch,
        accumulation=job.global_batch // strategy.micro_batch,
        checkpointing=_checkpointing(job, strategy),
        zero=0,
        dp_shard=1,
        dp_replicate=1,
        tp=1,
        pp=1,
        **sizes,
        **_recipe(job.method, job.precision, job.optimizer),
    )


def _checkpointing(job: Job, strategy) -> str:  # type: ignore[no-untyped-def]  # noqa: ANN001 - Strategy
    kind = strategy.activation_checkpointing.partition(":")[0]
    number = num_checkpointed(strategy, num_layers=job.model.num_layers)
    return "none" if not number else kind if number == job.model.num_layers else "part"


def why_not(peer: str, ask: Ask) -> str:  # noqa: PLR0911 - a reason each
    """Say why a peer cannot be told of a run; empty where it can.

    Args:
        peer: One of ``PEERS``.
        ask: The run.
    """
    world = ask.dp_shard * ask.dp_replicate * ask.tp * ask.pp
    if peer == HALF_AGAIN:
        lost = ask.held_bytes is None and (ask.method != "full" or ask.state_bytes is None)
        return "what is held has no closed form here" if lost else ""
    if ask.method != "full":
        return "adapters"
    if ask.precision in FP32 and peer in {LLM_DEFAULT, LLM_TUNED, KORTHIKANTI}:
        return "activations of 16 bits only"
    if ask.checkpointing == "part" and peer in {LLM_DEFAULT, LLM_TUNED, ELEUTHER, KORTHIKANTI}:
        return "some blocks checkpointed"
    if peer == LLM_TUNED:
        return "" if ask.state_bytes is not None else f"optimizer={ask.optimizer}"
    if ask.optimizer not in ADAM:
        return f"optimizer={ask.optimizer}"
    if peer == ACCELERATE:
        return "several devices" if world > 1 else ""
    if peer == DEEPSPEED:
        return _why_not_deepspeed(ask, world)
    return ""


def _why_not_deepspeed(ask: Ask, world: int) -> str:
    if ask.precision not in {"bf16-mixed", "fp16-mixed", "bf16-master", "fp16-master"}:
        return "mixed precision only"
    if ask.tp * ask.pp > 1 or (world > 1 and ask.zero not in {2, 3}):
        return "ZeRO-2 and 3 only"
    return ""
