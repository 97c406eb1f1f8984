"""Products of what spreads a run over devices, against the plain loop in one process.

Real processes that speak by gloo, fp32, ragged masked samples, one of which has no target at all;
in some cases it is all that one process has.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import msgspec
from cases import Case
from evidence import ParityRow, Summary, describe_case
from group import Told, Turn, answers
from parity_part import ADAPTER, CONFIGS
from parity_summary import LOSS_BAR, NORM_BAR, farthest, parity_summary
from rounding import NAMED, ROUNDED, bars_of
from small_products import TINY, describe, drawn

from brimful.errors import BrimfulError
from brimful.models.config import read_config
from brimful.techniques.runnable import check_strategy
from brimful.values.job import Base, Job, check_job, plain_job
from brimful.values.strategy import Strategy, data_parallel, world_size

NUM_STEPS = 5
SEQ_LEN = 24
NUM_QUICK_CASES, NUM_DRAWN = 4, 10
_PLAIN: dict[str, Any] = {
    "micro_batch": 1, "activation_checkpointing": "none", "loss_chunks": 1, "attention": "sdpa",
}  # fmt: skip
_ON_TWO: tuple[dict[str, Any], ...] = (
    {"dp_replicate": 2},
    {"dp_shard": 2, "zero": 1},
    {"dp_shard": 2, "zero": 2},
    {"dp_shard": 2, "zero": 3},
    {"tp": 2},
    {"dp_shard": 2, "zero": 3, "offload": "activations"},
    {"tp": 2, "offload": "activations:1"},
    {"dp_shard": 2, "zero": 3, "offload": "optimizer"},
    {"dp_shard": 2, "zero": 2, "offload": "optimizer,activations:1"},
)
_ON_FOUR: tuple[dict[str, Any], ...] = (
    {"dp_replicate": 4},
    {"dp_shard": 4, "zero": 1},
    {"dp_shard": 4, "zero": 2},
    {"dp_shard": 4, "zero": 3},
    {"dp_shard": 2, "dp_replicate": 2, "zero": 3},
    {"dp_shard": 2, "dp_replicate": 2, "zero": 2},
    {"dp_shard": 2, "zero": 3, "tp": 2},
    {"dp_shard": 2, "zero": 2, "tp": 2},
    {"dp_replicate": 2, "tp": 2},
    {"tp": 4},
    {"dp_shard": 2, "dp_replicate": 2, "zero": 3, "offload": "optimizer"},
    {"dp_shard": 2, "zero": 3, "tp": 2, "offload": "optimizer"},
)
_ROWS: tuple[dict[str, Any], ...] = (
    {"pp_schedule": "gpipe"},
    {"pp_schedule": "1f1b"},
    {"pp_schedule": "interleaved", "stages_per_device": 2},
    {"pp_schedule": "zero-bubble", "stages_per_device": 2},
    {"pp_schedule": "zbv", "stages_per_device": 2},
    {"pp_schedule": "dualpipev", "stages_per_device": 2},
)
_BESIDE_ROWS: tuple[dict[str, Any], ...] = (
    {"dp_replicate": 2, "accumulate": "hold"},
    {"dp_shard": 2, "zero": 1, "accumulate": "hold"},
    {"dp_shard": 2, "zero": 2, "accumulate": "hold"},
    {"dp_shard": 2, "zero": 3, "accumulate": "hold"},
    {"tp": 2},
    {},
)
"""What a pipeline of two devices meets; the last one is a pipeline of four."""
_KINDS: dict[str, dict[str, Any]] = {
    "row": {**CONFIGS["llama"], "num_hidden_layers": 5},
    "tied row": {**CONFIGS["llama"], "num_hidden_layers": 9, "tie_word_embeddings": True},
    "wide": {
        **CONFIGS["llama"], "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
    },
}  # fmt: skip
"""Decoders of enough blocks for two stages on each of four devices; one of matrices whose shards
on four devices have 4096 numbers and more, whole blocks of 256, so that 8 bits are the same ones.
"""
_BY_ROWS: tuple[dict[str, Any], ...] = (
    {"dp_shard": 2, "zero": 3},
    {"dp_shard": 2, "zero": 2, "accumulate": "hold"},
    {"dp_shard": 4, "zero": 3, "activation_checkpointing": "full"},
    {"dp_shard": 2, "dp_replicate": 2, "zero": 3},
)
UPDATED: dict[str, tuple[dict[str, Any], ...]] = {
    "sgd": (*_BY_ROWS, {"tp": 2}, {"dp_shard": 2, "zero": 3, "tp": 2}),
    "adamw-8bit": _BY_ROWS,
}
"""What updates shards in a way of its own (``Optimizer.shards``), and where it is the plain loop's.

