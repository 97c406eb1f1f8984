"""Each process of a group beside the simulation of its rank, on CPU kernels."""

from itertools import groupby
from typing import Any

import msgspec
from cases import Case
from evidence import Summary, describe_case, relative, spread_of
from group import Told, Turn, answers
from group_rows import RankRow
from parity_part import ADAPTER
from progress import shown
from sampler import cluster_of
from small_products import SMALL, describe, drawn

from brimful.models.config import read_config
from brimful.simulate.messages import ALL_TO_ALL
from brimful.simulate.run import num_simulated, simulate
from brimful.techniques.parallel.routing import Routing
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Base, check_job, plain_job
from brimful.values.strategy import Strategy, gathers, num_micro_batches, world_size

BAR = 0.01
_MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 704,
        "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
        "vocab_size": 2048, "tie_word_embeddings": False,
    },
    "gpt2": {
        "model_type": "gpt2", "n_embd": 256, "n_layer": 4, "n_head": 8, "vocab_size": 2048,
        "n_positions": 256, "bos_token_id": None, "eos_token_id": None,
    },
}  # fmt: skip
_MODELS["tied"] = {**_MODELS["llama"], "tie_word_embeddings": True}
_MIXTURE: dict[str, Any] = {
    **_MODELS["llama"],
    "intermediate_size": 384,
    "moe_intermediate_size": 192,
}
_MODELS["mixtral"] = {
    **_MIXTURE, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2,
    "sliding_window": None,
}  # fmt: skip
_MODELS["qwen3_moe"] = {
    **_MIXTURE, "model_type": "qwen3_moe", "num_experts": 16, "num_experts_per_tok": 4,
}  # fmt: skip
_MODELS["deepseek_v3"] = {
    **_MIXTURE, "model_type": "deepseek_v3", "num_key_value_heads": 8, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "first_k_dense_replace": 1, "n_shared_experts": 1, "q_lora_rank": 96,
    "kv_lora_rank": 64, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32,
    "n_group": 4, "topk_group": 2,
}  # fmt: skip
_MODELS["gpt_oss"] = {
    **_MIXTURE, "model_type": "gpt_oss", "num_local_experts": 8, "num_experts_per_tok": 2,
    "head_dim": 32, "sliding_window": 64,
}  # fmt: skip
PLAIN: dict[str, Any] = {
    "micro_batch": 2, "activation_checkpointing": "none", "loss_chunks": 1, "attention": "sdpa",
}  # fmt: skip
_LORA = {"method": "lora", "adapter": ADAPTER}


def _quantized(base: Base) -> dict[str, Any]:
    return {"method": "qlora", "adapter": msgspec.structs.replace(ADAPTER, base=base)}


