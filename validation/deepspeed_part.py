"""The DeepSpeed engine beside ours, on two processes: losses, norms, peaks, results.

Ragged masked samples, of which one has no target at all, so that a process may have nothing to
learn from. Every case runs by DeepSpeed, by the torch engine with the same stage of ZeRO where that
runs it, and on one device.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from cases import Case
from deepspeed_asks import Ask, Told
from deepspeed_rows import DeepSpeedRow
from deepspeed_site import deepspeed_site, run_group, version_at
from evidence import Summary, describe_case, relative, spread_of

from brimful.errors import InputError, UnsupportedError
from brimful.models.config import read_config
from brimful.techniques.runnable import check_strategy
from brimful.units import format_bytes
from brimful.values.job import Job, check_job, plain_job
from brimful.values.strategy import Strategy, default_accumulate

NUM_PROCESSES = 2
NUM_STEPS = 5
LOSS_BAR = 1e-4
NORM_BAR = {"fp32": 1e-4, "bf16-mixed": 1e-2, "bf16-master": 1e-2}
"""bf16 has three digits, and other sums round others."""
HANDED_OVER_BAR = 1e-5
_WIDTHS: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": 256, "intermediate_size": 688, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 4, "vocab_size": 2048,
    },
    "gpt2": {
        "n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 2048, "n_positions": 128,
        "bos_token_id": None, "eos_token_id": None,
    },
    "bert": {
        "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
        "num_hidden_layers": 3, "vocab_size": 2048, "max_position_embeddings": 128,
        "num_labels": 3,
    },
    "t5": {
        "d_model": 128, "d_ff": 256, "num_heads": 4, "d_kv": 32, "num_layers": 2,
        "num_decoder_layers": 2, "vocab_size": 2048, "decoder_start_token_id": 0,
        "pad_token_id": 0,
    },
}  # fmt: skip
_OTHER_TASKS = (
    ("bert", "masked-lm", "wrapped"), ("bert", "sequence-classification", "none"),
    ("t5", "seq2seq", "none"),
)  # fmt: skip
_STAGES: tuple[tuple[int, str], ...] = (
    (1, "none"), (2, "none"), (3, "none"), (1, "optimizer"), (2, "optimizer"), (3, "optimizer"),
    (3, "parameters"),
)  # fmt: skip


class Sides(NamedTuple):
    """One case three times."""

    deepspeed: Case
    torch: Case | None
    alone: Case


class Seen(NamedTuple):
    """What was told of the three; of many processes by each."""

    deepspeed: list[Told]
    torch: list[Told] | None
    alone: Told


def cases(*, quick: bool) -> list[Sides]:
    """List what is run: every stage, in three recipes, of two architectures."""
    if quick:
        return [_sides(_job("llama"), zero, offload) for zero, offload in _STAGES[1:6:3]]
    return list(_every())


def _every() -> Iterator[Sides]:
    for model_type in ("llama", "gpt2"):
        for precision in ("fp32", "bf16-master"):
            for zero, offload in _STAGES:
                yield _sides(_job(model_type, precision=precision), zero, offload)
    for zero in (1, 2, 3):
        yield _sides(_job("llama", precision="bf16-mixed"), zero, "none")
        # Two samples on two processes: the second has no target.
        yield _sides(_job("llama", global_batch=2), zero, "none", micro_batch=1)
        yield _sides(_job("gpt2", optimizer="sgd", clip=0.1, learning_rate=0.1), zero, "none")
        yield _sides(_job("llama", clip=0.0), zero, "none", activation_checkpointing="full")
        yield _sides(_job("gpt2", packing="documents"), zero, "none", loss_chunks=3)
        for model_type, task, packing in _OTHER_TASKS:
            yield _sides(_job(model_type, task=task, packing=packing), zero, "none")
        for checkpoints in ("none", "full"):
            yield _sides(
                _job("gpt2", dropout="model"), zero, "none", attention="eager",
                activation_checkpointing=checkpoints,
            )  # fmt: skip


def _job(model_type: str, **changes: Any) -> Job:
    model = read_config(f"small-{model_type}", {"model_type": model_type, **_WIDTHS[model_type]})
    fields = {"packing": "none", "seq_len": 64, "global_batch": 8, "num_steps": NUM_STEPS}
    return check_job(plain_job(model, **{**fields, "seed": 5, "learning_rate": 1e-3, **changes}))


def _sides(job: Job, zero: int, offload: str, **changes: Any) -> Sides:
    fields: dict[str, Any] = {
        "micro_batch": 2, "activation_checkpointing": "none", "loss_chunks": 1, "attention": "sdpa",
        **changes,
    }  # fmt: skip
    alone = Strategy(**fields)
    spread: dict[str, Any] = {"zero": zero, "dp_shard": NUM_PROCESSES}
    ours = Strategy(**fields, **spread)
    kept = default_accumulate("deepspeed", spread["zero"])
    theirs = msgspec.structs.replace(ours, engine="deepspeed", offload=offload, accumulate=kept)
    return Sides(_case(job, theirs), _case_or_none(job, ours), _case(job, alone))


def _case(job: Job, strategy: Strategy) -> Case:
    return Case(job=job, strategy=check_strategy(job, strategy), kernels="cpu")


def _case_or_none(job: Job, strategy: Strategy) -> Case | None:
    try:
        return _case(job, strategy)
    except (InputError, UnsupportedError):
        return None


def run(*, seed: int, quick: bool) -> tuple[list[DeepSpeedRow], Summary]:
    """Run every case by both engines and alone; nothing is drawn."""
    del seed
    chosen = cases(quick=quick)
    with deepspeed_site() as site, tempfile.TemporaryDirectory() as folder:
        seen = _seen(chosen, site, folder)
        loaded, version = _loaded(chosen, site, folder), version_at(site)
    rows = [_row(*each, version) for each in zip(chosen, seen, loaded, strict=True)]
    return rows, summarize(rows)


def _seen(chosen: Sequence[Sides], site: str, folder: str) -> list[Seen]:
    """Run each kind of side in a group of its own; what several cases share runs once."""
    theirs = run_group(
        Ask(cases=tuple(sides.deepspeed for sides in chosen), folder=folder),
        site,
        num_processes=NUM_PROCESSES,
    )
    ours = _once([sides.torch for sides in chosen], site, num_processes=NUM_PROCESSES)
    alone = _once([sides.alone for sides in chosen], site, num_processes=1)
    found = []
    for number, sides in enumerate(chosen):
        by_torch = None if sides.torch is None else ours[_key(sides.torch)]
        ranks = [told[number] for told in theirs]
        found.append(Seen(ranks, by_torch, alone[_key(sides.alone)][0]))
    return found


def _once(
    asked: Sequence[Case | None], site: str, *, num_processes: int
) -> dict[bytes, list[Told]]:
    """Run cases that differ, and return what each process told, by case."""
    differing = {_key(case): case for case in asked if case is not None}
    ask = Ask(cases=tuple(differing.values()), folder=None)
    told = run_group(ask, site, num_processes=num_processes)
    by_case = zip(*told, strict=True)
    return {key: list(ranks) for key, ranks in zip(differing, by_case, strict=True)}


def _key(case: Case) -> bytes:
    return msgspec.json.encode(case)


def _loaded(chosen: Sequence[Sides], site: str, folder: str) -> list[Told]:
    """Begin from each model that was handed over, on one device: what is its loss?

    Nothing is dropped, as where held-out losses are computed.
    """
    started = []
    for number, sides in enumerate(chosen):
        weights = str(Path(folder) / str(number))
        one = {"weights": weights, "num_steps": 1, "dropout": "off"}
        job = msgspec.structs.replace(sides.alone.job, **one)
        started.append(msgspec.structs.replace(sides.alone, job=job))
    (told,) = run_group(Ask(cases=tuple(started), folder=None), site, num_processes=1)
    return told


def _row(sides: Sides, seen: Seen, loaded: Told, version: str) -> DeepSpeedRow:
    first, alone, peer = seen.deepspeed[0], seen.alone, seen.torch
    return DeepSpeedRow(
        case=sides.deepspeed,
        peer=sides.torch,
        deepspeed_version=version,
        num_steps=NUM_STEPS,
        loss_error=_farthest(first.losses, alone.losses),
        norm_error=_farthest(first.norms, alone.norms),
        peer_loss_error=None if peer is None else _farthest(first.losses, peer[0].losses),
        heldout_error=abs(relative(first.heldout, alone.heldout)),
        # Its first step is on the samples that ``heldout`` is of.
        handed_over_error=abs(relative(loaded.losses[0], first.heldout)),
        is_config_read=not any(told.misread for told in seen.deepspeed),
        measured_peak_bytes=tuple(told.peak_bytes for told in seen.deepspeed),
        peer_peak_bytes=None if peer is None else tuple(told.peak_bytes for told in peer),
        items=first.items,
        peer_items=None if peer is None else peer[0].items,
    )


def _farthest(ours: Sequence[float | None], theirs: Sequence[float | None]) -> float:
    pairs = zip(ours, theirs, strict=True)
    return max(_apart(one, other) for one, other in pairs)


def _apart(one: float | None, other: float | None) -> float:
    """Return a relative difference; None is a step that was skipped, and is like nothing else."""
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    return abs(relative(one, other))


def summarize(rows: list[DeepSpeedRow]) -> Summary:
    """Sum up, and say which cases miss a bar."""
    peaks = [_peak_ratio(row) - 1 for row in rows if row.peer_peak_bytes is not None]
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(
            spread_of("loss", [row.loss_error for row in rows]),
            spread_of("grad norm", [row.norm_error for row in rows]),
            spread_of("handed over", [row.handed_over_error for row in rows]),
            spread_of("peak to ours", peaks),
        ),
        bars=(
            f"losses of {NUM_STEPS} steps within {LOSS_BAR:g} of one device's and of our engine's",
            f"gradient norms within {NORM_BAR['fp32']:g}, of bf16 {NORM_BAR['bf16-master']:g}",
            f"the model handed over has the loss of the program, to {HANDED_OVER_BAR:g}",
            "DeepSpeed's own parser reads each JSON as it was meant",
        ),
        missed=tuple(f"{text}: {_describe(row)}" for row in rows for text in _misses(row)),
        findings=(
            f"by DeepSpeed {', '.join(sorted({row.deepspeed_version for row in rows}))}",
            *(_finding(row) for row in rows if row.case.job.precision != "bf16-mixed"),
        ),
    )


def _misses(row: DeepSpeedRow) -> Iterator[str]:
    worst = max(row.loss_error, row.peer_loss_error or 0.0, row.heldout_error)
    if not worst <= LOSS_BAR:
        yield f"loss {worst:.1e}"
    if not row.norm_error <= NORM_BAR[row.case.job.precision]:
        yield f"norm {row.norm_error:.1e}"
    if not row.handed_over_error <= HANDED_OVER_BAR:
        yield f"handed over {row.handed_over_error:.1e}"
    if not row.is_config_read:
        yield "its JSON was misread"


def _peak_ratio(row: DeepSpeedRow) -> float:
    assert row.peer_peak_bytes is not None
    return max(row.measured_peak_bytes) / max(row.peer_peak_bytes)


def _describe(row: DeepSpeedRow) -> str:
    return f"{describe_case(row.case)} offload {row.case.strategy.offload}"


def _finding(row: DeepSpeedRow) -> str:
    """Say in a line how the peaks compare."""
    strategy, job = row.case.strategy, row.case.job
    ours = "not run by torch"
    if row.peer_peak_bytes is not None:
        ours = f"ours {format_bytes(max(row.peer_peak_bytes))} ({_peak_ratio(row):.2f} x)"
    return (
        f"{job.model.name} {job.precision} {job.optimizer} zero {strategy.zero} offload "
        f"{strategy.offload}: peak {format_bytes(max(row.measured_peak_bytes))}, {ours}"
    )