What ``tp`` cuts by columns has other blocks of 256. Muon computes in bf16, so that any other order
of sums shows in the fifth digit (``test_groups.py``).
"""
_WIDTHS: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
    "vocab_size": 96, "max_position_embeddings": 64, "tie_word_embeddings": False,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
_MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {
        **_WIDTHS, "intermediate_size": 48, "num_local_experts": 8, "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "qwen3_moe": {
        **_WIDTHS, "head_dim": 8, "intermediate_size": 80, "moe_intermediate_size": 24,
        "num_experts": 4, "num_experts_per_tok": 3, "mlp_only_layers": [1],
    },
    "deepseek_v3": {
        **_WIDTHS, "intermediate_size": 80, "first_k_dense_replace": 1, "n_routed_experts": 8,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 24,
        "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
        "v_head_dim": 8, "n_group": 4, "topk_group": 2,
    },
    "gpt_oss": {
        **_WIDTHS, "head_dim": 8, "intermediate_size": 24, "num_local_experts": 4,
        "num_experts_per_tok": 2, "sliding_window": 7,
    },
}  # fmt: skip
"""Decoders with experts: all alike, some blocks dense, beside a shared one, with biases."""
_PARTED: tuple[dict[str, Any], ...] = (
    {"ep": 2, "dp_shard": 2, "zero": 3},
    {"ep": 2, "dp_shard": 2, "zero": 2},
    {"ep": 2, "tp": 2},
    {"ep": 4, "dp_shard": 4, "zero": 3},
    {"ep": 2, "dp_shard": 4, "zero": 3},
    {"ep": 2, "dp_shard": 4, "zero": 2},
    {"ep": 2, "dp_shard": 2, "dp_replicate": 2, "zero": 3},
    {"ep": 4, "tp": 4},
    {"ep": 2, "tp": 2, "dp_shard": 2, "zero": 3},
    {"ep": 4, "tp": 2, "dp_shard": 2, "zero": 2},
    {"ep": 2, "dp_shard": 2, "zero": 3, "pp": 2, "accumulate": "hold"},
    {"ep": 2, "dp_shard": 2, "zero": 2, "pp": 2, "accumulate": "hold", "pp_schedule": "gpipe"},
    {"ep": 2, "tp": 2, "pp": 2},
    {"ep": 2, "dp_shard": 2, "zero": 3, "offload": "optimizer"},
)
_BESIDE_EXPERTS = msgspec.structs.replace(ADAPTER, targets=("o_proj",))
EAGER_ONLY = frozenset({"gpt_oss"})
_SWITCHES: tuple[dict[str, Any], ...] = (
    {},
    {"activation_checkpointing": "full", "accumulate": "hold"},
    {"activation_checkpointing": "selective", "loss_chunks": 3, "micro_batch": 2},
    {"activation_checkpointing": "full:2", "loss_chunks": 2, "accumulate": "hold"},
    {"attention": "eager", "activation_checkpointing": "selective:1"},
)
_JOBS: tuple[dict[str, Any], ...] = (
    {},
    {"optimizer": "adamw-foreach"},
    {"packing": "documents"},
    {"method": "lora", "adapter": ADAPTER},
    {"optimizer": "sgd"},
)


_QUANTIZED: tuple[tuple[dict[str, Any], Base], ...] = (
    ({"dp_shard": 2, "zero": 3}, "nf4-double"),
    ({"dp_shard": 2, "zero": 1}, "nf4"),
    ({"dp_shard": 4, "zero": 3, "activation_checkpointing": "full"}, "int8"),
    ({"dp_shard": 2, "dp_replicate": 2, "zero": 2, "accumulate": "hold"}, "nf4"),
    ({"dp_shard": 2, "zero": 3, "offload": "optimizer"}, "nf4"),
)
"""Beside the same program on one device: the plain loop has no weights of few bits."""


def cases() -> list[Case]:
    """Pair every layout with switches and jobs in turn, so that each meets each; refused ones go.

    A layout on N devices has as many samples as N, or three times as many where it accumulates.
    """
    found = []
    for kind in ("llama", "gpt2"):
        for place, layout in enumerate((*_ON_TWO, *_ON_FOUR)):
            for turn in range(3):
                changes = _JOBS[(place + turn) % len(_JOBS)]
                switches = _SWITCHES[(place + 2 * turn + (kind == "gpt2")) % len(_SWITCHES)]
                found += _possible(kind, {**_PLAIN, **layout, **switches}, changes)
    found += _rows_of_devices()
    found += _parted_experts()
    for optimizer, layouts in UPDATED.items():
        for layout in layouts:
            found += wide(optimizer, layout)
    for layout, base in _QUANTIZED:
        adapter = msgspec.structs.replace(ADAPTER, base=base)
        found += _possible("llama", {**_PLAIN, **layout}, {"method": "qlora", "adapter": adapter})
    return found


def wide(optimizer: str, layout: dict[str, Any]) -> Iterator[Case]:
    """Yield the case of an optimizer whose matrices are wide enough to be rounded in blocks."""
    return _possible("wide", {**_PLAIN, **layout}, {"optimizer": optimizer})


def stacked(optimizer: str, kind: str, layout: dict[str, Any]) -> Iterator[Case]:
    """Yield the case of an optimizer of stacks of matrices, as a mixture's experts are."""
    return _possible(kind, {**_PLAIN, **layout}, {"optimizer": optimizer})


