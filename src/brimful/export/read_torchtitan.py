"""The TOML of torchtitan's jobs read back: which flags of ``brimful plan`` say the same.

Releases up to 0.2 are configured by such a file; later ones by functions of Python, which are not
read. What a section that is there does not say has torchtitan's default.

Source: ``torchtitan/config/job_config.py`` of commit 000204a4, which has the sections
``training``, ``parallelism``, ``optimizer`` and ``lr_scheduler`` with these names and defaults;
later commits add ``training.dtype`` and ``compile.enable``, earlier ones call
``local_batch_size`` ``batch_size`` and have the degrees under ``training``. ``run_train.sh``, which
starts a job by its file, has segments that expand since October 2024 (commit a5e57e4a9).
"""

import math
import tomllib
from pathlib import Path
from typing import Any

from brimful.allocator.config import EXPANDABLE
from brimful.errors import FileFormatError, InputError, UnsupportedError
from brimful.export.leaves import Leaves, Read
from brimful.export.torchtitan import COMPONENTS, MODELS, SCHEDULES
from brimful.files.writing import read_whole
from brimful.programs.torchtitan import LAUNCH
from brimful.techniques.optimizers import DEFAULT, SQUEEZED, squeezed

PROGRAM = "torchtitan"
_SECTIONS = frozenset({"training", "parallelism", "activation_checkpoint", "lr_scheduler"})
"""Sections of which two or more make a file torchtitan's."""
_MORE_MODELS = {
    ("llama3", "8B"): "llama-3.1-8b",
    ("deepseek_v3", "16B"): "deepseek-v2-lite",
    ("deepseek_v3", "236B"): "deepseek-v2",
    ("deepseek_v3", "671B"): "deepseek-v3",
    ("llama4", "17bx16e"): "llama-4-scout",
    ("llama4", "17bx128e"): "llama-4-maverick",
}
"""Of the same dimensions, by ``torchtitan/models/*/__init__.py`` of the same commit."""
_BATCH, _SEQ_LEN, _STEPS, _WARMUP, _RATE = 8, 2048, 10_000, 200, 8e-4
"""torchtitan's defaults."""
_TRAINING, _DEGREES, _AGAIN = "training", "parallelism", "activation_checkpoint"
_OPTIMIZER, _SCHEDULE = "optimizer", "lr_scheduler"
_RECIPES = {
    ("float32", "bfloat16"): "bf16-mixed",
    ("float32", "float16"): "fp16-mixed",
    ("float32", "float32"): "fp32",
    ("bfloat16", "bfloat16"): "bf16",
}
"""Of the types of parameters and of the forward pass."""


def load_toml(path: Path) -> dict[str, Any]:
    """Load a file of settings in TOML."""
    try:
        return tomllib.loads(read_whole(path).decode("utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); check the path") from error
    except FileFormatError:
        raise
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0] if isinstance(error, tomllib.TOMLDecodeError) else ""
        raise FileFormatError(f"{path} is no TOML{reason and f': {reason}'}; correct it") from error


def is_torchtitan(content: dict[str, Any]) -> bool:
    """Whether a file's sections are torchtitan's."""
    return len(_SECTIONS & {*content}) > 1


def model_of(content: dict[str, Any]) -> str:
    """Return the model that a file names; one that is not known as family and size."""
    section = content.get("model")
    name, flavor = ((section or {}).get(key) for key in ("name", "flavor"))
    if not isinstance(name, str) or not isinstance(flavor, str):
        return ""
    known = {pair: ours for ours, pair in MODELS.items()} | _MORE_MODELS
    return known.get((name, flavor), f"{name}-{flavor}")


def read_torchtitan(
    path: Path, content: dict[str, Any], *, num_devices: int, num_layers: int
) -> Read:
    """Read a file.

    Raises FileFormatError: a value is of another type. Raises InputError: its numbers do not go
    together. Raises UnsupportedError: this version plans nothing like it.
    """
    leaves = Leaves(path, content, PROGRAM)
    for key in ("model.name", "model.flavor"):
        leaves.rest.pop(key, None)  # told as the model
    leaves.say("allocator", leaves.rest.pop(f"{LAUNCH}.allocator", EXPANDABLE), "(run_train.sh)")
    copies, parts = _degrees(leaves, num_devices)
    _batches(leaves, copies, parts)
    _precision(leaves)
    _checkpoints(leaves, num_layers)
    _optimizer(leaves)
    _schedule(leaves)
    _compiled(leaves)
    key = "loss.num_chunks"  # later releases', whose files are no TOML: of their command lines
    leaves.say("loss_chunks", leaves.take(key, int, 1) if key in leaves.rest else 1, key)
    is_away = leaves.take(f"{_TRAINING}.enable_cpu_offload", bool, False)
    if is_away:
        leaves.say_shards_away(f"{_TRAINING}.enable_cpu_offload")
    else:
        leaves.say("offload", "none", f"{_TRAINING}.enable_cpu_offload")
    return leaves.read()


