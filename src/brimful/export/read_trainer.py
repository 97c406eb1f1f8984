"""Arguments of Hugging Face's Trainer and of TRL read back: which flags say the same.

Of the Trainer's own file the program loads the model and makes the rows, so that both are left to
the flags; TRL's names them.

Source: ``transformers/training_args.py`` of Transformers 5.23.0; ``trl/trainer/base_config.py``,
``sft_config.py``, ``dpo_config.py``, ``model_config.py``, ``sft_trainer.py`` and
``trl/scripts/sft.py`` of TRL 1.16.0, whose defaults stand in for what a file does not say.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brimful.errors import InputError, UnsupportedError
from brimful.export import read_grpo, script_leaves
from brimful.export.fsdp_leaves import take_spread
from brimful.export.fused_losses import take_of_trainer
from brimful.export.leaves import Leaves, Read
from brimful.export.trainer_leaves import (
    Batches,
    Held,
    is_fsdp,
    names_of,
    numbered,
    say_adapter,
    say_precision,
    stand_in,
    take_batches,
    take_rates,
    with_deepspeed,
)
from brimful.values.job import IN_FP32, NARROW

MODEL = "model_name_or_path"
_OWN = frozenset({"per_device_train_batch_size", "output_dir", "lr_scheduler_type", MODEL})
_FOREIGN = frozenset({"model", "micro_batch_size"})
"""Keys that neither has, and files of other programs do, beside an ``output_dir``."""
_OF_TRL = frozenset({
    MODEL, "max_length", "packing", "use_peft", "assistant_only_loss", "completion_only_loss",
    "dataset_name", "dataset_text_field", "lora_r", "precompute_ref_log_probs",
})  # fmt: skip
_OLDER = {"max_seq_length": "max_length", "torch_dtype": "dtype"}
"""What older TRL calls what newer calls otherwise: ``sft_config.py`` until 0.19, and
``model_config.py`` until 0.24."""
_OF_SCRIPTS = frozenset({"do_train", "data_path"})
"""Keys of such scripts, which name their model as TRL does; TRL's files may have them too."""
_OF_TRL_ALONE = _OF_TRL - {MODEL, "dataset_name", "lora_r"}
"""Keys that no such script has."""
_OF_PAIRS = frozenset({
    "beta", "label_smoothing", "precompute_ref_log_probs", "f_divergence_type", "sync_ref_model",
    "loss_weights",
})  # fmt: skip
"""Keys that ``trl dpo`` has and ``trl sft`` has not."""
_OF_OTHERS = {
    "reward_model_name_or_path": "RLOO",
    "desirable_weight": "KTO", "num_ppo_epochs": "PPO", "center_rewards_coefficient": "rewards",
}  # fmt: skip
_LIKELIHOODS = frozenset({"nll", "chunked_nll"})
_SFT_LOSSES = _LIKELIHOODS | {"dft"}
DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1,
    "optim": "adamw_torch_fused", "learning_rate": 5e-5, "lr_scheduler_type": "linear",
    "warmup_steps": 0, "weight_decay": 0.0, "adam_beta1": 0.9, "adam_beta2": 0.999,
    "adam_epsilon": 1e-8, "max_grad_norm": 1.0, "seed": 42,
}  # fmt: skip
TRL_DEFAULTS: dict[str, Any] = {
    "gradient_checkpointing": True, "dtype": "float32", "max_length": 1024,
}  # fmt: skip
LEARNING_RATES = {"sft": 2e-5, "dpo": 1e-6, read_grpo.TASK: read_grpo.RATE}
_RANK, _ALPHA, _TARGETS = 16, 32, "q_proj,v_proj"
"""TRL's defaults of adapters, and PEFT's targets in most models."""
_ATTENTIONS = {"eager": "eager", "sdpa": "sdpa", "flex_attention": "flex"}
_HALVES = {"bfloat16": "bf16", "float16": "fp16"}
_PACKINGS = {"bfd": "documents", "bfd_split": "documents", "wrapped": "wrapped"}


def is_trainer(content: Mapping[str, Any]) -> bool:
    """Whether a file's keys are the Trainer's or TRL's; asked where they are not another's."""
    return bool(_OWN & {*content}) and not _FOREIGN & {*content}


def is_script(content: Mapping[str, Any]) -> bool:
    """Whether arguments are those of a script on top of the Trainer that is none of TRL's."""
    keys = {*content}
    is_named = script_leaves.is_script(content)
    return is_named or bool(_OF_SCRIPTS & keys and not _OF_TRL_ALONE & keys)


