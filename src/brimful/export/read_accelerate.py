"""The YAML of ``accelerate config`` read back: which flags of ``brimful plan`` say the same.

What its script says, batches above all, is in no such file: it is left to the flags.

Source: ``accelerate/commands/config/config_args.py``, ``commands/launch.py`` and
``utils/dataclasses.py`` of Accelerate 1.15.0.
"""

from pathlib import Path
from typing import Any

from brimful.errors import InputError
from brimful.export.leaves import Leaves, Read
from brimful.export.read_deepspeed import read_deepspeed, take_engine
from brimful.export.trainer_leaves import as_engine_runs
from brimful.values.strategy import FLAT_FSDP

_FSDP, _DEEPSPEED, _DEGREES = "fsdp_config", "deepspeed_config", "parallelism_config"
_RECIPES = {"bf16": "bf16-mixed", "fp16": "fp16-mixed", "fp8": "fp8"}
_OWN = frozenset({"distributed_type", "compute_environment"})
"""Keys of which every file of Accelerate's has one."""
STAGES = {
    "TRUE": 3, "FALSE": 2, "FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3,
    "HYBRID_SHARD_ZERO2": 2,
}  # fmt: skip
"""The stage of ZeRO that FSDP2's switch says, and FSDP1's strategies."""
STRATEGIES = tuple(STAGES)[2:]
"""Of FSDP1, which Accelerate counts from 1."""


def is_accelerate(content: dict[str, Any]) -> bool:
    """Whether a file's keys are Accelerate's."""
    return bool(_OWN & {*content})


def read_accelerate(
    path: Path, content: dict[str, Any], *, num_devices: int, num_layers: int
) -> Read:
    """Read a file.

    Raises FileFormatError: a value is of another type. Raises InputError: its numbers do not go
    together. Raises UnsupportedError: this version plans nothing like it.
    """
    leaves = Leaves(path, content, "Accelerate")
    kind = leaves.take("distributed_type", str, "NO")
    if (recipe := _RECIPES.get(str(leaves.rest.get("mixed_precision")))) is not None:
        leaves.say("precision", recipe, "mixed_precision")
        del leaves.rest["mixed_precision"]
    leaves.take("num_processes", int)
    if kind == "FSDP":
        _fsdp(leaves, num_devices)
    elif kind == "DEEPSPEED":
        name = leaves.take(f"{_DEEPSPEED}.deepspeed_config_file", str)
        if name is not None:
            own = path.parent / name
            beside = read_deepspeed(own, num_devices=num_devices, num_layers=num_layers)
            said = {each.flag for each in beside.taken} - {"precision"}
            leaves.taken = [each for each in leaves.taken if each.flag not in said]
            as_engine_runs(leaves, beside)
            return leaves.read().joined(beside)
        as_engine_runs(leaves, None)
        _deepspeed(leaves, num_devices)
    elif num_devices > 1 and kind.startswith("MULTI"):
        leaves.say("zero", 0, "distributed_type")
    return leaves.read()


def _fsdp(leaves: Leaves, num_devices: int) -> None:
    version = leaves.take(f"{_FSDP}.fsdp_version", int)
    stage, key = _stage(leaves, num_devices)
    away = f"{_FSDP}.fsdp_offload_params" if _is(leaves, "fsdp_offload_params") else ""
    if away:
        leaves.say_shards_away(away)
    if num_devices == 1:
        leaves.notes.append("FSDP shards nothing on one device: planned without")
        return
    leaves.say("zero", stage, key)
    if version in {None, FLAT_FSDP} and stage:
        key = f"{_FSDP}.fsdp_version"
        leaves.say("fsdp", FLAT_FSDP, f"(no {key})" if version is None else key)
    if not leaves.has(_DEGREES):  # which alone cuts a model in another way
        for flag in ("tp", "pp", "ep"):
            leaves.say(flag, 1, f"(no {_DEGREES})")
    for flag in ("dp_replicate", "dp_shard", "tp"):
        degree = f"{_DEGREES}.{_DEGREES}_{flag}_size"
        leaves.say(flag, leaves.take(degree, int), degree)
    if _is(leaves, "fsdp_activation_checkpointing"):
        again = f"{_FSDP}.fsdp_activation_checkpointing"
        leaves.say("activation_checkpointing", ["full"], again)
    if not away:
        leaves.say("offload", "none", f"(no {_FSDP}.fsdp_offload_params)")


def _stage(leaves: Leaves, num_devices: int) -> tuple[int, str]:
    """Take how much is sharded: FSDP1's strategy, which FSDP2's switch may say too; all of it."""
    names = ("fsdp_sharding_strategy", "fsdp_reshard_after_forward")
    said = [(f"{_FSDP}.{name}", leaves.rest.pop(f"{_FSDP}.{name}", None)) for name in names]
    key, value = next((each for each in said if each[1] is not None), said[1])
    word = strategy_named("true" if value is None else str(value))
    if word not in STAGES:
        raise InputError(
            f"{leaves.path}: {key} is {value}; give true, false or one of {', '.join(STRATEGIES)}"
        )
    if word.startswith("HYBRID"):
        take_hybrid(leaves, num_devices, word, key)
    elif STAGES[word] and num_devices > 1 and not leaves.has(_DEGREES):
        leaves.say("dp_replicate", 1, key)  # all share one copy, however many there are
    return STAGES[word], key


def strategy_named(text: str) -> str:
    """Return a strategy of FSDP1 by its name in any case, or by Accelerate's number of it."""
    numbered = {str(number): name for number, name in enumerate(STRATEGIES, 1)}
    return numbered.get(text, text.upper())


def take_hybrid(leaves: Leaves, num_devices: int, word: str, key: str) -> None:
    """Take over how many devices a hybrid strategy shards, where the file says its machines."""
    machines = leaves.rest.get("num_machines")
    if isinstance(machines, int) and 1 < machines < num_devices and num_devices % machines == 0:
        if not leaves.has(_DEGREES):  # which says it itself
            leaves.say("dp_shard", num_devices // machines, f"{key} and num_machines")
            del leaves.rest["num_machines"]
        return
    leaves.notes.append(f"{word} shards within a node: --dp-shard says over how many")


def _is(leaves: Leaves, name: str) -> bool:
    """Take a switch, which may be spelled as text."""
    return str(leaves.rest.pop(f"{_FSDP}.{name}", False)).lower() == "true"


def _deepspeed(leaves: Leaves, num_devices: int) -> None:
    key = f"{_DEEPSPEED}.zero_stage"
    stage = leaves.take(key, int, 2)
    if stage not in {0, 1, 2, 3}:
        raise InputError(f"{leaves.path}: {key} is {stage}; give 0, 1, 2 or 3")
    if num_devices > 1:
        leaves.say("zero", stage, key)
        take_engine(leaves, stage)
    away = {what: f"{_DEEPSPEED}.offload_{what}_device" for what in ("param", "optimizer")}
    kept = [what for what, place in away.items() if leaves.place(place, what) == "cpu"]
    what = {"param": "parameters", "optimizer": "optimizer"}
    offload, by = (what[kept[0]], away[kept[0]]) if kept else ("none", f"(no {away['optimizer']})")
    leaves.say("offload", offload, by)
    added = f"{_DEEPSPEED}.gradient_accumulation_steps"
    leaves.accumulate(leaves.take(added, int, 1), num_devices, added)
    clip = f"{_DEEPSPEED}.gradient_clipping"
    leaves.say("clip", leaves.take(clip, float), clip)
