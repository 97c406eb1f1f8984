"""DeepSpeed's JSON read back: which flags of ``brimful plan`` say the same.

Every leaf of the file ends in one of three lists: taken, left to the planner (``auto``), not read.
What this version cannot plan at all is refused, as the plan would be another training.

Source: https://www.deepspeed.ai/docs/config-json/ and ``deepspeed/runtime/config.py``,
``precision_config.py``, ``lr_schedules.py`` of DeepSpeed 0.19.8, whose defaults stand in for what
a section that is there does not say.
"""

import json
from pathlib import Path
from typing import Any

from brimful.errors import FileFormatError, InputError, UnsupportedError
from brimful.export.deepspeed import AUTOCAST, COSINE_ENDS_AT, SCALER, SCHEDULERS
from brimful.export.leaves import AUTO, Leaves, Read, load_json
from brimful.techniques.deepspeed_settings import (
    DEEPSPEEDS,
    OVERLAPS,
    REDUCED,
    EngineSettings,
    spell_engine_settings,
)
from brimful.techniques.optimizers import OPTIMIZERS, SQUEEZED, squeezed

PROGRAM = "DeepSpeed"
_ZERO, _ADAM = "zero_optimization", "optimizer.params"
OFFLOADS_BOTH = "offload_param without offload_optimizer is planned as if both were offloaded"
_SHARDS_ALL = 3
"""The stage that shards parameters."""
_PREFIX = "stage3_"
"""Of keys that DeepSpeed knows without it too."""
_WITHOUT_MEMORY = {"allgather_partitions": bool, "allgather_bucket_size": int,
                   "round_robin_gradients": bool}  # fmt: skip
"""Parameters are gathered in place, and gradients only ordered."""
_SCALE_POWER, _SCALE_WINDOW = 16, 1000
"""DeepSpeed's defaults of the loss scale."""
_READ = {
    read: name
    for name, rule in OPTIMIZERS.items()
    if rule.deepspeed is not None
    for read in rule.deepspeed.reads
}
_SAID = tuple(dict.fromkeys(r.deepspeed.name for r in OPTIMIZERS.values() if r.deepspeed))


def read_deepspeed(path: Path, *, num_devices: int, num_layers: int) -> Read:
    """Read a file.

    Raises FileFormatError: it is no JSON, no object, or holds a value of another type. Raises
    InputError: its numbers do not go together. Raises UnsupportedError: this version plans nothing
    like it.
    """
    content = load_json(path, PROGRAM)
    return read_settings(path, content, num_devices=num_devices, num_layers=num_layers)


def read_settings(
    path: Path, content: dict[str, Any], *, num_devices: int, num_layers: int
) -> Read:
    """Read what a file of DeepSpeed's says, or a section of another file.

    Raises FileFormatError: it holds a value of another type. Raises InputError: its numbers do not
    go together. Raises UnsupportedError: this version plans nothing like it.
    """
    leaves = Leaves(path, content, PROGRAM)
    _batches(leaves, num_devices)
    leaves.say("clip", leaves.take("gradient_clipping", float), "gradient_clipping")
    _stage(leaves, num_devices)
    _types(leaves)
    _optimizer(leaves)
    _scheduler(leaves)
    _checkpoints(leaves, num_layers)
    return leaves.read()


def _batches(leaves: Leaves, num_devices: int) -> None:
    """Take two of the three batch sizes and derive the third, as DeepSpeed does."""
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    whole, each, steps = (leaves.take(name, int) for name in names)
    for name, value in zip(names, (whole, each, steps), strict=True):
        if value is not None and value < 1:
            raise InputError(f"{leaves.path}: {name} is {value}; give 1 or more")
    if whole is not None and each is not None and steps is not None:
        product = each * steps * num_devices
        if product != whole:
            raise InputError(
                f"{leaves.path}: train_batch_size={whole} is not {each} a device x {steps} steps x "
                f"{num_devices} devices = {product}; correct it, or give --gpus"
            )
    elif whole is None and each is not None:
        whole = each * (steps or 1) * num_devices
    elif whole is not None and each is None and steps is not None:
        each, rest = divmod(whole, steps * num_devices)
        if rest:
            raise InputError(
                f"{leaves.path}: train_batch_size={whole} is not a multiple of {steps} steps x "
                f"{num_devices} devices; correct it, or give --gpus"
            )
    elif steps is not None and whole is None:
        leaves.accumulate(steps, num_devices, names[2])
    leaves.say("global_batch", whole, names[0])
    leaves.say("micro_batch", each, names[1])