def read_trainer(path: Path, content: dict[str, Any], *, num_devices: int, num_layers: int) -> Read:
    """Read a file.

    Raises FileFormatError: a value is of another type. Raises InputError: its numbers do not go
    together. Raises UnsupportedError: this version plans nothing like it.
    """
    said = {key: value for key, value in content.items() if value is not None}
    is_trl = bool(_OF_TRL & {*content}) and not is_script(content)
    leaves = Leaves(path, said, "TRL" if is_trl else "the Trainer")
    for old, new in _OLDER.items() if is_trl else ():
        if old in leaves.rest:
            leaves.rest.setdefault(new, leaves.rest.pop(old))
    if "max_length" in content:
        leaves.rest.setdefault("max_length", None)  # of which none is no limit
    if is_trl:
        _trl(leaves)
    else:
        script_leaves.take_script(leaves)
        stand_in(leaves, DEFAULTS)
        _recipe(leaves)
    take_batches(leaves, Batches("per_device_train_batch_size"), num_devices)
    script_leaves.count_groups(leaves)
    take_rates(leaves, optimizer="optim", schedule="lr_scheduler_type")
    _memory(leaves, num_devices)
    return with_deepspeed(leaves, num_devices=num_devices, num_layers=num_layers)


def _recipe(leaves: Leaves) -> None:
    """Take what the Trainer computes in, of a model that the program loads."""
    recipes = {"bf16": "bf16-mixed", "fp16": "fp16-mixed", "tf32": "tf32"}
    if say_precision(leaves, recipes) is None:
        leaves.say("precision", "fp32", "(neither bf16 nor fp16)")
    if leaves.taken[-1].value in IN_FP32:
        leaves.notes.append(
            "a model that the program loads in 16 bits trains in them: --precision bf16 says so"
        )


def _trl(leaves: Leaves) -> None:
    """Take what TRL is told beside the Trainer's arguments."""
    leaves.take(MODEL, str)
    kind = _kind(leaves)
    stand_in(leaves, {**DEFAULTS, "learning_rate": LEARNING_RATES[kind], **TRL_DEFAULTS})
    if kind == "dpo":
        _pairs(leaves)
    elif kind == read_grpo.TASK:
        read_grpo.take_grpo(leaves)
    else:
        _rows(leaves)
    _length(leaves)
    half = _half(leaves)
    _method(leaves, half, _trl_recipe(leaves, half))
    attention = leaves.take("attn_implementation", str, "")
    leaves.say("attention", _ATTENTIONS.get(attention), "attn_implementation")
    if attention and attention not in _ATTENTIONS:
        leaves.notes.append(f"attn_implementation={attention} is planned as --attention says")


def _kind(leaves: Leaves) -> str:
    """Return whether ``trl sft``, ``trl dpo`` or ``trl grpo`` reads the file."""
    other = next((key for key in _OF_OTHERS if key in leaves.rest), None)
    if other is not None:
        raise UnsupportedError(
            f"{leaves.path}: {other} is of {_OF_OTHERS[other]}, which this version does not plan; "
            f"give a file of trl sft or trl dpo"
        )
    if read_grpo.is_grpo(leaves.rest):
        return read_grpo.TASK
    losses = _losses(leaves)
    is_dpo = bool(_OF_PAIRS & {*leaves.rest}) or bool(losses and losses[0] not in _SFT_LOSSES)
    usual = {"sigmoid"} if is_dpo else _LIKELIHOODS
    if unknown := [loss for loss in losses if loss not in usual]:
        raise UnsupportedError(
            f"{leaves.path}: loss_type={unknown[0]} is not planned by this version; use sigmoid of "
            f"trl dpo, or nll of trl sft"
        )
    return "dpo" if is_dpo else "sft"


def _losses(leaves: Leaves) -> list[str]:
    value = leaves.rest.pop("loss_type", None)
    return [str(each) for each in (value if isinstance(value, list) else [value]) if each]


def _pairs(leaves: Leaves) -> None:
    divergence = leaves.take("f_divergence_type", str, "reverse_kl")
    if divergence != "reverse_kl" or leaves.take("sync_ref_model", bool, False):
        what = f"f_divergence_type={divergence}" if divergence != "reverse_kl" else "sync_ref_model"
        raise UnsupportedError(
            f"{leaves.path}: {what} is not planned by this version; leave it out"
        )
    leaves.say("task", "dpo", "(trl dpo)")
    leaves.say("packing", "none", "(trl dpo)")
    leaves.rest |= {"beta": numbered(leaves.rest["beta"])} if "beta" in leaves.rest else {}
    leaves.say("dpo_beta", leaves.take("beta", float), "beta")
    if leaves.take("precompute_ref_log_probs", bool, False):
        leaves.say("reference", "precomputed", "precompute_ref_log_probs")


def _rows(leaves: Leaves) -> None:
    """Take which tokens are learnt, and how rows are made."""
    switches = ("assistant_only_loss", "completion_only_loss")
    on = [switch for switch in switches if leaves.take(switch, bool, False)]
    leaves.say("task", "chat" if on else "causal-lm", on[0] if on else "(trl sft)")
    packs = leaves.take("packing", bool, False)
    strategy = leaves.take("packing_strategy", str, "bfd")
    kind = _PACKINGS.get(strategy, "documents") if packs else "none"
    if on and kind == "wrapped":
        kind = "documents"
        leaves.notes.append("packed chats are planned apart from one another, as bfd has it")
    leaves.say("packing", kind, "packing")


