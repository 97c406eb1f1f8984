"""LLaMA-Factory's YAML read back: which flags of ``brimful plan`` say the same.

Source: ``src/llamafactory/hparams`` (``model_args.py``, ``data_args.py``, ``finetuning_args.py``)
of LLaMA-Factory in 2025, whose defaults stand in for what a file does not say. That what trains is
held in fp32 and blocks are checkpointed is as remembered of ``model/adapter.py`` and
``model/model_utils/checkpointing.py``.
"""

from pathlib import Path
from typing import Any

from brimful.errors import InputError, UnsupportedError
from brimful.export.leaves import Leaves, Read
from brimful.export.trainer_leaves import (
    Batches,
    names_of,
    say_adapter,
    say_precision,
    take_batches,
    take_rates,
    with_deepspeed,
)
from brimful.job import ALL_LINEAR

MODEL = "model_name_or_path"
_OWN = frozenset({"finetuning_type", "stage", "template", "cutoff_len"})
_STAGES = {"sft": "chat", "pt": "causal-lm", "dpo": "dpo"}
_LOSSES = frozenset({"sigmoid"})
_RANK, _CUTOFF = 8, 2048
"""Its defaults."""
_PACKED, _SAME = {"quantization_method": "bnb", "quantization_type": "nf4"}, ("bitsandbytes",)
_OTHER_UPDATES = ("use_galore", "use_apollo", "use_badam", "use_llama_pro")


def is_llama_factory(content: dict[str, Any]) -> bool:
    """Whether a file's keys are LLaMA-Factory's."""
    return MODEL in content and bool(_OWN & {*content})


def read_llama_factory(
    path: Path, content: dict[str, Any], *, num_devices: int, num_layers: int
) -> Read:
    """Read a file.

    Args:
        path: Of the YAML.
        content: Of it.
        num_devices: That it is planned for.
        num_layers: Blocks of the model.

    Raises:
        FileFormatError: A value is of another type.
        InputError: Its numbers do not go together.
        UnsupportedError: This version plans nothing like it.
    """
    leaves = Leaves(path, content, "LLaMA-Factory")
    leaves.take(MODEL, str)
    task = _task(leaves)
    _method(leaves)
    # What trains is held in fp32, unless ``pure_bf16`` says otherwise.
    say_precision(
        leaves, {"fp8": "fp8", "pure_bf16": "bf16", "bf16": "bf16-mixed", "fp16": "fp16-mixed"}
    )
    leaves.say("seq_len", leaves.take("cutoff_len", int, _CUTOFF), "cutoff_len")
    _packing(leaves, task)
    take_batches(leaves, Batches("per_device_train_batch_size"), num_devices)
    take_rates(leaves, optimizer="optim", schedule="lr_scheduler_type")
    is_off = leaves.take("disable_gradient_checkpointing", bool, False)
    words = "disable_gradient_checkpointing" if is_off else "(on, where nothing turns it off)"
    leaves.say("activation_checkpointing", ["none" if is_off else "full"], words)
    if leaves.take("enable_liger_kernel", bool, False):
        leaves.say("fused_kernels", "liger", "enable_liger_kernel")
    if leaves.take("flash_attn", str) == "disabled":
        leaves.say("attention", "eager", "flash_attn")
    return with_deepspeed(leaves, num_devices=num_devices, num_layers=num_layers)


def _task(leaves: Leaves) -> str:
    stage = leaves.take("stage", str, "sft")
    loss = leaves.take("pref_loss", str, "sigmoid")
    if stage not in _STAGES or (stage == "dpo" and loss not in _LOSSES):
        what = f"stage={stage}" if stage not in _STAGES else f"pref_loss={loss}"
        raise UnsupportedError(
            f"{leaves.path}: {what} is not planned by this version; use stage: sft, pt, or dpo "
            f"with pref_loss: sigmoid"
        )
    is_plain = leaves.take("train_on_prompt", bool, False) and stage == "sft"
    task = "causal-lm" if is_plain else _STAGES[stage]
    leaves.say("task", task, "stage")
    return task


def _packing(leaves: Leaves, task: str) -> None:
    neat = leaves.take("neat_packing", bool, False)
    packs = leaves.take("packing", bool, task == "causal-lm" or neat)
    if task == "dpo":
        return
    kind = "documents" if neat else "wrapped" if packs and task == "causal-lm" else "none"
    if packs and kind == "none":
        kind = "documents"
        leaves.notes.append(
            "packed samples are planned apart from one another, as neat_packing has it"
        )
    leaves.say("packing", kind, "packing")


def _method(leaves: Leaves) -> None:
    for switch in _OTHER_UPDATES:
        if leaves.take(switch, bool, False):
            raise UnsupportedError(
                f"{leaves.path}: {switch} is not planned by this version; leave it out, and "
                f"give an --optimizer that keeps little"
            )
    if leaves.take("use_unsloth", bool, False):
        leaves.notes.append("Unsloth's kernels are not planned, and take less than these")
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
    say_adapter(
        leaves, bits=bits, is_dora=leaves.take("use_dora", bool, False), key="finetuning_type"
    )
    if not leaves.take("double_quantization", bool, True) and bits == 4:  # noqa: PLR2004 - nf4
        leaves.taken = [each for each in leaves.taken if each.flag != "base"]
        leaves.say("base", "nf4", "double_quantization")
    rank = leaves.take("lora_rank", int, _RANK)
    leaves.say("lora_rank", rank, "lora_rank")
    leaves.say("lora_alpha", leaves.take("lora_alpha", float, 2.0 * rank), "lora_alpha")
    leaves.say("lora_targets", names_of(leaves, "lora_target") or ALL_LINEAR, "lora_target")
    leaves.say("trained_modules", names_of(leaves, "additional_target"), "additional_target")
