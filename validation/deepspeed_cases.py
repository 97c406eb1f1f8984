"""What is run by DeepSpeed for real and on the pretend GPU. Knows no torch and no DeepSpeed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

NUM_TRIES = 3
WIDTH, VOCABULARY = 256, 2048
MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "hidden_size": WIDTH, "intermediate_size": 688, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 4, "vocab_size": VOCABULARY,
    },
    "gpt2": {
        "n_embd": WIDTH, "n_layer": 4, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 256,
        "bos_token_id": None, "eos_token_id": None,
        "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    },
}  # fmt: skip
_BUCKET = 1_000_000
TEXT: dict[str, Any] = {
    "fp16": {"enabled": True},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
    "train_micro_batch_size_per_gpu": 1,
}
"""A file as tutorials show it, for ``deepspeed --num_gpus=4``: fp16, ZeRO-3, the optimizer on the
host. Told beside it are the loss scale, and that an optimizer of the script's may be sharded."""


_SCALE = {"initial_scale_power": 8}
"""A loss scale that no gradient is too large for: a step that is skipped makes no moments."""


class Shape(NamedTuple):
    """Of a micro-batch."""

    rows: int
    tokens: int


class SimulatedCase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A script's run.

    Attributes:
        name: In a line.
        model_type: Of transformers.
        widths: Of its configuration, as JSON.
        config: DeepSpeed's, as JSON.
        tokens: Of a row.
        num_processes: In the group.
        checkpoints: Whether blocks are recomputed.
    """

    name: str
    model_type: str
    widths: str
    config: str
    tokens: int = 256
    num_processes: int = 2
    checkpoints: bool = False


def read_cases(path: Path) -> list[SimulatedCase]:
    """Read what a process is to run."""
    return msgspec.json.decode(path.read_bytes(), type=list[SimulatedCase])


def every_case() -> list[SimulatedCase]:
    """List what is run: stages, types, accumulation, offload, and the file of the text.

    Not autocast: a CPU's has other lists of operations.
    """
    return list(_every())


def _every() -> Iterator[SimulatedCase]:
    for stage in (0, 1, 2, 3):
        for kind in ("fp32", "bf16"):
            yield _case("llama", stage, kind, 1)
            yield _case("llama", stage, kind, 2)
    for stage in (1, 2, 3):
        yield _case("llama", stage, "fp16", 2)
        for kind in ("fp32", "bf16"):
            yield _case("llama", stage, kind, 2, offload="optimizer")
    for kind in ("fp32", "bf16", "fp16"):
        yield _case("llama", 3, kind, 2, offload="parameters")
    for stage in (2, 3):
        yield _case("gpt2", stage, "bf16", 2)
        yield _case("llama", stage, "bf16", 2, checkpoints=True)
    config = {
        **TEXT,
        "fp16": {**TEXT["fp16"], **_SCALE},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    yield SimulatedCase(
        name="fp16, ZeRO-3, optimizer on the host: a tutorial's file",
        model_type="llama",
        widths=json.dumps(MODELS["llama"]),
        config=json.dumps(config),
        num_processes=4,
    )


def _case(  # noqa: PLR0913 - what cases differ in
    model_type: str,
    stage: int,
    kind: str,
    micro_batches: int,
    offload: str = "none",
    *,
    checkpoints: bool = False,
) -> SimulatedCase:
    zero: dict[str, Any] = {
        "stage": stage,
        "reduce_bucket_size": _BUCKET,
        "allgather_bucket_size": _BUCKET,
        "stage3_prefetch_bucket_size": WIDTH**2,
        "stage3_param_persistence_threshold": 10 * WIDTH,
    }
    if offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if offload == "parameters":
        zero["offload_param"] = {"device": "cpu"}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
    }
    if kind != "fp32":
        config[kind] = {"enabled": True, **(_SCALE if kind == "fp16" else {})}
    what = [model_type, f"ZeRO-{stage}", kind, f"{micro_batches} micro-batches"]
    what += [f"{offload} on the host"] * (offload != "none") + ["checkpointed"] * checkpoints
    return SimulatedCase(
        name=", ".join(what),
        model_type=model_type,
        widths=json.dumps(MODELS[model_type]),
        config=json.dumps(config),
        checkpoints=checkpoints,
    )