def _rows_of_devices() -> list[Case]:
    """Pair every order of work with what stands beside it, switches and jobs in turn."""
    found = []
    for place, row in enumerate(_ROWS):
        for turn in range(6):
            changes, kind = _JOBS[(place + turn) % len(_JOBS)], ("row", "tied row")[turn % 2]
            switches = _SWITCHES[(place + 2 * turn) % len(_SWITCHES)]
            found += _possible(kind, {**_PLAIN, "pp": 2, **row, **switches}, changes)
        for turn, beside in enumerate(_BESIDE_ROWS):
            changes, kind = _JOBS[(place + turn) % len(_JOBS)], ("tied row", "row")[turn % 2]
            degrees = beside or {"pp": 4}
            switches = _SWITCHES[(place + turn) % len(_SWITCHES)]
            ways = {**_PLAIN, "pp": 2, **row, **switches, **degrees}
            found += _possible(kind if beside else "tied row", ways, changes)
    return found


def _parted_experts() -> list[Case]:
    """Pair every layout of experts with every mixture, switches and jobs in turn."""
    found = []
    for place, layout in enumerate(_PARTED):
        for turn, kind in enumerate(_MIXTURES):
            changes = _JOBS[(place + turn) % len(_JOBS)]
            if "adapter" in changes:  # PEFT takes some names for the experts' own weight
                changes = {
                    **changes,
                    "adapter": msgspec.structs.replace(ADAPTER, targets=("o_proj",)),
                }
            switches = _SWITCHES[(place + 2 * turn) % len(_SWITCHES)]
            if kind in EAGER_ONLY:
                switches = {**switches, "attention": "eager"}
            found += _possible(kind, {**_PLAIN, **switches, **layout}, changes)
    return found


def _possible(kind: str, ways: dict[str, Any], changes: dict[str, Any]) -> Iterator[Case]:
    strategy = Strategy(**ways)
    each = 8 if strategy.pp > 1 else 3 if strategy.accumulate == "hold" else 1
    batch = data_parallel(strategy) * strategy.micro_batch * each
    try:
        job = tiny_job(kind, max(batch, 2), changes)
        checked = check_strategy(job, strategy)
    except BrimfulError:
        return
    yield Case(job=job, strategy=checked, kernels="cpu")


def tiny_job(kind: str, global_batch: int, changes: dict[str, Any]) -> Job:
    """Make the job of a kind of decoder, in fp32."""
    is_llama = kind in {"llama", *_KINDS}
    config = {"model_type": "llama" if is_llama else kind, **(_KINDS | CONFIGS | _MIXTURES)[kind]}
    if is_llama:
        vocab_size = max(96, config["hidden_size"])
        config |= {"num_key_value_heads": 4, "vocab_size": vocab_size}  # what four can share
    fields: dict[str, Any] = {
        "task": "causal-lm", "packing": "none", "seq_len": SEQ_LEN, "global_batch": global_batch,
        "num_steps": NUM_STEPS, "seed": 5, "learning_rate": 1e-3, "precision": "fp32",
    }  # fmt: skip
    return check_job(plain_job(read_config(f"{NAMED}{kind}", config), **{**fields, **changes}))


def run(*, seed: int, quick: bool) -> tuple[list[ParityRow], Summary]:
    """Train every case, and products drawn, beside the plain loop."""
    every = [*(own := cases()), *drawn(seed, NUM_DRAWN, TINY, beside=own)]
    chosen = every[:: len(every) // NUM_QUICK_CASES] if quick else every
    rows = compare(chosen)
    return rows, summarize(rows)


def compare(chosen: list[Case]) -> list[ParityRow]:
    """Train cases, those of as many devices in one group."""
    rows = []
    for size, group in groupby(sorted(chosen, key=size_of), key=size_of):
        turns = [Turn(case=case, num_steps=NUM_STEPS, beside_plain=True) for case in group]
        told = answers(turns, num_processes=size)
        rows += [_row(turn.case, of[0]) for turn, of in zip(turns, told, strict=True)]
    return rows


def size_of(case: Case) -> int:
    """Count the processes of a case."""
    return world_size(case.strategy)


def _row(case: Case, told: Told) -> ParityRow:
    return ParityRow(
        case=case,
        num_steps=NUM_STEPS,
        loss_error=farthest(told.losses, told.plain_losses),
        norm_error=farthest(told.norms, told.plain_norms),
        change_error=told.change_error,
    )


def summarize(rows: list[ParityRow]) -> Summary:
    """Sum up, and say which cases miss a bar."""
    return parity_summary(
        rows,
        f"on 2 and 4 processes loss within {LOSS_BAR:g} and gradient norm within "
        f"{NORM_BAR:g} of the plain fp32 loop's in each of {NUM_STEPS} steps",
        f"of products that round to 16 bits or fewer within {ROUNDED.loss:g} and {ROUNDED.norm:g} "
        f"of the same program on one device",
        describe=lambda row: f"{describe_case(row.case)} ({describe(row.case)})",
        bars=bars_of,
    )
