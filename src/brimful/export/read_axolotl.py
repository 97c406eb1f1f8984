"""Axolotl's YAML read back: which flags of ``brimful plan`` say the same.

Source: ``src/axolotl/utils/schemas`` (``config.py``, ``peft.py``, ``fsdp.py``, ``training.py``) and
``loaders/model.py`` of Axolotl 0.19.0.
"""

from pathlib import Path
from typing import Any

from brimful.cost.formats import WeightsFormat
from brimful.cost.held import pack_experts
from brimful.errors import InputError, UnknownNameError, UnsupportedError
from brimful.export.axolotl_memory import take_kept, take_kernels
from brimful.export.fsdp_leaves import open_fsdp, take_syncs, takes_switch
from brimful.export.fused_losses import take_of_axolotl
from brimful.export.leaves import Leaves, Read
from brimful.export.read_accelerate import STAGES, STRATEGIES, strategy_named, take_hybrid
from brimful.export.trainer_leaves import (
    Batches,
    Held,
    is_fsdp,
    names_of,
    say_adapter,
    say_precision,
    take_batches,
    take_rates,
    with_deepspeed,
)
from brimful.models.config import has_layout, load_model
from brimful.models.mixtures import has_stacks
from brimful.models.names import find
from brimful.units import format_bytes
from brimful.values.job import ALL_LINEAR, QAT
from brimful.values.strategy import FLAT_FSDP

MODEL = "base_model"
_COMPLETION = "completion"
_AS_PAIRS = frozenset({"ipo"})
"""Losses of pairs that keep what DPO's does."""
_OTHER_TASKS = frozenset({"kto", "orpo", "simpo"})
"""Tasks that are not run: who plans refuses them as if typed, and answers the nearest."""
_SCHEMES = frozenset({"int4", "int8"})
_DEGREES = {"dp_shard_size": "dp_shard", "dp_replicate_size": "dp_replicate",
            "expert_parallel_size": "ep",
            "tensor_parallel_size": "tp"}  # fmt: skip


def is_axolotl(content: dict[str, Any]) -> bool:
    """Whether a file's keys are Axolotl's."""
    return MODEL in content