def _stage(leaves: Leaves, num_devices: int) -> None:
    key = f"{_ZERO}.stage"
    is_open = leaves.rest.get(key) == AUTO
    stage = leaves.take(key, int, 0)
    if stage not in {0, 1, 2, 3}:
        raise InputError(f"{leaves.path}: {key} is {stage}; give 0, 1, 2 or 3")
    kept = ("optimizer", "param")
    away = [leaves.place(f"{_ZERO}.offload_{what}.device", what) for what in kept]
    if away[1] == "cpu":
        leaves.say("offload", "parameters", f"{_ZERO}.offload_param.device")
        if away[0] != "cpu":
            leaves.stand_ins.append(OFFLOADS_BOTH)
            leaves.notes.append(f"{OFFLOADS_BOTH}: a GPU holds more than planned and the host less")
    elif away[0] == "cpu":
        leaves.say("offload", "optimizer", f"{_ZERO}.offload_optimizer.device")
    else:
        leaves.say("offload", "none", f"(no {_ZERO}.offload_optimizer)")
    if is_open:
        return
    if stage and num_devices == 1:
        leaves.notes.append(f"{key}={stage} shards nothing on one device: planned as stage 0")
        stage = 0
    leaves.say("zero", stage, key)
    if stage:
        leaves.say("dp_replicate", 1, key)
    if stage > 1:  # gradients of every micro-batch are reduced to shards
        leaves.say("accumulate", "reduce-each", key)
    take_engine(leaves, stage)
    _plus_plus(leaves, stage)
    for degree in ("tp", "pp"):
        leaves.say(degree, 1, "(DeepSpeed's JSON has none)")


def take_engine(leaves: Leaves, stage: int) -> None:
    """Take how its engine shards: by its own defaults where nothing says it.

    What is ``auto`` is what Transformers writes there, and this version too.
    """
    if not stage:
        return
    found = dict[str, int]()
    usual = DEEPSPEEDS._replace(overlap_comm=stage == _SHARDS_ALL)._asdict()
    for name in EngineSettings._fields if stage == _SHARDS_ALL else (OVERLAPS, REDUCED):
        kind: type = bool if name == OVERLAPS else int
        spelled = (f"{_ZERO}.{each}" for each in (name, name.removeprefix(_PREFIX)))
        key = next((each for each in spelled if each in leaves.rest), f"{_ZERO}.{name}")
        is_open = leaves.rest.get(key) == AUTO
        value = int(leaves.take(key, kind, usual[name]))
        if value < 0:
            raise InputError(f"{leaves.path}: {key} is {value}; give 0 or more")
        if not is_open:
            found[name] = value
    leaves.engine_settings = spell_engine_settings(found)
    for name, of in _WITHOUT_MEMORY.items():
        leaves.take(f"{_ZERO}.{name}", of)
    if not leaves.take(f"{_ZERO}.contiguous_gradients", bool, True):
        leaves.notes.append("contiguous_gradients=false is planned as true: gradients in a bucket")


def _plus_plus(leaves: Leaves, stage: int) -> None:
    """Take what ZeRO++ keeps and sends in another way, of stage 3 alone.

    Source: ``zero/config.py`` of DeepSpeed; Wang et al. 2023, arXiv:2306.10209.
    """
    shared = leaves.take(f"{_ZERO}.zero_hpz_partition_size", int, 1)
    if shared < 1:
        raise InputError(
            f"{leaves.path}: {_ZERO}.zero_hpz_partition_size is {shared}; give 1 or more"
        )
    leaves.second_copy = shared if shared > 1 and stage == _SHARDS_ALL else 0
    sent = [what for what in ("weights", "gradients") if _is_quantized(leaves, what)]
    if sent and stage == _SHARDS_ALL:
        leaves.notes.append(
            f"zero_quantized_{' and zero_quantized_'.join(sent)}: fewer bytes are sent than is "
            f"planned, so that a step is faster where the network is what it waits for"
        )


def _is_quantized(leaves: Leaves, what: str) -> bool:
    return bool(leaves.take(f"{_ZERO}.zero_quantized_{what}", bool, False))


def _types(leaves: Leaves) -> None:
    """Take the recipe; none of the three sections is fp32."""
    names = ("fp16", "bf16", "torch_autocast")
    is_open = any(leaves.rest.get(f"{name}.enabled") == AUTO for name in names)
    chosen = [name for name in names if leaves.take(f"{name}.enabled", bool, False)]
    if len(chosen) > 1:
        raise InputError(
            f"{leaves.path}: {' and '.join(chosen)} are both enabled; enable one of them"
        )
    if not chosen:
        if not is_open:
            leaves.say("precision", "fp32", "(no 16-bit section is enabled)")
        return
    key = f"{chosen[0]}.enabled"
    if chosen == ["torch_autocast"]:
        dtype = leaves.take("torch_autocast.dtype", str, "bfloat16")
        recipes = {name: recipe for recipe, name in AUTOCAST.items()}
        if dtype not in recipes:
            raise InputError(
                f"{leaves.path}: torch_autocast.dtype is {dtype}; give bfloat16 or float16"
            )
        leaves.say("precision", recipes[dtype], key)
        return
    leaves.say("precision", f"{chosen[0]}-master", key)
    if chosen == ["fp16"]:
        _loss_scale(leaves)


