"""LitGPT's YAML (``litgpt finetune --config FILE``, ``litgpt pretrain``) read back.

Everything is in the one type that ``precision`` says, adapters too. Several GPUs are FSDP's first
version around each block, which recomputes blocks as it fine-tunes, and shards within a node as it
pretrains; one GPU recomputes nothing.

Source: ``litgpt/finetune/lora.py``, ``finetune/full.py``, ``pretrain.py`` and ``args.py`` of LitGPT
at 26857050, whose defaults stand in for what a file does not say.
"""

from pathlib import Path
from typing import Any

from brimful.errors import InputError, UnsupportedError
from brimful.export.fused_losses import take_kept_chunks
from brimful.export.leaves import Leaves, Read
from brimful.export.trainer_leaves import rule_named
from brimful.techniques.optimizers import DEFAULT
from brimful.values.strategy import FLAT_FSDP

MODEL, NAME = "checkpoint_dir", "model_name"
_OWN = frozenset({"global_batch_size", "micro_batch_size", "max_seq_length"})
_RECIPES = {
    "bf16-true": "bf16", "16-true": "fp16", "32-true": "fp32", "bf16-mixed": "bf16-mixed",
    "16-mixed": "fp16-mixed",
}  # fmt: skip
_BASES = {"bnb.nf4": "nf4", "bnb.nf4-dq": "nf4-double", "bnb.int8-training": "llm-int8"}
_LAYERS = {
    "lora_query": ("q_proj", True), "lora_key": ("k_proj", False), "lora_value": ("v_proj", True),
    "lora_projection": ("o_proj", False), "lora_mlp": ("gate_proj,up_proj,down_proj", False),
    "lora_head": ("lm_head", False),
}  # fmt: skip
"""Switches of adapters, the layers that each is of, and whether it is on by itself."""
_RANK, _ALPHA, _CHUNK = 8, 16.0, 128
"""Its defaults, and tokens of a chunk of its loss as it fine-tunes."""
_BATCHES = {True: (16, 1), False: (512, 4)}
"""Its defaults of a step's texts and of a device's, as it fine-tunes and as it pretrains."""


def is_litgpt(content: dict[str, Any]) -> bool:
    """Whether a file's keys are LitGPT's."""
    train = content.get("train")
    return isinstance(train, dict) and bool(_OWN & {*train}) and bool({MODEL, NAME} & {*content})


def model_of(content: dict[str, Any]) -> str:
    """Return the model that a file names: behind the folder of its checkpoints, or alone."""
    name = str(content.get(MODEL) or content.get(NAME) or "")
    return "/".join(Path(name).parts[-2:]) if content.get(MODEL) else name


