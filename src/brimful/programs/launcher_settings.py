"""What ``accelerate launch`` says beside a trainer's own arguments, in the words of those.

Its flags and its file reach a program as variables (``pretend.launchers`` reads them by
Accelerate's own code); transformers' Trainer takes what its arguments do not say from there.

Source: ``accelerate/utils/launch.py`` of 1.15; ``__post_init__`` of
``transformers/training_args.py`` of 5.23.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_FSDP, _DEEPSPEED = "fsdp", "deepspeed"
_HALVES = ("bf16", "fp16")
_OF_FSDP = {
    "activation_checkpointing": "FSDP_ACTIVATION_CHECKPOINTING",
    "offload_params": "FSDP_OFFLOAD_PARAMS",
}
_ZERO = "ACCELERATE_DEEPSPEED_"
_OFFLOADED = {
    "offload_optimizer": f"{_ZERO}OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param": f"{_ZERO}OFFLOAD_PARAM_DEVICE",
}


def with_launcher(content: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return a trainer's arguments, with what its launcher says where they say nothing."""
    said = dict(content)
    half = environment.get("ACCELERATE_MIXED_PRECISION")
    if half in _HALVES and not any(name in said for name in _HALVES):
        said[half] = True
    if any(said.get(name) not in (None, False, "") for name in (_FSDP, _DEEPSPEED)):
        return said
    if _is(environment, "ACCELERATE_USE_FSDP"):
        said |= _fsdp(environment)
    elif _is(environment, "ACCELERATE_USE_DEEPSPEED"):
        said[_DEEPSPEED] = _deepspeed(environment)
    return said


def _is(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "").lower() in {"1", "true"}


def _fsdp(environment: Mapping[str, str]) -> dict[str, Any]:
    version = environment.get("FSDP_VERSION", "1")
    options: dict[str, Any] = {
        "version": int(version) if version.isdigit() else version,
        **{key: _is(environment, name) for key, name in _OF_FSDP.items()},
    }
    if version != "1":
        again = environment.get("FSDP_RESHARD_AFTER_FORWARD", "true")
        return {_FSDP: True, "fsdp_config": {**options, "reshard_after_forward": again}}
    strategy = environment.get("FSDP_SHARDING_STRATEGY", "FULL_SHARD")
    return {_FSDP: f"{strategy.lower()} auto_wrap", "fsdp_config": options}


def _deepspeed(environment: Mapping[str, str]) -> Any:
    """Return the file that the launcher names, or what its flags say."""
    if file := environment.get(f"{_ZERO}CONFIG_FILE"):
        return str(Path(file).resolve())
    stage = environment.get(f"{_ZERO}ZERO_STAGE", "2")
    away = {
        key: {"device": device}
        for key, name in _OFFLOADED.items()
        if (device := environment.get(name, "none")) != "none"
    }
    return {"zero_optimization": {"stage": int(stage) if stage.isdigit() else stage, **away}}