def read_axolotl(path: Path, content: dict[str, Any], *, num_devices: int, num_layers: int) -> Read:
    """Read a file.

    Raises FileFormatError: a value is of another type. Raises InputError: its numbers do not go
    together. Raises UnsupportedError: this version plans nothing like it.
    """
    leaves = Leaves(path, content, "Axolotl")
    name = leaves.take(MODEL, str)
    _task(leaves)
    is_adapted = _method(leaves, name)
    in_fp32 = is_adapted or is_fsdp(leaves)
    mixed = ("bf16-mixed", "fp16-mixed") if in_fp32 else ("bf16", "fp16")
    recipes = {"fp8": "fp8", "bfloat16": "bf16", "float16": "fp16", "bf16": mixed[0]}
    # Beside 16 bits it is a switch of what is left in fp32.
    say_precision(leaves, {**recipes, "fp16": mixed[1], "tf32": "tf32"})
    leaves.say("seq_len", leaves.take("sequence_len", int), "sequence_len")
    packs = leaves.take("sample_packing", bool)
    leaves.say("packing", None if packs is None else ("none", "documents")[packs], "sample_packing")
    each, times = leaves.rest.get("micro_batch_size"), "gradient_accumulation_steps"
    whole = leaves.take("batch_size", int)  # of older files: of a device in a step
    if whole and isinstance(each, int) and each > 0 and leaves.rest.get(times) is None:
        leaves.rest[times] = max(1, whole // each)
    take_batches(leaves, Batches("micro_batch_size"), num_devices)
    take_rates(leaves, optimizer="optimizer", schedule="lr_scheduler")
    _memory(leaves, num_devices, num_layers, is_adapted=is_adapted)
    return with_deepspeed(leaves, num_devices=num_devices, num_layers=num_layers)


def _task(leaves: Leaves) -> None:
    """Take what is learnt: preferences, answers in chats, or every token."""
    rl = leaves.take("rl", str)
    if rl not in {None, "dpo", *_AS_PAIRS, *_OTHER_TASKS}:
        raise UnsupportedError(
            f"{leaves.path}: rl={rl} is not planned by this version; use rl: dpo, or leave it out"
        )
    for switch in ("reward_model", "process_reward_model"):
        if leaves.take(switch, bool, False):
            raise UnsupportedError(
                f"{leaves.path}: {switch} is not planned by this version; leave it out"
            )
    if rl is not None:
        leaves.say("task", rl if rl in _OTHER_TASKS else "dpo", "rl")
        return
    sets = leaves.rest.get("datasets")
    kinds = (
        [each.get("type") for each in sets if isinstance(each, dict)]
        if isinstance(sets, list)
        else []
    )
    if kinds:
        del leaves.rest["datasets"]
        is_plain = all(kind == _COMPLETION for kind in kinds) or leaves.rest.get("train_on_inputs")
        leaves.say("task", "causal-lm" if is_plain else "chat", "datasets.type")


def _method(leaves: Leaves, name: str | None) -> bool:
    """Take what trains; return whether adapters do."""
    adapter = leaves.take("adapter", str)
    bits = {
        4: leaves.take("load_in_4bit", bool, False),
        8: leaves.take("load_in_8bit", bool, False),
    }
    if adapter in {None, ""}:
        if any(bits.values()):
            raise InputError(
                f"{leaves.path}: a base in 4 or 8 bits goes with an adapter; give "
                f"adapter: qlora or lora, or load it whole"
            )
        leaves.say("method", "full", "(there is no adapter)")
        _rounded(leaves)
        return False
    if adapter not in {"lora", "qlora"}:
        raise UnsupportedError(
            f"{leaves.path}: adapter={adapter} is not planned by this version; use lora or qlora"
        )
    chosen = next((num for num, is_on in bits.items() if is_on), 4 if adapter == "qlora" else None)
    is_dora = leaves.take("peft_use_dora", bool, False)
    say_adapter(leaves, Held(chosen), is_dora=is_dora, key="adapter")
    if chosen:
        _upcast(leaves, name)
    leaves.say("lora_rank", leaves.take("lora_r", int), "lora_r")
    leaves.say("lora_alpha", leaves.take("lora_alpha", float), "lora_alpha")
    targets = names_of(leaves, "lora_target_modules")
    is_every = leaves.take("lora_target_linear", bool, False)
    leaves.say("lora_targets", ALL_LINEAR if is_every else targets, "lora_target_modules")
    leaves.say("trained_modules", names_of(leaves, "lora_modules_to_save"), "lora_modules_to_save")
    return True


def _rounded(leaves: Leaves) -> None:
    """Take what weights are rounded to as they train."""
    if not leaves.has("qat"):
        return
    key, size = "qat.weight_dtype", leaves.take("qat.group_size", int)
    leaves.take("qat.activation_dtype", str)
    kind = leaves.take(key, str, "int8")
    leaves.taken = [each for each in leaves.taken if each.flag != "method"]
    leaves.say("method", QAT, key)
    leaves.say("qat_scheme", kind if kind in _SCHEMES else "int4", key)
    if kind == "int4":
        leaves.say("qat_group_size", size, "qat.group_size")
    if kind not in _SCHEMES:
        leaves.stand_ins.append(f"{key}={kind} is planned as int4: as many copies of a weight")


def _upcast(leaves: Leaves, name: str | None) -> None:
    """Say what of a quantised base is held in fp32.

    Axolotl upcasts what is not quantised (``prepare_model_for_kbit_training``) and then returns
    norms, embedding and output layer to the type it computes in, for adapters with whatever
    attention: what is left are biases, routers and, where nothing packs them, stacks of experts.

    Source: ``_configure_embedding_dtypes`` of ``loaders/model.py``, 0.10 to 0.18.
    """
    packs = leaves.take("quantize_moe_experts", bool, False)
    if not packs and _has_stacks(name or ""):
        leaves.say("upcast", "all", "(prepare_model_for_kbit_training)")
        leaves.notes.append(
            "Axolotl holds experts in fp32 that are not quantised; quantize_moe_experts packs them"
        )
    elif packs:
        base = next(each.value for each in leaves.taken if each.flag == "base")
        leaves.stand_ins.append(
            f"experts of quantize_moe_experts are planned in 16 bits{_packed_words(name, base)}"
        )


def _packed_words(name: str | None, base: WeightsFormat) -> str:
    """Say how much less experts take that are packed; empty: nobody knows it."""
    if not _has_stacks(name or "") or not has_layout(spec := load_model(name or "")):
        return ""
    saved = format_bytes(pack_experts(spec, base, "bf16"))
    return f": packed they take {saved} less, but for those of the block that runs"


def _has_stacks(name: str) -> bool:
    """Whether a known model has experts in stacks, which no quantised linear layer holds."""
    try:
        taken = find(name)
    except UnknownNameError:
        return False
    return taken is not None and has_stacks(load_model(taken.name))


def _memory(leaves: Leaves, num_devices: int, num_layers: int, *, is_adapted: bool) -> None:
    take_syncs(leaves)
    open_fsdp(leaves)
    if takes_switch(leaves, "activation_checkpointing"):
        leaves.rest["gradient_checkpointing"] = leaves.rest.get("gradient_checkpointing") or True
    kept = take_kept(leaves, num_layers, is_adapted=is_adapted)
    is_sharded = is_fsdp(leaves)
    key, version = _version(leaves)
    is_flat = is_sharded and version in {None, FLAT_FSDP} and num_devices > 1
    take_of_axolotl(leaves)
    take_kernels(leaves, is_adapted=is_adapted, is_flat=is_flat)
    degree = "context_parallel_size"
    cp = leaves.take(degree, int) or leaves.take("sequence_parallel_degree", int) or 1
    leaves.cut_rows(cp, degree, num_devices)
    for name, flag in _DEGREES.items():
        value = leaves.take(name, int)
        if value is not None and value < 1:
            raise InputError(f"{leaves.path}: {name} is {value}; give 1 or more")
        if value is not None and flag == "dp_shard":
            value *= cp  # whose devices share the parameters too
        leaves.say(flag, value, name)
    if is_flat:
        leaves.say("fsdp", FLAT_FSDP, "(no fsdp_version)" if version is None else key)
    away = _fsdp(leaves, num_devices) if is_sharded else ""
    leaves.rest.pop("fsdp", None)
    if kept:
        leaves.say_kept(("optimizer",) * bool(away) + kept, "activation_offloading")
    elif is_sharded and num_devices > 1 and not away:
        leaves.say("offload", "none", "fsdp_config.offload_params")


def _version(leaves: Leaves) -> tuple[str, int | None]:
    """Take which FSDP shards, of either key; None: the first."""
    versions = ("fsdp_version", "fsdp_config.version")
    told = [(key, number) for key in versions if (number := leaves.take(key, int)) is not None]
    return told[0] if told else (versions[0], None)


def _fsdp(leaves: Leaves, num_devices: int) -> str:
    """Take FSDP's strategy; return the key by which it keeps shards on the host; empty: none."""
    words = leaves.rest.get("fsdp")
    listed = [str(word) for word in words] if isinstance(words, list) else str(words or "").split()
    away = "fsdp_config.offload_params" if takes_switch(leaves, "offload_params") else ""
    away = away or ("fsdp: offload" if "offload" in listed else "")
    key, stays = "fsdp_config.sharding_strategy", "fsdp_config.reshard_after_forward"
    named = [word for word in listed if word.upper() in STRATEGIES]
    word = strategy_named(leaves.take(key, str, named[0] if named else "FULL_SHARD"))
    if word not in STRATEGIES:
        raise InputError(f"{leaves.path}: {key} is {word}; give one of {', '.join(STRATEGIES)}")
    if leaves.take(stays, bool) is False and STAGES[word]:
        word, key = word.replace("FULL_SHARD", "SHARD_GRAD_OP"), stays
    if away:
        leaves.say_shards_away(away)
    if num_devices > 1:
        leaves.say("zero", STAGES[word], key)
        if word.startswith("HYBRID"):
            take_hybrid(leaves, num_devices, word, key)
    return away