_WAYS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("llama", {"dp_replicate": 2}, {}),
    ("llama", {"dp_replicate": 2, "accumulate": "hold"}, {}),
    ("llama", {"dp_shard": 2, "zero": 1}, {}),
    ("llama", {"dp_shard": 2, "zero": 2, "loss_chunks": 4}, {}),
    ("llama", {"dp_shard": 2, "zero": 3, "activation_checkpointing": "full"}, {}),
    ("llama", {"dp_shard": 2, "zero": 3}, _LORA),
    ("llama", {"dp_shard": 2, "zero": 3, "activation_checkpointing": "selective:2"}, {}),
    ("llama", {"tp": 2}, {}),
    ("gpt2", {"dp_shard": 2, "zero": 3, "accumulate": "hold"}, {}),
    ("gpt2", {"dp_shard": 2, "zero": 1}, {"optimizer": "sgd"}),
    ("llama", {"dp_shard": 4, "zero": 1}, {}),
    ("llama", {"dp_shard": 4, "zero": 3}, {"optimizer": "adamw-foreach"}),
    ("llama", {"dp_shard": 2, "dp_replicate": 2, "zero": 3}, {}),
    ("llama", {"dp_shard": 2, "zero": 3, "tp": 2}, {}),
    ("gpt2", {"dp_shard": 4, "zero": 2}, {}),
    ("llama", {"dp_shard": 2, "zero": 3}, _quantized("nf4-double")),
    ("llama", {"dp_shard": 4, "zero": 2}, _quantized("int8")),
    ("llama", {"dp_shard": 2, "zero": 3, "offload": "activations"}, {}),
    (
        "llama",
        {"dp_shard": 2, "zero": 2, "offload": "activations:2", "activation_checkpointing": "full"},
        {},
    ),
    ("gpt2", {"dp_replicate": 2, "offload": "activations"}, {}),
    ("llama", {"dp_shard": 2, "zero": 3, "offload": "optimizer"}, {}),
    (
        "llama",
        {"dp_shard": 2, "zero": 2, "offload": "optimizer", "accumulate": "hold"},
        {"precision": "bf16-master"},
    ),
    ("llama", {"dp_shard": 2, "zero": 3, "offload": "optimizer"}, _LORA),
    ("llama", {"dp_shard": 2, "zero": 3, "offload": "optimizer"}, _quantized("nf4")),
    ("tied", {"dp_shard": 4, "zero": 3, "offload": "optimizer"}, {"optimizer": "adamw-foreach"}),
    ("gpt2", {"dp_shard": 2, "zero": 3, "offload": "optimizer,activations", "loss_chunks": 4}, {}),
    (
        "llama",
        {"dp_shard": 2, "dp_replicate": 2, "zero": 3, "offload": "optimizer"},
        {"precision": "bf16-mixed"},
    ),
    ("llama", {"dp_shard": 2, "zero": 3, "tp": 2, "offload": "optimizer"}, {}),
    ("llama", {"tp": 2, "offload": "activations:3"}, {}),
    ("llama", {"pp": 2, "pp_schedule": "gpipe"}, {}),
    ("llama", {"pp": 2, "activation_checkpointing": "full"}, {}),
    ("tied", {"pp": 2}, {"packing": "documents"}),
    ("llama", {"pp": 2, "pp_schedule": "interleaved", "stages_per_device": 2}, {}),
    ("llama", {"pp": 2, "pp_schedule": "zero-bubble", "stages_per_device": 2}, {}),
    ("llama", {"pp": 2, "pp_schedule": "zbv", "stages_per_device": 2}, {}),
    ("llama", {"pp": 2, "pp_schedule": "interleaved", "stages_per_device": 2}, _LORA),
    ("llama", {"pp": 2, "pp_schedule": "dualpipev", "stages_per_device": 2}, {}),
    ("llama", {"pp": 4}, {"optimizer": "adamw-foreach"}),
    ("llama", {"pp": 2, "tp": 2, "loss_chunks": 4}, {}),
    ("llama", {"pp": 2, "dp_shard": 2, "zero": 3, "accumulate": "hold"}, {}),
    ("tied", {"pp": 2, "dp_shard": 2, "zero": 2, "accumulate": "hold"}, {}),
    ("llama", {"pp": 2, "dp_replicate": 2, "accumulate": "hold"}, {}),
    ("mixtral", {"ep": 2, "dp_shard": 2, "zero": 3}, {}),
    ("qwen3_moe", {"ep": 2, "dp_shard": 2, "zero": 2, "activation_checkpointing": "full"}, {}),
    ("deepseek_v3", {"ep": 2, "dp_shard": 2, "zero": 3, "loss_chunks": 4}, {}),
    ("gpt_oss", {"ep": 2, "dp_shard": 2, "zero": 3, "attention": "eager"}, {}),
    ("mixtral", {"ep": 2, "tp": 2}, {}),
    ("mixtral", {"ep": 4, "tp": 4}, {}),
    ("mixtral", {"ep": 4, "dp_shard": 4, "zero": 3, "activation_checkpointing": "selective"}, {}),
    ("mixtral", {"ep": 2, "dp_shard": 4, "zero": 3}, {}),
    ("qwen3_moe", {"ep": 2, "dp_shard": 2, "dp_replicate": 2, "zero": 3}, {}),
    ("qwen3_moe", {"ep": 2, "tp": 2, "dp_shard": 2, "zero": 3}, {}),
    ("mixtral", {"ep": 4, "tp": 2, "dp_shard": 2, "zero": 2}, {}),
    ("mixtral", {"ep": 2, "dp_shard": 2, "zero": 3, "pp": 2, "accumulate": "hold"}, {}),
    ("qwen3_moe", {"ep": 2, "tp": 2, "pp": 2}, {}),
    ("qwen3_moe", {"ep": 2, "dp_shard": 2, "zero": 2, "offload": "optimizer"}, {}),
)
NUM_QUICK_CASES, NUM_DRAWN = 2, 10
NUM_READINGS = 3


def cases() -> list[Case]:
    """List what is run; three micro-batches where gradients are held."""
    return [case_of(kind, {**PLAIN, **ways}, changes) for kind, ways, changes in _WAYS]


def case_of(kind: str, ways: dict[str, Any], changes: dict[str, Any]) -> Case:
    """Make a case of a small model; four micro-batches in a pipeline."""
    strategy = Strategy(**ways)
    each = 4 if strategy.pp > 1 else 3 if strategy.accumulate == "hold" else 1
    batch = strategy.dp_replicate * strategy.dp_shard * strategy.micro_batch * each
    fields: dict[str, Any] = {
        "task": "causal-lm", "packing": "none", "seq_len": 128, "global_batch": batch,
        "num_steps": 2, "seed": 5, "learning_rate": 1e-3, "precision": "fp32",
    }  # fmt: skip
    model = read_config(f"small-{kind}", _MODELS[kind])
    job = check_job(plain_job(model, **{**fields, **changes}))
    return Case(job=job, strategy=check_strategy(job, strategy), kernels="cpu")


