"""LLaMA-Factory's YAML read back: which flags of ``brimful plan`` say the same.

Source: ``src/llamafactory/hparams`` (``model_args.py``, ``data_args.py``, ``finetuning_args.py``,
``parser.py``), ``model/adapter.py`` and ``model/model_utils/checkpointing.py`` of LLaMA-Factory
0.9.6.dev0 (commit ff6d4d1), whose defaults stand in for what a file does not say.
"""

import math
from pathlib import Path
from typing import Any

import msgspec

from brimful.errors import InputError, UnsupportedError
from brimful.export.fsdp_leaves import take_spread
from brimful.export.fused_losses import take_of_llama_factory
from brimful.export.leaves import Leaves, Read
from brimful.export.trainer_leaves import (
    Batches,
    Held,
    names_of,
    numbered,
    say_adapter,
    say_precision,
    take_batches,
    take_rates,
    take_switched,
    with_deepspeed,
)
from brimful.values.job import ALL_LINEAR, MAX_COUNT, NARROW

MODEL = "model_name_or_path"
_OWN = frozenset({"finetuning_type", "stage", "template", "cutoff_len"})
_STAGES = {"sft": "chat", "pt": "causal-lm", "dpo": "dpo"}
_LOSSES = frozenset({"sigmoid"})
_OTHER_STAGES, _OTHER_LOSSES = frozenset({"rm", "kto", "ppo"}), frozenset({"orpo", "simpo"})
"""Tasks that are not run: who plans refuses them as if typed, and answers the nearest."""
_SCORES = "rm"
"""Its stage that reads two answers for each of its rows, one after the other."""
_RANK, _CUTOFF, _EPOCHS = 8, 2048, 3.0
"""Its defaults."""
_OF_PAIRS = {"pref_beta": "dpo_beta", "dpo_label_smoothing": "label_smoothing"}
_PACKED, _SAME = {"quantization_method": "bnb", "quantization_type": "nf4"}, ("bitsandbytes",)
_OTHER_RUNS = (
    "use_llama_pro", "use_asft_loss", "use_kt", "use_mca", "use_megatron_bridge",
    "use_hyper_parallel", "shift_attn",
)  # fmt: skip


def is_llama_factory(content: dict[str, Any]) -> bool:
    """Whether a file's keys are LLaMA-Factory's."""
    return MODEL in content and bool(_OWN & {*content})


def read_llama_factory(
    path: Path, content: dict[str, Any], *, num_devices: int, num_layers: int
) -> Read:
    """Read a file.

    Raises FileFormatError: a value is of another type. Raises InputError: its numbers do not go
    together. Raises UnsupportedError: this version plans nothing like it.
    """
    leaves = Leaves(path, content, "LLaMA-Factory")
    leaves.take(MODEL, str)
    _refuse_others(leaves)
    stage, task = _task(leaves)
    is_adapted = leaves.rest.get("finetuning_type", "lora") != "full"
    is_narrow = _precision(leaves, is_adapted=is_adapted) in NARROW
    _method(leaves, whole="same" if is_narrow else "bf16")
    leaves.say("seq_len", leaves.take("cutoff_len", int, _CUTOFF), "cutoff_len")
    _packing(leaves, stage, task)
    take_batches(leaves, Batches("per_device_train_batch_size"), num_devices)
    if stage == _SCORES:
        # Count both answers of a pair: each is a text of its own to a model that scores them.
        for place, each in enumerate(leaves.taken):
            if each.flag in {"micro_batch", "global_batch"}:
                leaves.taken[place] = msgspec.structs.replace(each, value=2 * each.value)
        leaves.notes.append(f"stage={_SCORES} scores two answers a row: batches count both")
    take_switched(leaves)
    take_rates(leaves, optimizer="optim", schedule="lr_scheduler_type")
    _length(leaves)
    _memory(leaves, num_devices, task, is_adapted=is_adapted)
    return with_deepspeed(leaves, num_devices=num_devices, num_layers=num_layers)


def _length(leaves: Leaves) -> None:
    """Take how long the run is, where the file says how many rows there are at most."""
    said = {each.flag: each.value for each in leaves.taken}
    rows, batch = leaves.rest.get("max_samples"), said.get("global_batch")
    if "steps" in said or not batch or rows is None or said.get("packing", "none") != "none":
        return
    leaves.take("max_samples", int)
    sets = leaves.rest.get("dataset")
    num = len(sets.split(",")) if isinstance(sets, str) else 1
    epochs = leaves.take("num_train_epochs", float, _EPOCHS)
    steps = math.ceil(num * rows / batch) * epochs
    if not 1 <= steps <= MAX_COUNT:
        return
    leaves.say("steps", math.ceil(steps), "max_samples")
    leaves.notes.append(
        f"max_samples={rows} are the most rows of each of its {num} data sets: {math.ceil(steps)} "
        f"steps at most, in {epochs:g} epochs"
    )


def _refuse_others(leaves: Leaves) -> None:
    """Refuse what trains, or runs, in another way than a plan can say."""
    if leaves.rest.get("do_predict") and not leaves.rest.get("do_train"):
        raise UnsupportedError(
            f"{leaves.path}: do_predict without do_train trains nothing, and training is planned "
            f"here; brimful estimate MODEL --task inference says what running a model takes"
        )
    for switch in _OTHER_RUNS:
        if leaves.take(switch, bool, False):
            raise UnsupportedError(
                f"{leaves.path}: {switch} is not planned by this version; leave it out"
            )
    if (depths := leaves.take("mixture_of_depths", str)) is not None:
        raise UnsupportedError(
            f"{leaves.path}: mixture_of_depths={depths} is not planned by this version; leave it "
            f"out"
        )