def _loss_scale(leaves: Leaves) -> None:
    fixed = leaves.take("fp16.loss_scale", float, 0.0)
    if fixed:
        raise UnsupportedError(
            f"{leaves.path}: fp16.loss_scale={fixed:g} never changes, which this version does not "
            f"run; use 0, a scale that adapts itself"
        )
    power = leaves.take("fp16.initial_scale_power", int, _SCALE_POWER)
    window = leaves.take("fp16.loss_scale_window", int, _SCALE_WINDOW)
    leaves.say("initial_scale", 2.0**power, "fp16.initial_scale_power")
    leaves.say("growth_interval", window, "fp16.loss_scale_window")
    leaves.say("growth_factor", SCALER.growth_factor, "fp16 (DeepSpeed's own)")
    leaves.say("backoff_factor", SCALER.backoff_factor, "fp16 (DeepSpeed's own)")


def _optimizer(leaves: Leaves) -> None:
    if not leaves.has("optimizer"):
        return
    name = leaves.take("optimizer.type", str)
    if name is None:
        return
    if (other := SQUEEZED.get(squeezed(name))) is not None:
        leaves.say("optimizer", other, "optimizer.type")  # which who plans refuses, as if typed
        leaves.notes.append(f"{_ADAM} are {name}'s, and not planned")
        return
    if name.lower() not in _READ:
        raise UnsupportedError(
            f"{leaves.path}: optimizer.type={name} is none of this version's; use "
            f"{' or '.join(_SAID)}, or leave the section out and give --optimizer"
        )
    if not leaves.take(f"{_ADAM}.adam_w_mode", bool, True):
        raise UnsupportedError(
            f"{leaves.path}: {_ADAM}.adam_w_mode=false is Adam with decay in the gradient, which "
            f"this version does not run; use {_SAID[0]}"
        )
    optimizer = _READ[name.lower()]
    leaves.say("optimizer", optimizer, "optimizer.type")
    leaves.take(f"{_ADAM}.torch_adam", bool)
    _rates(leaves, optimizer)
    if not leaves.has("scheduler"):
        leaves.say("schedule", "constant", "(there is no scheduler)")
        leaves.say("warmup_steps", 0, "(there is no scheduler)")


def _rates(leaves: Leaves, optimizer: str) -> None:
    leaves.say("learning_rate", leaves.take(f"{_ADAM}.lr", float), f"{_ADAM}.lr")
    leaves.say("weight_decay", leaves.take(f"{_ADAM}.weight_decay", float), f"{_ADAM}.weight_decay")
    if OPTIMIZERS[optimizer].is_momentum:
        leaves.say("beta1", leaves.take(f"{_ADAM}.momentum", float, 0.0), f"{_ADAM}.momentum")
        return
    leaves.say("epsilon", leaves.take(f"{_ADAM}.eps", float), f"{_ADAM}.eps")
    betas = leaves.take(f"{_ADAM}.betas", list)
    if betas is None:
        return
    if len(betas) != 2 or not all(isinstance(beta, int | float) for beta in betas):  # noqa: PLR2004
        raise FileFormatError(
            f"{leaves.path}: {_ADAM}.betas is {json.dumps(betas)}; give two numbers"
        )
    for flag, beta in zip(("beta1", "beta2"), betas, strict=True):
        leaves.say(flag, float(beta), f"{_ADAM}.betas")


def _scheduler(leaves: Leaves) -> None:
    name = leaves.take("scheduler.type", str)
    if name is None:
        return
    schedules = {kind: schedule for schedule, kind in SCHEDULERS.items()}
    if name not in schedules:
        raise UnsupportedError(
            f"{leaves.path}: scheduler.type={name} is none of this version's; use "
            f"{', '.join(schedules)}, or leave the section out and give --schedule"
        )
    leaves.say("schedule", schedules[name], "scheduler.type")
    params = "scheduler.params"
    for flag, key in (("warmup_steps", "warmup_num_steps"), ("steps", "total_num_steps")):
        leaves.say(flag, leaves.take(f"{params}.{key}", int), f"{params}.{key}")
    if all(taken.flag != "learning_rate" for taken in leaves.taken):
        peak = leaves.take(f"{params}.warmup_max_lr", float)
        leaves.say("learning_rate", peak, f"{params}.warmup_max_lr")
    # Say where the rates of its steps are others than those of ours.
    if leaves.take(f"{params}.warmup_type", str, "log") != "linear":
        leaves.notes.append("the warm-up is logarithmic in DeepSpeed and planned as a line")
    floor = leaves.take(f"{params}.cos_min_ratio", float, COSINE_ENDS_AT)
    if floor != COSINE_ENDS_AT:
        leaves.notes.append(
            f"the cosine ends at {floor:g} of the peak in DeepSpeed and is planned to end at "
            f"{COSINE_ENDS_AT:g}"
        )


def _checkpoints(leaves: Leaves, num_layers: int) -> None:
    """Take how many blocks are recomputed; whether in full the file does not say."""
    key = "activation_checkpointing.number_checkpoints"
    blocks = leaves.take(key, int)
    if blocks is None:
        return
    if not 1 <= blocks <= num_layers:
        raise InputError(f"{leaves.path}: {key} is {blocks}; give 1 to {num_layers}, the blocks")
    part = "" if blocks == num_layers else f":{blocks}"
    leaves.say("activation_checkpointing", [f"full{part}", f"selective{part}"], key)