def run(*, seed: int, quick: bool) -> tuple[list[RankRow], Summary]:
    """Meter every process of every case, and of products drawn, then simulate each rank."""
    every = [*(own := cases()), *drawn(seed, NUM_DRAWN, SMALL, beside=own)]
    rows = compare(every[:NUM_QUICK_CASES] if quick else every)
    return rows, _summarize(rows)


def compare(chosen: list[Case]) -> list[RankRow]:
    """Meter cases, those of as many devices in one group, and simulate each rank."""
    rows = []
    for size, group in groupby(sorted(chosen, key=_size), key=_size):
        turns = [
            Turn(case=case, num_steps=0, num_readings=NUM_READINGS, watches_collectives=True)
            for case in group
        ]
        told = answers(turns, num_processes=size)
        for turn, of in shown(f"{size} ranks", list(zip(turns, told, strict=True))):
            rows += [_row(turn.case, rank, seen) for rank, seen in enumerate(of)]
    return rows


def _size(case: Case) -> int:
    return world_size(case.strategy)


def _row(case: Case, rank: int, seen: Told) -> RankRow:
    cluster = cluster_of(case.kernels)
    routing = Routing(received=tuple(_of_simulated(case, of_block) for of_block in seen.received))
    found = simulate(case.job, cluster, case.strategy, rank=rank, routing=routing)
    simulated, measured = found.simulated_peak_allocated_bytes, seen.peak_bytes or 0
    return RankRow(
        case=case,
        rank=rank,
        simulated_peak_allocated_bytes=simulated,
        measured_peak_allocated_bytes=measured,
        peak_error=relative(simulated, measured),
        simulated_collectives=found.collectives,
        measured_collectives=seen.collectives,
    )


def _of_simulated(case: Case, passes: tuple[int, ...]) -> tuple[int, ...]:
    """Return what experts got in the micro-batches that are simulated, of those of each step."""
    each, kept = num_micro_batches(case.job, case.strategy), num_simulated(case.job, case.strategy)
    starts = range(0, len(passes), each)
    return tuple(num for start in starts for num in passes[start : start + kept])


def other_messages(row: RankRow) -> list[str]:
    """Say which kinds of collectives are not those that were simulated; empty where all are.

    DDP cuts its buckets anew after the first step, which the simulation does not: of its
    all-reduces the bytes count. What is routed to experts in a micro-batch that is not simulated
    is not known: of such a step's exchanges the calls count.
    """
    case = row.case
    cut_anew = not gathers(case.strategy) and case.strategy.tp == 1
    routed_anew = num_simulated(case.job, case.strategy) < num_micro_batches(
        case.job, case.strategy
    )
    simulated, measured = (
        {of.kind: (of.num_calls, of.num_bytes) for of in told}
        for told in (row.simulated_collectives, row.measured_collectives)
    )
    found = []
    for kind in sorted({*simulated, *measured}):
        pair = [told.get(kind, (0, 0)) for told in (simulated, measured)]
        if cut_anew and kind == "all-reduce":
            pair = [(0, num_bytes) for _, num_bytes in pair]
        if routed_anew and kind == ALL_TO_ALL:
            pair = [(num_calls, 0) for num_calls, _ in pair]
        if pair[0] != pair[1]:
            found.append(f"{kind}: {pair[0]} calls and bytes simulated, {pair[1]} measured")
    return found


def _summarize(rows: list[RankRow]) -> Summary:
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=(spread_of("peak", [row.peak_error for row in rows]),),
        bars=(
            f"each process's peak within {BAR:.0%} of the simulation of its rank",
            "the collectives of a step are those that were simulated, to the byte",
        ),
        findings=(_findings(rows),),
        missed=tuple(
            f"{what}, rank {row.rank}: {describe_case(row.case)} ({describe(row.case)})"
            for row in rows
            for what in (*_other_peak(row), *other_messages(row))
        ),
    )


def _other_peak(row: RankRow) -> list[str]:
    return [f"{row.peak_error:+.2%}"] if abs(row.peak_error) > BAR else []


def _findings(rows: list[RankRow]) -> str:
    of_all = [told for row in rows for told in row.measured_collectives]
    calls, num_bytes = sum(of.num_calls for of in of_all), sum(of.num_bytes for of in of_all)
    return f"{calls:,} collectives of {num_bytes:,} bytes were watched"
