"""torchtune's YAML read back: which flags of ``brimful plan`` say the same.

A file names the parts of a run by what builds them (``_component_``). Which recipe runs it stands
in the command line (``tune run RECIPE``, ``programs/torchtune.py``) and follows from the parts
where that is not read: adapters from the model's builder, pairs from the loss, sharding from there
being several devices.

Source: ``recipes/*.py``, ``torchtune/training/{_distributed,activations,_compile,precision}.py``
and ``torchtune/models/*/_model_builders.py`` of torchtune 0.7.0.dev (commit bd2a0fc7), whose
defaults stand in for what a file does not say.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brimful.allocator.config import EXPANDABLE
from brimful.errors import InputError, UnknownNameError, UnsupportedError
from brimful.export.fused_losses import CHUNKED_LOSSES, take_kept_chunks
from brimful.export.leaves import Leaves, Read
from brimful.export.torchtune_models import (
    COMPONENT,
    built,
    in_four_bits,
    known_model,
    takes_lora,
)
from brimful.export.torchtune_updates import take_update
from brimful.export.trainer_leaves import Batches, Held, say_adapter, take_batches
from brimful.models.config import load_model
from brimful.models.targets import check_targets
from brimful.values.job import QAT

PROGRAM = "torchtune"
LAUNCH = "tune"
"""The section that a command line is told in: ``run`` is the recipe, ``processes`` how many."""
_MODELS = ("model", "policy_model")
_PARTS = (*_MODELS, "tokenizer")
_TASKS = {
    "grpo": "grpo", "ppo": "ppo", "knowledge_distillation": "knowledge-distillation",
    "dpo": "dpo", "rso": "dpo",
}  # fmt: skip
"""By what the names of recipes and losses hold, the rarer first."""
_TEACHER, _VALUE, _STAGED = "teacher_model", "reward_and_value_model", "orchestration"
_WRITTEN = frozenset({"grpo", "ppo"})
"""Tasks whose texts the model writes."""
_TRAINED = "_trainable"
_RANK, _ALPHA = 8, 16.0
_ATTENTION = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "output_proj": "o_proj"}
_MLP = ("gate_proj", "up_proj", "down_proj")
"""Layers of torchtune's blocks, in the words of ``models.targets``."""
_TYPES = {"bf16": "bf16", "fp32": "fp32"}
_GROUP = 256
_QUANTIZER = "quantizer"
_AGAIN, _AWAY = "enable_activation_checkpointing", "enable_activation_offloading"
_EARLY, _CLIP, _ACCUMULATION = "optimizer_in_bwd", "clip_grad_norm", "gradient_accumulation_steps"
_CHUNKS, _NUM_CHUNKS = "loss.num_output_chunks", 8
_DEGREES = ("tensor_parallel_dim", "context_parallel_dim", "data_parallel_replicate_dim")
_SHARD = "data_parallel_shard_dim"


def is_torchtune(content: Mapping[str, Any]) -> bool:
    """Whether a file's parts are named as torchtune names them."""
    parts = (content.get(part) for part in _PARTS)
    return any(isinstance(part, dict) and COMPONENT in part for part in parts)


def model_of(content: Mapping[str, Any]) -> str:
    """Return the model that a file builds; empty where it is none that is known by name."""
    return known_model(built(content))


def unnamed_words(content: Mapping[str, Any]) -> str:
    """Say why a file names no model."""
    builder = built(content)
    return f"builds {builder}, which is no model that is known here" if builder else "names none"


