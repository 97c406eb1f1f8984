"""Both memories of offloaded and early-updated steps: simulations against real runs on a CPU."""

import random
from typing import Any, NamedTuple

import msgspec
from cases import Case
from evidence import Refusal, Summary, describe_case, relative, spread_of
from offload_rows import OffloadRow
from parity_part import ADAPTER
from progress import shown
from sampler import cluster_of
from worker import meter

from brimful.errors import InputError, UnsupportedError
from brimful.models.config import read_config
from brimful.simulate.run import simulate
from brimful.techniques.runnable import check_strategy
from brimful.units import MIB
from brimful.values.job import Job, check_job, plain_job
from brimful.values.strategy import Strategy, num_micro_batches

NUM_CASES, NUM_QUICK_CASES = 44, 2
SHARE_BAR, BYTES_BAR = 0.005, MIB
MAX_DRAWS = 2000
_LLAMA: dict[str, Any] = {
    "model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 4,
    "tie_word_embeddings": False, "max_position_embeddings": 1024,
}  # fmt: skip
_GPT2: dict[str, Any] = {
    "model_type": "gpt2", "n_head": 8, "n_positions": 1024, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
FACTORS: dict[str, tuple[str, ...]] = {
    "architecture": ("llama", "llama-tied", "gpt2-tied"),
    "precision": ("fp32", "bf16", "bf16-mixed", "bf16-master"),
    "optimizer": ("adamw", "adamw-foreach", "sgd"),
    "checkpointing": ("none", "full", "full:2", "selective"),
    "away": (
        "optimizer", "parameters", "parameters:2", "activations", "activations:3",
        "parameters:3,activations:2", "optimizer,activations", "early", "early,activations:2",
        "early,parameters", "early,parameters:2,activations:1", "early,optimizer,parameters",
        "early,optimizer,parameters:2,activations:1",
    ),
    "accumulation": ("1", "2", "2 held"),
    "method": ("full", "full", "lora"),
    "attention": ("sdpa", "eager"),
}  # fmt: skip
"""What is drawn from; sizes are drawn besides."""


class _Sizes(NamedTuple):
    """Of a model and a batch."""

    width: int
    layers: int
    vocab: int
    seq_len: int
    micro_batch: int


def run(*, seed: int, quick: bool) -> tuple[list[OffloadRow], Summary]:
    """Draw, simulate and measure."""
    rng = random.Random(seed)  # noqa: S311 - cases, not secrets
    cases, refusals = draw(rng, NUM_QUICK_CASES if quick else NUM_CASES)
    rows = [compare(case) for case in shown("offload", cases)]
    return rows, summarize(rows, refusals)


def draw(rng: random.Random, num_cases: int) -> tuple[list[Case], dict[str, int]]:
    """Draw cases, every kind of offload in turn; what cannot run is drawn again and counted."""
    cases: list[Case] = []
    refusals: dict[str, int] = {}
    kinds = FACTORS["away"]
    for _ in range(MAX_DRAWS):
        if len(cases) == num_cases:
            break
        cell = {name: rng.choice(values) for name, values in FACTORS.items()}
        cell["away"] = kinds[len(cases) % len(kinds)]
        try:
            cases.append(_case(cell, _sizes(rng)))
        except (InputError, UnsupportedError) as error:
            reason = str(error).partition(";")[0][:100]
            refusals[reason] = refusals.get(reason, 0) + 1
    return cases, refusals


def _sizes(rng: random.Random) -> _Sizes:
    return _Sizes(
        width=32 * rng.randint(8, 20),
        layers=rng.randint(4, 8),
        vocab=rng.randint(1000, 8000),
        seq_len=rng.choice((128, 256, 384)),
        micro_batch=rng.randint(1, 4),
    )


def _case(cell: dict[str, str], sizes: _Sizes) -> Case:
    num_micro = int(cell["accumulation"][0])
    is_early = cell["away"].startswith("early")
    offload = cell["away"].removeprefix("early").removeprefix(",") or "none"
    job = _job(cell, sizes, global_batch=num_micro * sizes.micro_batch, clip=0.0 if is_early else 1)
    strategy = Strategy(
        micro_batch=sizes.micro_batch,
        activation_checkpointing=cell["checkpointing"],
        loss_chunks=1,
        attention="eager" if cell["attention"] == "eager" else "sdpa",
        accumulate="hold" if cell["accumulation"].endswith("held") else "reduce-each",
        offload=offload,
        optimizer_in_backward=is_early,
    )
    return Case(job=check_job(job), strategy=check_strategy(job, strategy), kernels="cpu")


def _job(cell: dict[str, str], sizes: _Sizes, **changes: Any) -> Job:
    kind, _, tied = cell["architecture"].partition("-")
    if kind == "gpt2":
        config = {**_GPT2, "n_embd": sizes.width, "n_layer": sizes.layers}
    else:
        wide = {"hidden_size": sizes.width, "intermediate_size": 3 * sizes.width}
        config = {**_LLAMA, **wide, "num_hidden_layers": sizes.layers}
        config["tie_word_embeddings"] = bool(tied)
    adapted = {"method": "lora", "adapter": ADAPTER} if cell["method"] == "lora" else {}
    return plain_job(
        read_config("drawn", {**config, "vocab_size": sizes.vocab}),
        seq_len=sizes.seq_len,
        precision=cell["precision"],
        optimizer=cell["optimizer"],
        num_steps=2,
        **adapted,
        **changes,
    )


def compare(case: Case) -> OffloadRow:
    """Simulate a case and run it."""
    cluster = cluster_of("cpu")
    simulated = simulate(case.job, cluster, case.strategy)
    plain = msgspec.structs.replace(case.strategy, offload="none", optimizer_in_backward=False)
    metered = meter(case)
    device, host = metered.measured_peak_allocated_bytes, metered.measured_peak_host_bytes or 0
    return OffloadRow(
        case=case,
        simulated_peak_allocated_bytes=simulated.simulated_peak_allocated_bytes,
        measured_peak_allocated_bytes=device,
        simulated_peak_host_bytes=simulated.simulated_peak_host_bytes,
        measured_peak_host_bytes=host,
        plain_peak_allocated_bytes=simulate(
            case.job, cluster, plain
        ).simulated_peak_allocated_bytes,
        peak_error=relative(simulated.simulated_peak_allocated_bytes, device),
        host_error=relative(simulated.simulated_peak_host_bytes, host) if host else None,
    )


def summarize(rows: list[OffloadRow], refusals: dict[str, int]) -> Summary:
    """Sum up, and say which cases miss the bar."""
    away = [row.host_error for row in rows if row.host_error is not None]
    several = sum(num_micro_batches(row.case.job, row.case.strategy) > 1 for row in rows)
    saved = [1 - row.measured_peak_allocated_bytes / row.plain_peak_allocated_bytes for row in rows]
    return Summary(
        num_drawn=len(rows) + sum(refusals.values()),
        refusals=tuple(Refusal(reason=r, num_draws=n) for r, n in sorted(refusals.items())),
        num_cases=len(rows),
        num_rich=0,
        spreads=(
            spread_of("device peak", [row.peak_error for row in rows]),
            spread_of("host peak", away),
        ),
        bars=(f"device and host peak each within max({SHARE_BAR:.1%}, 1 MiB)",),
        findings=(
            f"the device's peak is {min(saved):.0%} to {max(saved):.0%} lower than without",
            f"{len(away)} of {len(rows)} keep something on the host, {several} accumulate",
        ),
        missed=tuple(_missed(rows)),
    )


def _missed(rows: list[OffloadRow]) -> list[str]:
    pairs = [
        (name, row, simulated - measured, measured)
        for row in rows
        for name, simulated, measured in (
            ("device", row.simulated_peak_allocated_bytes, row.measured_peak_allocated_bytes),
            ("host", row.simulated_peak_host_bytes, row.measured_peak_host_bytes),
        )
    ]
    return [
        f"{name} {difference:+d} bytes: {describe_case(row.case)} {row.case.strategy.offload}"
        for name, row, difference, measured in pairs
        if abs(difference) > max(SHARE_BAR * measured, BYTES_BAR)
    ]
