"""The YAML of ``accelerate config`` read back: which flags of ``brimful plan`` say the same.

What its script says, batches above all, is in no such file: it is left to the flags.

Source: ``accelerate/commands/config/config_args.py``, ``commands/launch.py`` and
``utils/dataclasses.py`` of Accelerate 1.15.0.
"""

from pathlib import Path
from typing import Any

from brimful.errors import FileFormatError, InputError
from brimful.export.leaves import Leaves, Read
from brimful.export.read_deepspeed import read_deepspeed
from brimful.plan import load_yaml

_FSDP, _DEEPSPEED, _DEGREES = "fsdp_config", "deepspeed_config", "parallelism_config"
_RECIPES = {"bf16": "bf16-mixed", "fp16": "fp16-mixed", "fp8": "fp8"}
_OWN = frozenset({"distributed_type", "compute_environment"})
"""Keys of which every file of Accelerate's has one."""
_STAGES: dict[Any, tuple[int, str]] = {
    "FULL_SHARD": (3, ""), "1": (3, ""), "SHARD_GRAD_OP": (2, ""), "2": (2, ""),
    "NO_SHARD": (0, ""), "3": (0, ""),
    "HYBRID_SHARD": (3, "shards within a node"), "4": (3, "shards within a node"),
    "HYBRID_SHARD_ZERO2": (2, "shards within a node"), "5": (2, "shards within a node"),
}  # fmt: skip
"""Of FSDP1's strategies: the stage of ZeRO, and what else they say."""


def read_accelerate(path: Path, *, num_devices: int, num_layers: int) -> Read:
    """Read a file.

    Args:
        path: Of the YAML.
        num_devices: That it is planned for.
        num_layers: Blocks of the model.

    Raises:
        FileFormatError: It is no YAML of Accelerate's, or holds a value of another type.
        InputError: Its numbers do not go together.
        UnsupportedError: This version plans nothing like it.
    """
    content = load_yaml(path)
    if not isinstance(content, dict) or not _OWN & {*content}:
        raise FileFormatError(
            f"{path} is neither DeepSpeed's JSON nor Accelerate's YAML, which names its "
            f"distributed_type; give one of these"
        )
    leaves = Leaves(path, content, "Accelerate")
    kind = leaves.take("distributed_type", str, "NO")
    if (recipe := _RECIPES.get(str(leaves.rest.get("mixed_precision")))) is not None:
        leaves.say("precision", recipe, "mixed_precision")
        del leaves.rest["mixed_precision"]
    _devices(leaves, num_devices)
    if kind == "FSDP":
        _fsdp(leaves, num_devices)
    elif kind == "DEEPSPEED":
        if "deepspeed_config_file" in content.get(_DEEPSPEED, {}):
            name = leaves.take(f"{_DEEPSPEED}.deepspeed_config_file", str)
            other = read_deepspeed(
                path.parent / name, num_devices=num_devices, num_layers=num_layers
            )
            leaves.taken += other.taken
            leaves.notes.append(f"{name} says the rest; not read of it: {', '.join(other.unread)}")
        else:
            _deepspeed(leaves, num_devices)
    elif num_devices > 1 and kind.startswith("MULTI"):
        leaves.say("zero", 0, "distributed_type")
    return leaves.read()


def _devices(leaves: Leaves, num_devices: int) -> None:
    num = leaves.take("num_processes", int)
    if num is not None and num != num_devices:
        leaves.notes.append(
            f"num_processes is {num} and the plan is for {num_devices}: --gpus counts"
        )


def _fsdp(leaves: Leaves, num_devices: int) -> None:
    version = leaves.take(f"{_FSDP}.fsdp_version", int, 1)
    keys = [f"{_FSDP}.{name}" for name in ("fsdp_sharding_strategy", "fsdp_reshard_after_forward")]
    named = leaves.rest.pop(keys[0], None)
    again = leaves.rest.pop(keys[1], None)
    if isinstance(again, str) and named is None:  # FSDP1's strategy under FSDP2's name
        named, again = again, None
    stage, more = _STAGES.get(str(named).upper(), (3 if again in {None, True} else 2, ""))
    if version == 1:
        leaves.notes.append("FSDP1 is planned as FSDP2, which takes less")
    if more:
        leaves.notes.append(f"{named} {more}: --dp-shard says over how many")
    if num_devices == 1:
        leaves.notes.append("FSDP shards nothing on one device: planned without")
        return
    leaves.say("zero", stage, keys[0] if named is not None else keys[1])
    _degrees(leaves)
    if _is(leaves, "fsdp_activation_checkpointing"):
        key = f"{_FSDP}.fsdp_activation_checkpointing"
        leaves.say("activation_checkpointing", ["full"], key)
    if _is(leaves, "fsdp_offload_params"):
        leaves.say("offload", "optimizer", f"{_FSDP}.fsdp_offload_params")
        leaves.notes.append("fsdp_offload_params moves the shards too: planned without that")


def _is(leaves: Leaves, name: str) -> bool:
    """Take a switch, which may be spelled as text."""
    return str(leaves.rest.pop(f"{_FSDP}.{name}", False)).lower() == "true"


def _degrees(leaves: Leaves) -> None:
    for flag in ("dp_replicate", "dp_shard", "tp"):
        key = f"{_DEGREES}.{_DEGREES}_{flag}_size"
        leaves.say(flag, leaves.take(key, int), key)


def _deepspeed(leaves: Leaves, num_devices: int) -> None:
    key = f"{_DEEPSPEED}.zero_stage"
    stage = leaves.take(key, int, 2)
    if stage not in {0, 1, 2, 3}:
        raise InputError(f"{leaves.path}: {key} is {stage}; give 0, 1, 2 or 3")
    if num_devices > 1:
        leaves.say("zero", stage, key)
    for what, offload in (("param", "parameters"), ("optimizer", "optimizer")):
        device = leaves.take(f"{_DEEPSPEED}.offload_{what}_device", str, "none")
        if device == "cpu" and all(each.flag != "offload" for each in leaves.taken):
            leaves.say("offload", offload, f"{_DEEPSPEED}.offload_{what}_device")
        elif device not in {"cpu", "none"}:
            leaves.notes.append(f"offload_{what}_device={device} is planned as none")
    clip = f"{_DEEPSPEED}.gradient_clipping"
    leaves.say("clip", leaves.take(clip, float), clip)