def _memory(leaves: Leaves, num_devices: int, task: str, *, is_adapted: bool) -> None:
    """Take checkpoints, kernels, attention, and how devices share the work."""
    is_off = leaves.take("disable_gradient_checkpointing", bool, False)
    is_off &= not leaves.take("gradient_checkpointing", bool, False)
    words = "disable_gradient_checkpointing" if is_off else "(on, where nothing turns it off)"
    recomputes = take_spread(leaves, num_devices)
    again = "none" if is_off and not recomputes else "full"
    leaves.say("activation_checkpointing", [again], words)
    if leaves.take("use_unsloth_gc", bool, False) and again == "full":
        leaves.stand_ins.append(
            "use_unsloth_gc keeps inputs of recomputed layers on the host: planned on the GPU, "
            "which takes more"
        )
    if is_adapted and not is_off:  # a flag for it would leave the formulas for little
        leaves.notes.append(
            "its checkpoints have the first block's input take a gradient: planned without, and "
            "--input-requires-grad plans it"
        )
    take_of_llama_factory(leaves, task)
    if leaves.take("flash_attn", str) == "disabled":
        leaves.say("attention", "eager", "flash_attn")


def _task(leaves: Leaves) -> tuple[str, str]:
    """Take the stage; return it, and the task that it is."""
    stage = leaves.take("stage", str, "sft")
    loss = leaves.take("pref_loss", str, "sigmoid")
    other = loss if stage == "dpo" and loss in _OTHER_LOSSES else stage
    if other in _OTHER_STAGES | _OTHER_LOSSES:
        leaves.say("task", other, "stage" if other == stage else "pref_loss")
        return stage, other
    if stage not in _STAGES or (stage == "dpo" and loss not in _LOSSES):
        what = f"stage={stage}" if stage not in _STAGES else f"pref_loss={loss}"
        raise UnsupportedError(
            f"{leaves.path}: {what} is not planned by this version; use stage: sft, pt, or dpo "
            f"with pref_loss: sigmoid"
        )
    is_plain = leaves.take("train_on_prompt", bool, False) and stage == "sft"
    task = "causal-lm" if is_plain else _STAGES[stage]
    leaves.say("task", task, "stage")
    if stage == "dpo":
        for key, flag in _OF_PAIRS.items():
            leaves.rest |= {key: numbered(leaves.rest[key])} if key in leaves.rest else {}
            leaves.say(flag, leaves.take(key, float), key)
    return stage, task


def _precision(leaves: Leaves, *, is_adapted: bool) -> str:
    """Take the recipe and return it: what trains is in fp32, unless ``pure_bf16`` says otherwise.

    PEFT holds adapters in fp32 in any case, and no recipe widens the base beside them.
    """
    recipes = {"fp8": "fp8", "pure_bf16": "bf16", "bf16": "bf16-mixed", "fp16": "fp16-mixed"}
    chosen = say_precision(leaves, recipes if is_adapted else {**recipes, "tf32": "tf32"})
    if chosen is None:
        chosen = "bf16" if is_adapted else "fp32"
        leaves.say("precision", chosen, "(neither bf16 nor fp16)")
    if is_adapted and chosen == "bf16":
        leaves.say("adapter_dtype", "fp32", "(get_peft_model)")
    return chosen


def _packing(leaves: Leaves, stage: str, task: str) -> None:
    neat = leaves.take("neat_packing", bool, False)
    packs = leaves.take("packing", bool, stage == "pt" or neat)
    if task == "dpo":
        return
    kind = "documents" if neat else "wrapped" if packs and stage == "pt" else "none"
    if packs and kind == "none":
        kind = "documents"
        leaves.notes.append(
            "packed samples are planned apart from one another, as neat_packing has it"
        )
    leaves.say("packing", kind, "packing")


def _method(leaves: Leaves, *, whole: str) -> None:
    """Take what trains, beside a base that is held as ``whole`` where it is not quantised."""
    kind = leaves.take("finetuning_type", str, "lora")
    bits = leaves.take("quantization_bit", int)
    other = {
        key: value
        for key, usual in _PACKED.items()
        if (value := leaves.take(key, str, usual)) not in {usual, *_SAME}
    }
    if bits and other:
        words = " and ".join(f"{key}={value}" for key, value in other.items())
        raise UnsupportedError(
            f"{leaves.path}: {words} is not planned by this version; use nf4 of bnb"
        )
    if bits not in {None, 4, 8}:
        raise InputError(f"{leaves.path}: quantization_bit is {bits}; give 4 or 8, or leave it out")
    if kind == "full":
        if bits:
            raise InputError(
                f"{leaves.path}: quantization_bit={bits} goes with finetuning_type: lora alone; "
                f"leave one out"
            )
        leaves.say("method", "full", "finetuning_type")
        return
    if kind != "lora":
        raise UnsupportedError(
            f"{leaves.path}: finetuning_type={kind} is not planned by this version; use lora "
            f"or full"
        )
    is_dora = leaves.take("use_dora", bool, False)
    is_double = leaves.take("double_quantization", bool, True)
    held = Held(bits, is_double=is_double, whole=whole)
    say_adapter(leaves, held, is_dora=is_dora, key="finetuning_type")
    if leaves.take("upcast_layernorm", bool, False):
        leaves.say("upcast", "norms", "upcast_layernorm")
    rank = leaves.take("lora_rank", int, _RANK)
    leaves.say("lora_rank", rank, "lora_rank")
    usual = 2.0 * min(rank, MAX_COUNT)
    leaves.say("lora_alpha", leaves.take("lora_alpha", float, usual), "lora_alpha")
    leaves.say("lora_targets", names_of(leaves, "lora_target") or ALL_LINEAR, "lora_target")
    leaves.say("trained_modules", names_of(leaves, "additional_target"), "additional_target")
