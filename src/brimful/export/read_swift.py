"""ms-swift's arguments read back: which flags of ``brimful plan`` say the same.

Weights are loaded in the type of the checkpoint, or in ``torch_dtype``, and what trains in full
trains in it; autocast of that type lies over all.

Source: ``swift/llm/argument/{train_args,tuner_args,rlhf_args}.py``, ``base_args/*.py``,
``swift/trainers/arguments.py`` and ``swift/llm/train/tuner.py`` of ms-swift 3.9, whose defaults
stand in for what is not said.
"""

import math
from pathlib import Path
from typing import Any

from brimful.errors import InputError, UnsupportedError
from brimful.export import read_grpo
from brimful.export.fsdp_leaves import take_spread
from brimful.export.fused_losses import take_of_trainer
from brimful.export.leaves import Leaves, Read
from brimful.export.trainer_leaves import (
    DEEPSPEED,
    Batches,
    Held,
    names_of,
    numbered,
    say_adapter,
    stand_in,
    take_batches,
    take_rates,
    take_switched,
    with_deepspeed,
)
from brimful.values.job import ALL_LINEAR, MAX_COUNT

MODEL = "model"
_OWN = frozenset({
    "train_type", "tuner_type", "rlhf_type", "torch_dtype", "attn_impl", "lora_rank", "quant_bits",
    "max_length", "per_device_train_batch_size", "truncation_strategy", "loss_scale",
})  # fmt: skip
_KINDS = ("train_type", "tuner_type", "sft_type")
"""What its versions 3, 4 and 2 call what trains."""
_TUNERS = frozenset({"adalora", "adapter", "boft", "vera"})
"""Of what is not run: what who plans refuses as if typed, and answers the nearest of."""
_OTHER_LOSSES = frozenset({"cpo", "gkd", "grpo", "kto", "orpo", "ppo", "rm", "simpo"})
_HALVES = {"bfloat16": "bf16", "float16": "fp16"}
_ATTENTIONS = {"eager": "eager", "sdpa": "sdpa", "flex_attention": "flex"}
_RATES = {"full": 1e-5}
_DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 1, "weight_decay": 0.1, "adam_beta2": 0.95,
    "lr_scheduler_type": "cosine", "optim": "adamw_torch_fused", "max_grad_norm": 1.0,
}  # fmt: skip
_OF_ROLLOUTS = {"max_completion_length": 512, "num_generations": 8}
"""Its defaults of texts that are written."""
_CLASSIFIES, _WRITES = "seq_cls", "causal_lm"
_SUMMED = 16
"""Texts that a step adds up where nothing says how many."""
_RANK, _ALPHA, _EPOCHS = 8, 32.0, 3.0
_FSDP2 = {"fsdp": "full_shard auto_wrap", "fsdp_config.version": 2}


def is_swift(content: dict[str, Any]) -> bool:
    """Whether a file's keys are ms-swift's."""
    return isinstance(content.get(MODEL), str) and bool(_OWN & {*content})


def read_swift(path: Path, content: dict[str, Any], *, num_devices: int, num_layers: int) -> Read:
    """Read a file.

    Raises FileFormatError: a value is of another type. Raises InputError: its numbers do not go
    together. Raises UnsupportedError: this version plans nothing like it.
    """
    leaves = Leaves(path, {k: v for k, v in content.items() if v is not None}, "ms-swift")
    leaves.take(MODEL, str)
    task = _task(leaves)
    key = next((key for key in _KINDS if key in leaves.rest), _KINDS[0])
    kind = leaves.take(key, str, "lora")
    take_switched(leaves)
    stand_in(leaves, {"learning_rate": _RATES.get(kind, 1e-4), **_DEFAULTS})
    _method(leaves, kind, key)
    if task == read_grpo.TASK:
        leaves.rest |= {name: leaves.rest.get(name, usual) for name, usual in _OF_ROLLOUTS.items()}
        if "max_length" in leaves.rest:
            leaves.rest["max_prompt_length"] = leaves.rest.pop("max_length")
        read_grpo.take_grpo(leaves)
    packs = leaves.rest.get("packing") and leaves.rest.get("packing_length") is not None
    key = "packing_length" if packs else "max_length"  # of rows, where texts are shorter
    length = leaves.take(key, int)
    leaves.say("seq_len", length, key)
    if length is None:
        leaves.notes.append("max_length cuts no row: --seq-len says of how many tokens one may be")
    _packing(leaves, task)
    shared = "sequence_parallel_size"
    leaves.cut_rows(leaves.take(shared, int, 1), shared, num_devices)
    _batches(leaves, num_devices)
    take_rates(leaves, optimizer="optim", schedule="lr_scheduler_type")
    _rows(leaves)
    _memory(leaves, task, num_devices)
    return with_deepspeed(leaves, num_devices=num_devices, num_layers=num_layers)