def _length(leaves: Leaves) -> None:
    length = leaves.take("max_length", int)
    leaves.say("seq_len", length, "max_length")
    if length is None:
        leaves.notes.append("max_length cuts no row: --seq-len says of how many tokens one may be")


def _trl_recipe(leaves: Leaves, half: str) -> str:
    """Take the recipe and return it: autocast over weights of 32 bits, or what is loaded in 16."""
    if "bf16" not in leaves.rest:
        leaves.rest["bf16"] = str(leaves.rest.get("fp16")).lower() != "true"
    is_full = not leaves.rest.get("use_peft")
    key = "dtype" if half else "(neither bf16 nor fp16)"
    if half and is_full:
        switches = [str(leaves.rest.pop(each, None)) for each in ("bf16", "fp16", "tf32")]
        if "true" in map(str.lower, switches[:2]) and is_fsdp(leaves):
            half, key = f"{half}-mixed", "dtype, bf16 or fp16, and fsdp"
        leaves.say("precision", half, key)
        return half
    recipe = say_precision(leaves, {"bf16": "bf16-mixed", "fp16": "fp16-mixed"})
    if recipe is None:
        is_tf32 = leaves.take("tf32", bool, False)
        recipe = half or ("tf32" if is_tf32 else "fp32")
        leaves.say("precision", recipe, key)
    return recipe


def _half(leaves: Leaves) -> str:
    """Take the type of 16 bits that the model is loaded in; empty: it is loaded in 32."""
    dtype = str(leaves.rest.pop("dtype"))
    if dtype == "auto":
        leaves.notes.append("dtype=auto is that of the checkpoint: planned as bfloat16")
        dtype = "bfloat16"
    if dtype not in {*_HALVES, "float32"}:
        raise InputError(
            f"{leaves.path}: dtype is {dtype}; give float32, bfloat16, float16 or auto"
        )
    return _HALVES.get(dtype, "")


def _method(leaves: Leaves, half: str, recipe: str) -> None:
    """Take what trains."""
    is_adapted = leaves.take("use_peft", bool, False)
    bits = _bits(leaves)
    if not is_adapted:
        if bits:
            raise InputError(
                f"{leaves.path}: load_in_{bits}bit goes with adapters; give use_peft: true, or "
                f"load the model whole"
            )
        leaves.say("method", "full", "(use_peft is off)")
        return
    if leaves.rest.get("lora_target_parameters"):
        raise UnsupportedError(
            f"{leaves.path}: lora_target_parameters is not planned by this version; use "
            f"lora_target_modules"
        )
    whole = "same" if not half or recipe == half else half
    is_double = leaves.take("use_bnb_nested_quant", bool, False)
    held = Held(bits, is_double=is_double, whole=whole)
    say_adapter(leaves, held, is_dora=leaves.take("use_dora", bool, False), key="use_peft")
    leaves.say("lora_rank", leaves.take("lora_r", int, _RANK), "lora_r")
    leaves.say("lora_alpha", leaves.take("lora_alpha", float, float(_ALPHA)), "lora_alpha")
    targets = names_of(leaves, "lora_target_modules")
    if targets is None:
        leaves.notes.append(f"lora_target_modules is PEFT's choice: planned as {_TARGETS}")
    leaves.say("lora_targets", targets or _TARGETS, "lora_target_modules")
    leaves.say("trained_modules", names_of(leaves, "lora_modules_to_save"), "lora_modules_to_save")
    if bits:
        leaves.notes.append("adapters beside a quantised base are bfloat16 in TRL: planned in fp32")
        if not half and recipe not in IN_FP32:
            leaves.say("upcast", "all", "dtype")
    elif recipe in NARROW:
        leaves.say("adapter_dtype", "fp32", "(get_peft_model)")


def _bits(leaves: Leaves) -> int | None:
    """Take the bits of a quantised base."""
    on = [bits for bits in (4, 8) if leaves.take(f"load_in_{bits}bit", bool, False)]
    if len(on) > 1:
        raise InputError(f"{leaves.path}: a base is in 4 bits or in 8; leave one out")
    kind = leaves.take("bnb_4bit_quant_type", str, "nf4")
    if on == [4] and kind != "nf4":
        raise UnsupportedError(
            f"{leaves.path}: bnb_4bit_quant_type={kind} is not planned by this version; use nf4"
        )
    return on[0] if on else None


def _memory(leaves: Leaves, num_devices: int) -> None:
    """Take checkpoints, which have two names, kernels, and how devices share the work."""
    names = ("activation_checkpointing", "gradient_checkpointing")
    key = next((name for name in names if name in leaves.rest), "(off where nothing turns it on)")
    switches = [leaves.take(name, bool, False) for name in names]
    is_on = switches[0] if key == names[0] else switches[1]
    recomputes = take_spread(leaves, num_devices)
    again = "full" if is_on or recomputes else "none"
    leaves.say("activation_checkpointing", [again], key)
    task = next((each.value for each in leaves.taken if each.flag == "task"), "")
    take_of_trainer(leaves, str(task))