def read_torchtune(
    path: Path, content: dict[str, Any], *, num_devices: int, num_layers: int
) -> Read:
    """Read a file.

    Raises FileFormatError: a value is of another type. Raises InputError: its numbers do not go
    together. Raises UnsupportedError: this version plans nothing like it.
    """
    leaves = Leaves(path, content, PROGRAM)
    # Put in what stands for another key's value: `${batch_size}`.
    for key, value in leaves.rest.items():
        if isinstance(value, str) and value[:2] == "${" and value[-1] == "}":
            leaves.rest[key] = leaves.rest.get(value[2:-1], value)
    recipe = _launch(leaves, num_devices)
    task = _task(leaves, recipe)
    is_adapted = _method(leaves, built(content))
    _precision(leaves)
    _rows(leaves, task)
    copies = _degrees(leaves, num_devices)
    _early(leaves, is_adapted=is_adapted)
    _batches(leaves, task, copies)
    is_away = take_update(leaves)
    _loss(leaves, task)
    _offload(leaves, num_devices, num_layers, is_away=is_away)
    for flag in ("pp", "ep"):
        leaves.say(flag, 1, f"({PROGRAM} has none)")
    leaves.say("fused_kernels", "none", f"({PROGRAM} has none)")
    return leaves.read()


def _launch(leaves: Leaves, num_devices: int) -> str:
    """Take what a command line says beside the file, and return the recipe; empty: none is said."""
    recipe = str(leaves.rest.pop(f"{LAUNCH}.run", ""))
    leaves.rest.pop(f"{LAUNCH}.processes", None)
    allocator = leaves.rest.pop(f"{LAUNCH}.allocator", EXPANDABLE)
    leaves.say("allocator", allocator, "(torchtune/__init__.py)")
    if _STAGED in {key.partition(".")[0] for key in leaves.rest}:
        raise UnsupportedError(
            f"{leaves.path}: {_STAGED} parts GPUs among writing and training, which this version "
            f"does not plan; give the file of dev/grpo_full_finetune_distributed"
        )
    if recipe.endswith("_single_device") and num_devices > 1:
        raise InputError(
            f"tune run {recipe} runs on one GPU, and the plan is for {num_devices}; give --gpus of "
            f"one, or the recipe for several ({recipe.replace('single_device', 'distributed')})"
        )
    return recipe


def _task(leaves: Leaves, recipe: str) -> str:
    """Take what is learnt, and return it; what is not run is refused later, as if typed."""
    loss = str(leaves.rest.get(f"loss.{COMPONENT}", ""))
    parts = {key.partition(".")[0] for key in leaves.rest}
    marks = [recipe, loss.rpartition(".")[2]]
    marks += ["knowledge_distillation"] * (_TEACHER in parts) + ["ppo"] * (_VALUE in parts)
    text = " ".join(marks).lower()
    special = next((task for mark, task in _TASKS.items() if mark in text), "")
    task = _of_rows(leaves)
    if not special:
        leaves.say("task", task, f"dataset.{COMPONENT}")
        return task
    leaves.say("task", special, f"loss.{COMPONENT}")
    if special == "dpo":
        for key, flag in (("beta", "dpo_beta"), ("label_smoothing", "label_smoothing")):
            leaves.say(flag, leaves.take(f"loss.{key}", float), f"loss.{key}")
        if "rso" in text:
            leaves.notes.append("RSOLoss is planned as DPO's: other numbers, the same memory")
    if teacher := leaves.take(f"{_TEACHER}.{COMPONENT}", str):
        leaves.stand_ins.append(f"the teacher {teacher.rpartition('.')[2]} is not counted")
    return special


def _of_rows(leaves: Leaves) -> str:
    """Take which tokens of rows are learnt: all, or the answers in them."""
    sets = leaves.rest.get("dataset")
    every = [each for each in sets if isinstance(each, dict)] if isinstance(sets, list) else []
    if not every:
        names = (COMPONENT, "train_on_input")
        every = [{name: leaves.rest.pop(f"dataset.{name}", None) for name in names}]
    return "causal-lm" if all(map(_learns_all, every)) else "chat"


def _learns_all(rows: Mapping[str, Any]) -> bool:
    """Whether a data set has every token learnt: those of plain texts, and Alpaca's by default."""
    builder, asked = str(rows.get(COMPONENT)), rows.get("train_on_input")
    return "text_completion" in builder or bool("alpaca" in builder if asked is None else asked)