def _task(leaves: Leaves) -> str:
    """Take what is learnt, and return it."""
    kind, of = leaves.take("rlhf_type", str), leaves.take("task_type", str, _WRITES)
    if of == _CLASSIFIES and kind is None:
        leaves.take("loss_scale", str)
        leaves.say("task", "sequence-classification", "task_type")
        return "sequence-classification"
    if of not in {_CLASSIFIES, _WRITES}:
        leaves.stand_ins.append(
            f"task_type={of} is planned with a loss over tokens, which takes more"
        )
    if kind is None:
        learns = leaves.take("loss_scale", str, "default")
        task = "causal-lm" if learns == "all" else "chat"
        leaves.say("task", task, "loss_scale" if task == "causal-lm" else "(swift sft)")
        return task
    if kind != "dpo" and kind not in _OTHER_LOSSES:
        raise UnsupportedError(
            f"{leaves.path}: rlhf_type={kind} is not planned by this version; use dpo"
        )
    if kind != read_grpo.TASK:
        leaves.say("task", kind, "rlhf_type")
    if kind == "dpo":
        leaves.rest |= {"beta": numbered(leaves.rest["beta"])} if "beta" in leaves.rest else {}
        leaves.say("dpo_beta", leaves.take("beta", float), "beta")
    return str(kind)


def _method(leaves: Leaves, kind: str, key: str) -> None:
    """Take what trains, and in which type."""
    dtype = leaves.take("torch_dtype", str, "bfloat16")
    if dtype not in {*_HALVES, "float32"}:
        raise InputError(
            f"{leaves.path}: torch_dtype is {dtype}; give bfloat16, float16 or float32"
        )
    half = _HALVES.get(dtype, "")
    switched = {name: leaves.take(name, bool) for name in _HALVES.values()}
    on = next((name for name, is_on in switched.items() if is_on), "")
    # Weights of 32 bits train beneath autocast of fp16, unless a switch says bf16.
    cast = on or ("" if False in switched.values() else half or "fp16")
    mixed = f"{cast}-mixed" if cast else half or "fp32"
    bits = _bits(leaves)
    if kind == "full":
        is_engine = DEEPSPEED in leaves.rest or leaves.has(DEEPSPEED)
        recipe = (f"{half}-master" if is_engine else half) if half else mixed
        leaves.say("precision", recipe, "torch_dtype")
        leaves.say("method", "full", key)
        return
    leaves.say("precision", mixed, "torch_dtype")
    if kind in _TUNERS:
        leaves.say("method", kind, key)
        return
    if kind != "lora":
        raise UnsupportedError(
            f"{leaves.path}: {key}={kind} is not planned by this version; use lora or full"
        )
    is_double = leaves.take("bnb_4bit_use_double_quant", bool, True)
    held = Held(bits, is_double=is_double, whole=half or "same")
    say_adapter(leaves, held, is_dora=leaves.take("use_dora", bool, False), key=key)
    leaves.say("lora_rank", leaves.take("lora_rank", int, _RANK), "lora_rank")
    leaves.say("lora_alpha", leaves.take("lora_alpha", float, _ALPHA), "lora_alpha")
    leaves.say("lora_targets", names_of(leaves, "target_modules") or ALL_LINEAR, "target_modules")
    leaves.say("trained_modules", names_of(leaves, "modules_to_save"), "modules_to_save")