def _compiled(leaves: Leaves) -> None:
    """Take what is compiled: of the releases that name components both, where they name none."""
    parts = leaves.take("compile.components", list, [*COMPONENTS])
    if leaves.take("compile.enable", bool, False):
        ours = "+".join(COMPONENTS[part] for part in COMPONENTS if part in parts)
        leaves.say("compile", ours or "none", "compile.components")
    elif leaves.take(f"{_TRAINING}.compile", bool, False):
        leaves.say("compile", "blocks", f"{_TRAINING}.compile")


def _degree(leaves: Leaves, name: str, default: int = 1) -> int:
    key = f"{_DEGREES}.{name}"
    if key not in leaves.rest and f"{_TRAINING}.{name}" in leaves.rest:
        key = f"{_TRAINING}.{name}"  # where earlier releases had it
    value = int(leaves.take(key, int, default))
    if value < 1 and (value, default) != (-1, -1):
        raise InputError(f"{leaves.path}: {key} is {value}; give 1 or more")
    return value


def _degrees(leaves: Leaves, num_devices: int) -> tuple[int, int]:
    """Take how devices are used; return how many share a batch, and how many of them each row."""
    parts = _degree(leaves, "context_parallel_degree")
    replicate = _degree(leaves, "data_parallel_replicate_degree")
    shard = _degree(leaves, "data_parallel_shard_degree", -1)
    tp, pp = (_degree(leaves, f"{kind}_parallel_degree") for kind in ("tensor", "pipeline"))
    ep = _degree(leaves, "expert_parallel_degree")
    others = replicate * tp * pp * parts
    is_all = shard == -1
    if is_all:
        shard = max(1, num_devices // others)
    if others * shard != num_devices:
        raise InputError(
            f"{leaves.path}: {replicate} replicas x {shard} shards x tensor {tp} x pipeline {pp} x "
            f"context {parts} are {others * shard} devices, and the plan is for {num_devices}; "
            f"give --gpus or correct it"
        )
    shard *= parts  # which share the parameters too
    _sharding(leaves, replicate, shard, pp)
    if shard > 1 and not is_all:  # else what is left, however many devices there are
        leaves.say("dp_shard", shard, f"{_DEGREES}.data_parallel_shard_degree")
    for flag, value in (("tp", tp), ("ep", ep), ("pp", pp)):
        leaves.say(flag, value, f"{_DEGREES}.{_LONG[flag]}_parallel_degree")
    _pipeline(leaves, pp)
    return replicate * shard, parts


_LONG = {"tp": "tensor", "ep": "expert", "pp": "pipeline"}


def _sharding(leaves: Leaves, replicate: int, shard: int, pp: int) -> None:
    """Take the stage of ZeRO: FSDP where anything is sharded, and copies elsewhere."""
    key = f"{_DEGREES}.fsdp_reshard_after_forward"
    policy = leaves.take(key, str, "default")
    if policy not in {"default", "always", "never"}:
        raise InputError(f"{leaves.path}: {key} is {policy}; give default, always or never")
    stage = 2 if policy == "never" or (policy == "default" and pp > 1) else 3
    degree = f"{_DEGREES}.data_parallel_shard_degree"
    leaves.say("zero", stage if shard > 1 else 0, key if shard > 1 else degree)
    leaves.say("dp_replicate", replicate, f"{_DEGREES}.data_parallel_replicate_degree")


def _pipeline(leaves: Leaves, pp: int) -> None:
    key = f"{_DEGREES}.pipeline_parallel_schedule"
    name = leaves.take(key, str, "1F1B")
    if pp == 1:
        return
    known = {theirs: ours for ours, theirs in SCHEDULES.items()}
    if name not in known:
        raise UnsupportedError(
            f"{leaves.path}: {key}={name} is not planned by this version; use {', '.join(known)}"
        )
    leaves.say("pp_schedule", known[name], key)


def _batches(leaves: Leaves, copies: int, parts: int) -> None:
    """Take the batch of a device, and that of a step, which is accumulated where it is larger.

    ``parts``: devices that share a row, so that there are as many rows of a part each.
    """
    key = f"{_TRAINING}.local_batch_size"
    if key not in leaves.rest and f"{_TRAINING}.batch_size" in leaves.rest:
        key = f"{_TRAINING}.batch_size"
    each = leaves.take(key, int, _BATCH)
    whole = leaves.take(f"{_TRAINING}.global_batch_size", int, -1)
    if each < 1:
        raise InputError(f"{leaves.path}: {key} is {each}; give 1 or more")
    whole = each * copies if whole < 0 else whole * parts
    if whole % (each * copies):
        raise InputError(
            f"{leaves.path}: global_batch_size={whole // parts} is not a multiple of {each} a "
            f"device x {copies // parts} that share it; correct it, or give --gpus"
        )
    part = leaves.take(f"{_DEGREES}.pipeline_parallel_microbatch_size", int, 1)
    is_cut = any(taken.flag == "pp" and taken.value > 1 for taken in leaves.taken)
    leaves.say("micro_batch", part if is_cut else each, key)
    leaves.say("global_batch", whole, key)
    leaves.say(
        "seq_len", leaves.take(f"{_TRAINING}.seq_len", int, _SEQ_LEN), f"{_TRAINING}.seq_len"
    )
    leaves.cut_rows(parts, f"{_DEGREES}.context_parallel_degree")
    leaves.say("steps", leaves.take(f"{_TRAINING}.steps", int, _STEPS), f"{_TRAINING}.steps")
    clip = leaves.take(f"{_TRAINING}.max_norm", float, 1.0)
    leaves.say("clip", clip if math.isfinite(clip) else 0.0, f"{_TRAINING}.max_norm")
    leaves.say("seed", leaves.take(f"{_TRAINING}.seed", int), f"{_TRAINING}.seed")


def _precision(leaves: Leaves) -> None:
    held = leaves.take(f"{_TRAINING}.dtype", str, "float32")
    key = f"{_TRAINING}.mixed_precision_param"
    forward = held if held == "bfloat16" else leaves.take(key, str, "bfloat16")
    converters = leaves.take("model.converters", list, [])
    is_fp8 = any("float8" in str(each) for each in converters)
    if any("mx" in str(each).split(".") for each in converters):
        leaves.notes.append("the mx formats of its converters are planned without")
    recipe = _RECIPES.get((held, forward))
    if recipe is None:
        raise UnsupportedError(
            f"{leaves.path}: {_TRAINING}.dtype={held} with mixed_precision_param={forward} is not "
            f"planned by this version; use float32 with bfloat16, float16 or float32, or bfloat16"
        )
    if is_fp8 and recipe == "bf16-mixed":
        leaves.say("precision", "fp8", "model.converters")
    else:
        leaves.say("precision", recipe, key)


def _checkpoints(leaves: Leaves, num_layers: int) -> None:
    """Take what is recomputed: all blocks, every so many, or all but what is expensive in each."""
    if not leaves.has(_AGAIN):
        return
    mode = leaves.take(f"{_AGAIN}.mode", str, "selective")
    option = str(leaves.rest.pop(f"{_AGAIN}.selective_ac_option", "2"))
    if mode == "selective" and option.isdecimal() and int(option):
        blocks = num_layers // int(option)
        values = ["full" if blocks == num_layers else f"full:{blocks}"] if blocks else ["none"]
        leaves.say("activation_checkpointing", values, f"{_AGAIN}.selective_ac_option")
    elif mode == "selective":
        leaves.say("activation_checkpointing", ["alternate"], f"{_AGAIN}.mode")
    elif mode in {"none", "full"}:
        leaves.say("activation_checkpointing", [mode], f"{_AGAIN}.mode")
    else:
        leaves.notes.append(f"{_AGAIN}.mode={mode} is not planned: the planner chooses")


def _optimizer(leaves: Leaves) -> None:
    name = leaves.take(f"{_OPTIMIZER}.name", str, "AdamW")
    if (other := SQUEEZED.get(squeezed(name))) is not None:
        leaves.say("optimizer", other, f"{_OPTIMIZER}.name")  # which who plans refuses, as if typed
        return
    if name != "AdamW":
        raise UnsupportedError(
            f"{leaves.path}: {_OPTIMIZER}.name={name} is not read by this version; use AdamW, or "
            f"leave it out and give --optimizer"
        )
    leaves.say("optimizer", DEFAULT, f"{_OPTIMIZER}.name")  # which is that one
    values = {"lr": ("learning_rate", _RATE), "eps": ("epsilon", None), "beta1": ("beta1", None),
              "beta2": ("beta2", None), "weight_decay": ("weight_decay", None)}  # fmt: skip
    for key, (flag, default) in values.items():
        place = f"{_OPTIMIZER}.{key}"
        leaves.say(flag, leaves.take(place, float, default), place)
    if leaves.take(f"{_OPTIMIZER}.early_step_in_backward", bool, False):
        leaves.say("optimizer_in_backward", True, f"{_OPTIMIZER}.early_step_in_backward")


def _schedule(leaves: Leaves) -> None:
    warmup = f"{_SCHEDULE}.warmup_steps"
    leaves.say("warmup_steps", leaves.take(warmup, int, _WARMUP), warmup)
    key = f"{_SCHEDULE}.decay_type"
    kind, share = leaves.take(key, str, "linear"), f"{_SCHEDULE}.decay_ratio"
    falls = leaves.take(share, float)
    if falls == 0:
        leaves.say("schedule", "constant", share)
    elif kind in {"linear", "cosine"}:
        leaves.say("schedule", kind, key)
    if falls or kind not in {"linear", "cosine"}:
        leaves.notes.append("the curve of its rates is another than the plan's: as much memory")