def read_litgpt(path: Path, content: dict[str, Any], *, num_devices: int, num_layers: int) -> Read:
    """Read a file.

    Raises FileFormatError: a value is of another type. Raises InputError: its numbers do not go
    together. Raises UnsupportedError: this version plans nothing like it.
    """
    del num_layers
    leaves = Leaves(path, {k: v for k, v in content.items() if v is not None}, "LitGPT")
    for key in (MODEL, NAME):
        leaves.take(key, str)
    leaves.rest = {key: value for key, value in leaves.rest.items() if value is not None}
    is_tuned = MODEL in content
    leaves.say("task", "causal-lm", "(LitGPT)")
    leaves.say("packing", "none" if is_tuned else "wrapped", "(LitGPT)")
    precision = leaves.take("precision", str, "bf16-true")
    if precision not in _RECIPES:
        raise InputError(f"{path}: precision is {precision}; give one of {', '.join(_RECIPES)}")
    leaves.say("precision", _RECIPES[precision], "precision")
    _method(leaves, content)
    length = leaves.take("train.max_seq_length", int)
    leaves.say("seq_len", length, "train.max_seq_length")
    if length is None:
        leaves.notes.append("train.max_seq_length cuts no row: --seq-len says how long one may be")
    _batches(leaves, num_devices, is_tuned=is_tuned)
    _update(leaves)
    for key in ("devices", "num_nodes"):
        leaves.rest.pop(key, None)
    _sharding(leaves, num_devices, is_tuned=is_tuned)
    leaves.say("fused_kernels", "none", "(LitGPT has none)")
    if is_tuned:
        name, chunks = "CEWithChunkedOutputLoss", max(1, (length or _CHUNK) // _CHUNK)
        take_kept_chunks(leaves, name, chunks, compiled=False)
        leaves.stand_ins[-1] = leaves.stand_ins[-1].replace(name, "its loss")
    else:
        leaves.say("loss_chunks", 1, "(litgpt pretrain)")
        leaves.stand_ins.append("litgpt pretrain compiles the model: planned without, takes more")
    return leaves.read()


def _method(leaves: Leaves, content: dict[str, Any]) -> None:
    quantize = leaves.take("quantize", str)
    if not any(key.startswith("lora_") for key in content):
        leaves.say("method", "full", "(there is no lora_r)")
        return
    if quantize is not None and quantize not in _BASES:
        raise UnsupportedError(
            f"{leaves.path}: quantize={quantize} is not planned by this version; use "
            f"{' or '.join(_BASES)}"
        )
    leaves.say("method", "qlora" if quantize else "lora", "lora_r")
    leaves.say("base", _BASES[quantize] if quantize else "same", "quantize")
    leaves.say("lora_rank", leaves.take("lora_r", int, _RANK), "lora_r")
    leaves.say("lora_alpha", leaves.take("lora_alpha", float, _ALPHA), "lora_alpha")
    named = [layers for key, (layers, usual) in _LAYERS.items() if leaves.take(key, bool, usual)]
    leaves.say("lora_targets", ",".join(named), "lora_query, ...")


def _batches(leaves: Leaves, num_devices: int, *, is_tuned: bool) -> None:
    """Take a step's texts, of which each device has as many as divide."""
    whole, each = (
        leaves.take(f"train.{key}_batch_size", int, usual)
        for key, usual in zip(("global", "micro"), _BATCHES[is_tuned], strict=True)
    )
    if each < 1 or whole < num_devices * each:
        raise InputError(
            f"{leaves.path}: train.global_batch_size={whole} is less than {num_devices} devices x "
            f"train.micro_batch_size={each}; give --gpus or correct it"
        )
    leaves.say("micro_batch", each, "train.micro_batch_size")
    batch = whole // num_devices // each * each * num_devices
    leaves.say("global_batch", batch, "train.global_batch_size")


def _update(leaves: Leaves) -> None:
    name = leaves.take("optimizer", str) or leaves.take("optimizer.class_path", str, "AdamW")
    rule = rule_named(name.rpartition(".")[2])
    if rule is None:
        raise UnsupportedError(
            f"{leaves.path}: optimizer {name} is none of this version's; give --optimizer"
        )
    if rule == DEFAULT and (name.startswith("torch.") or "." not in name):
        rule = rule_named(f"{DEFAULT}_torch")  # which is foreach on a GPU
    leaves.say("optimizer", rule, "optimizer")
    for key, flag in (("lr", "learning_rate"), ("weight_decay", "weight_decay")):
        given = leaves.rest.pop(f"optimizer.init_args.{key}", None)
        leaves.say(flag, None if given is None else float(given), f"optimizer.init_args.{key}")
    leaves.say("schedule", "cosine", "(LitGPT)")
    leaves.say("clip", leaves.take("train.max_norm", float, 0.0), "train.max_norm")
    steps, tokens = leaves.take("train.max_steps", int), leaves.take("train.max_tokens", int)
    said = {each.flag: each.value for each in leaves.taken}
    if steps is None and tokens and "seq_len" in said:
        steps = max(1, tokens // (said["global_batch"] * said["seq_len"]))
    if steps is not None:  # else nobody knows what the warm-up is a part of
        warmup = leaves.take("train.lr_warmup_steps", int)
        leaves.say("warmup_steps", warmup, "train.lr_warmup_steps")
    leaves.say("steps", steps, "train.max_steps")
    leaves.say("seed", leaves.take("seed", int), "seed")


def _sharding(leaves: Leaves, num_devices: int, *, is_tuned: bool) -> None:
    again = is_tuned and num_devices > 1
    leaves.say("activation_checkpointing", ["full" if again else "none"], "(LitGPT)")
    if num_devices == 1:
        return
    leaves.say("zero", 3, "(FSDPStrategy)")
    leaves.say("fsdp", FLAT_FSDP, "(FSDPStrategy)")
    if is_tuned:
        leaves.say("dp_replicate", 1, "(FSDPStrategy)")
    for degree in ("tp", "pp"):
        leaves.say(degree, 1, "(LitGPT has none)")
    leaves.say("offload", "none", "(FSDPStrategy)")