def _bits(leaves: Leaves) -> int | None:
    """Take the bits of a quantised base; None: it is not quantised."""
    method, bits = leaves.take("quant_method", str), leaves.take("quant_bits", int)
    if method is None:
        if bits:
            leaves.notes.append(f"quant_bits={bits} without quant_method quantises nothing")
        return None
    kind = leaves.take("bnb_4bit_quant_type", str, "nf4")
    if method != "bnb" or kind != "nf4":
        what = f"quant_method={method}" if method != "bnb" else f"bnb_4bit_quant_type={kind}"
        raise UnsupportedError(
            f"{leaves.path}: {what} is not planned by this version; use nf4 of bnb"
        )
    if bits not in {None, 4, 8}:
        raise InputError(f"{leaves.path}: quant_bits is {bits}; give 4 or 8")
    return bits or 4


def _packing(leaves: Leaves, task: str) -> None:
    packs = leaves.take("packing", bool, False)
    if leaves.take("padding_free", bool, False) and not packs:
        leaves.notes.append("padding_free lays a batch in one row: planned with rows of one length")
    if task not in {"dpo", read_grpo.TASK}:
        leaves.say("packing", "documents" if packs else "none", "packing")


def _batches(leaves: Leaves, num_devices: int) -> None:
    """Take batches; where nothing says how many are summed, a step has sixteen texts or more."""
    each, key = leaves.rest.get("per_device_train_batch_size"), "gradient_accumulation_steps"
    if key not in leaves.rest and isinstance(each, int) and each > 0:
        times = max(1, math.ceil(_SUMMED / each / num_devices))
        stand_in(leaves, {key: times})
    take_batches(leaves, Batches("per_device_train_batch_size"), num_devices)
    if not leaves.is_launched and num_devices > 1:
        leaves.notes.append(
            "without NPROC_PER_NODE it starts one process, which lays layers over the GPUs that it "
            f"sees: planned as {num_devices} processes"
        )


def _rows(leaves: Leaves) -> None:
    """Take how long the run is, where each data set says how many of its rows are taken."""
    said = {each.flag: each.value for each in leaves.taken}
    sets = leaves.rest.get("dataset")
    names = sets if isinstance(sets, list) else [sets]
    sizes = [str(name).rpartition("#")[2] for name in names if "#" in str(name)]
    packs = said.get("packing", "none") != "none"
    batch = said.get("global_batch")
    if "steps" in said or packs or not batch or len(sizes) < len(names):
        return
    if not all(map(str.isdecimal, sizes)):
        return
    epochs = leaves.take("num_train_epochs", float, _EPOCHS)
    num_rows = sum(map(int, sizes))
    steps = math.ceil(math.ceil(num_rows / batch) * epochs)
    if 1 <= steps <= MAX_COUNT:
        leaves.say("steps", steps, "dataset")
        leaves.notes.append(
            f"dataset has {num_rows} rows, by the numbers behind its names: {steps} steps in "
            f"{epochs:g} epochs"
        )
        del leaves.rest["dataset"]  # of which nothing else is read


def _memory(leaves: Leaves, task: str, num_devices: int) -> None:
    """Take checkpoints, kernels, attention, and how devices share the work."""
    key = "gradient_checkpointing"
    is_on = leaves.take(key, bool, True)
    if leaves.rest.get("fsdp") == "fsdp2":
        leaves.rest |= _FSDP2
    recomputes = take_spread(leaves, num_devices)
    leaves.say("activation_checkpointing", ["full" if is_on or recomputes else "none"], key)
    if leaves.take("use_liger", bool, False):  # as older versions call it
        leaves.rest["use_liger_kernel"] = True
    take_of_trainer(leaves, task)
    said = {each.flag for each in leaves.taken}
    usual = {"fused_kernels": "none", "loss_chunks": 1, "optimizer_in_backward": False, "ep": 1}
    for flag, value in usual.items():
        if flag not in said and not (flag == "loss_chunks" and "fused_kernels" in said):
            leaves.say(flag, value, "(nothing turns it on)")
    attention = leaves.take("attn_impl", str, "")
    leaves.say("attention", _ATTENTIONS.get(attention), "attn_impl")
    if attention and attention not in _ATTENTIONS:
        leaves.notes.append(f"attn_impl={attention} is planned as --attention says")