def _method(leaves: Leaves, builder: str) -> bool:
    """Take what trains; return whether adapters do."""
    for section in _MODELS:
        leaves.take(f"{section}.{COMPONENT}", str)
    quantizer = leaves.take(f"{_QUANTIZER}.{COMPONENT}", str, "")
    is_rounded = "QAT" in quantizer
    is_adapted = takes_lora(builder) or "model.lora_attn_modules" in leaves.rest
    if parts := [key for key in leaves.rest if key.startswith("model.") and _TRAINED in key]:
        leaves.stand_ins.append(f"{', '.join(parts)}: planned as if the language part trained")
    if not is_adapted:
        leaves.say("method", QAT if is_rounded else "full", f"model.{COMPONENT}")
        if is_rounded:
            leaves.say("qat_scheme", "int4", f"{_QUANTIZER}.{COMPONENT}")
            key = f"{_QUANTIZER}.groupsize"
            leaves.say("qat_group_size", leaves.take(key, int, _GROUP), key)
        return False
    is_packed = leaves.take("model.quantize_base", bool, False) or in_four_bits(builder)
    is_dora = leaves.take("model.use_dora", bool, False)
    held = Held(4 if is_packed else None, whole="same")
    if is_rounded:
        leaves.say("method", "qat-lora", f"{_QUANTIZER}.{COMPONENT}")
    else:
        say_adapter(leaves, held, is_dora=is_dora, key=f"model.{COMPONENT}")
    leaves.say("lora_rank", leaves.take("model.lora_rank", int, _RANK), "model.lora_rank")
    leaves.say("lora_alpha", leaves.take("model.lora_alpha", float, _ALPHA), "model.lora_alpha")
    targets = _targets(leaves, known_model(builder))
    leaves.say("lora_targets", ",".join(targets), "model.lora_attn_modules")
    return True


def _targets(leaves: Leaves, model: str) -> list[str]:
    """Take the layers that have adapters, as the blocks of a known model are called.

    torchtune's blocks have Llama's parts whatever the model; of one that has several in a layer
    that layer stands in.
    """
    key = "model.lora_attn_modules"
    given = leaves.take(key, list, [])
    if unknown := [each for each in given if each not in _ATTENTION]:
        raise InputError(
            f"{leaves.path}: {key} has {unknown[0]!r}, which is none of torchtune's layers; use "
            f"{', '.join(_ATTENTION)}"
        )
    targets = [_ATTENTION[each] for each in given]
    targets += _MLP if leaves.take("model.apply_lora_to_mlp", bool, False) else ()
    if leaves.take("model.apply_lora_to_output", bool, False):
        leaves.stand_ins.append("planned without apply_lora_to_output: the head has no adapter")
    if not targets:
        raise InputError(
            f"{leaves.path}: adapters are beside no layer; name some in {key}, or set "
            f"model.apply_lora_to_mlp"
        )
    if not model:
        return targets
    try:
        check_targets(load_model(model), tuple(targets))
    except UnknownNameError as error:
        if instead := str(error.nearest.get("lora_targets", "")):
            leaves.stand_ins.append(f"adapters of {','.join(targets)} are planned of {instead}")
            return instead.split(",")
    return targets


def _precision(leaves: Leaves) -> None:
    """Take the type that everything is held and computed in: no recipe holds copies in fp32."""
    held = leaves.take("dtype", str, "fp32")
    if held not in _TYPES:
        raise InputError(
            f"{leaves.path}: dtype is {held}, in which torchtune's recipes do not train; give "
            f"{' or '.join(_TYPES)}"
        )
    leaves.say("precision", held, "dtype")
    leaves.take("fp8_recipe_name", str)
    if leaves.take("enable_fp8_training", bool, False):
        leaves.stand_ins.append(
            f"{held} for enable_fp8_training, whose products keep as much and are faster"
        )


def _rows(leaves: Leaves, task: str) -> None:
    """Take how long rows are, and whether several lie in one."""
    key = "tokenizer.max_seq_len"
    length = leaves.take(key, int)
    written = leaves.take("max_generated_tokens", int, 0) if task in _WRITTEN else 0
    leaves.take(f"tokenizer.{COMPONENT}", str)
    if length is None:
        leaves.notes.append(f"{key} cuts no row: --seq-len says of how many tokens one may be")
    else:
        leaves.say("seq_len", length + written, key)
    sets = leaves.rest.get("dataset")
    every = [each for each in sets if isinstance(each, dict)] if isinstance(sets, list) else []
    leaves.take("packed", bool)
    packs = leaves.take("dataset.packed", bool, False) or any(each.get("packed") for each in every)
    is_of_one = task in _WRITTEN or task == "dpo"
    leaves.say("packing", "documents" if packs and not is_of_one else "none", "dataset.packed")
    if packs and not is_of_one:  # ``_SUPPORTS_FLEX_ATTENTION``: of all that this version runs on
        leaves.say("attention", "flex", "dataset.packed")


def _batches(leaves: Leaves, task: str, copies: int) -> None:
    """Take the batch of a device, and that of a step.

    Of texts that the model writes itself: those of one update.
    """
    if task in _WRITTEN:
        times = leaves.take("grpo_samples", int, 1)
        rows = leaves.take("batch_size", int, 1) * times
        parts = leaves.take(_ACCUMULATION, int, 1)
        whole = leaves.take("ppo_batch_size", int, rows)
        if min(whole, parts) < 1 or whole % parts:
            raise InputError(
                f"{leaves.path}: {whole} texts an update are not {parts} parts ({_ACCUMULATION}); "
                f"correct one"
            )
        leaves.rest |= {"batch_size": whole // parts, _ACCUMULATION: parts}
    take_batches(leaves, Batches("batch_size", _ACCUMULATION), copies)


def _early(leaves: Leaves, *, is_adapted: bool) -> None:
    """Take whether parameters are updated in backward, which no recipe of adapters asks."""
    is_early = leaves.take(_EARLY, bool, False) and not is_adapted
    beside = {
        _CLIP: leaves.rest.get(_CLIP) is not None,
        _ACCUMULATION: leaves.rest.get(_ACCUMULATION) not in {None, 1},
    }
    if is_early and any(beside.values()):
        key = next(key for key, stands in beside.items() if stands)
        raise InputError(
            f"{leaves.path}: {_EARLY} goes with no {key}, which is {leaves.rest[key]}; torchtune "
            f"would refuse it: leave one out"
        )
    leaves.say("optimizer_in_backward", is_early, _EARLY)


def _loss(leaves: Leaves, task: str) -> None:
    """Take what is compiled, and in how many pieces the loss is."""
    whole, by_part = leaves.take("compile", bool, False), leaves.has("compile")
    parts = {
        part: leaves.take(f"compile.{part}", bool, by_part)
        for part in ("model", "loss", "scale_grads")
    }
    name = leaves.take(f"loss.{COMPONENT}", str, "").rpartition(".")[2]
    is_chunked = name in CHUNKED_LOSSES and task != "dpo"
    compiled = ["blocks"] * (whole or parts["model"])
    if (whole or parts["loss"]) and not is_chunked:  # else as ours in fewer chunks, below
        compiled.append("loss")
    leaves.say("compile", "+".join(compiled) or "none", "compile")
    if not is_chunked:
        leaves.say("loss_chunks", 1, f"loss.{COMPONENT}")
        return
    num = leaves.take(_CHUNKS, int, _NUM_CHUNKS)
    if num < 1:
        raise InputError(f"{leaves.path}: {_CHUNKS} is {num}; give 1 or more")
    take_kept_chunks(leaves, name, num, compiled=whole or parts["loss"])


def _checkpoints(leaves: Leaves, num_layers: int) -> bool:
    """Take what is recomputed: every block, or by ``ac_mode`` every so many, where that is off.

    Returns whether the switch of every block is on.
    """
    is_on: bool = leaves.take(_AGAIN, bool, False)
    mode = leaves.take("ac_mode", str)
    option = leaves.rest.pop("ac_option", None)
    key, blocks = _AGAIN, num_layers if is_on and mode is None else 0
    if mode is not None and not is_on:
        key = "ac_mode"
        every = int(option) if str(option).isdecimal() else 0
        if mode not in {"none", "full", "selective"} or (mode == "selective" and not every):
            raise InputError(
                f"{leaves.path}: ac_mode={mode} with ac_option={option} is nothing that torchtune "
                f"does; use full, or selective with ac_option: 2, every second block"
            )
        blocks = {"none": 0, "full": num_layers}.get(mode, num_layers // (every or 1))
    again = "none" if not blocks else "full" if blocks == num_layers else f"full:{blocks}"
    leaves.say("activation_checkpointing", [again], key)
    return is_on


def _offload(leaves: Leaves, num_devices: int, num_layers: int, *, is_away: bool) -> None:
    """Take what is kept on the host: activations, and by FSDP or the optimizer its state."""
    is_again = _checkpoints(leaves, num_layers)
    is_sent = leaves.take(_AWAY, bool, False)
    leaves.take("activation_offloading_use_streams", bool)
    if is_sent and not is_again:
        raise InputError(
            f"{leaves.path}: {_AWAY} goes with {_AGAIN} alone, as torchtune would say; set that too"
        )
    by_fsdp = leaves.take("fsdp_cpu_offload", bool, False) and num_devices > 1
    if by_fsdp:
        leaves.moves_shards = "fsdp_cpu_offload"
    kept = ["optimizer"] * (is_away or by_fsdp) + [f"activations:{num_layers}"] * is_sent
    leaves.say("offload", ",".join(kept) or "none", _AWAY if is_sent else "fsdp_cpu_offload")


def _degrees(leaves: Leaves, num_devices: int) -> int:
    """Take how devices are used; return how many share a batch."""
    tp, cp, replicate = (leaves.take(key, int, 1) for key in _DEGREES)
    shard = leaves.take(_SHARD, int, -1)
    leaves.take("context_parallel_rotate_method", str)
    plan = f"{_DEGREES[0].removesuffix('_dim')}_plan"
    leaves.rest = {key: x for key, x in leaves.rest.items() if key.partition(".")[0] != plan}
    is_all = shard == -1
    if is_all:
        shard = max(1, num_devices // max(1, replicate * tp * cp))
    if min(tp, cp, replicate, shard) < 1 or replicate * shard * tp * cp != num_devices:
        raise InputError(
            f"{leaves.path}: {replicate} replicas x {shard} shards x tensor {tp} x context {cp} "
            f"are {replicate * shard * tp * cp} devices, and the plan is for {num_devices}; give "
            f"--gpus or correct it"
        )
    leaves.cut_rows(cp, _DEGREES[1])
    shard *= cp  # whose devices share the parameters too
    stays = leaves.take("fsdp_reshard_after_forward", bool, True) is False
    stage = 2 if stays else 3
    leaves.say("zero", stage if shard > 1 else 0, "fsdp_reshard_after_forward")
    if not is_all:  # else what is left, however many devices there are
        leaves.say("dp_shard", shard, _SHARD)
    leaves.say("dp_replicate", replicate, _DEGREES[2])
    leaves.say("tp", tp, _DEGREES[0])
    own = leaves.take("custom_sharded_layers", list)
    if own and shard > 1:
        leaves.notes.append(
            f"custom_sharded_layers={','.join(map(str, own))} are planned with what is gathered "
            f"for a whole step, which takes more"
        )
    return int(replicate * shard)
