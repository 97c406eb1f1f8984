"""In how many bits Megatron's optimizer keeps its states: ``--use-precision-aware-optimizer``.

Transformer Engine's FusedAdam then keeps each moment in a type of its own and, where parameters are
in 16 bits, makes the copies of them itself: of those in fp32 only the 16 bits that bf16 lacks.

Under ``--optimizer-cpu-offload`` moments and copies in fp32 are the host's, which updates them: the
device keeps its parameters and gradients alone (``HybridDeviceOptimizer``).

Source: ``_get_megatron_optimizer_based_on_param_groups`` of ``__init__.py``,
``optimizer_config.py`` and ``cpu_offloading/hybrid_optimizer.py`` of ``megatron/core/optimizer``
(August 2026);
``initialize_state``, ``get_unscaled_state`` and ``step`` of
``transformer_engine/pytorch/optimizers/fused_adam.py``.
"""

from typing import Any

from brimful.errors import InputError
from brimful.programs.base import Flags

AWARE = "--use-precision-aware-optimizer"
ON_HOST, FRACTION, ALL = "--optimizer-cpu-offload", "--optimizer-offload-fraction", 1.0
TYPES: dict[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
"""Bytes of an element."""
CHOICES: dict[str, tuple[str, ...]] = {
    "--main-grads-dtype": ("fp32", "bf16"),
    "--main-params-dtype": ("fp32", "fp16"),
    "--exp-avg-dtype": tuple(TYPES),
    "--exp-avg-sq-dtype": tuple(TYPES),
}
"""What its types may be; fp32 where nobody says."""
_MOMENTS = ("--exp-avg-dtype", "--exp-avg-sq-dtype")
_WIDE, _REMAINDER_BYTES = "fp32", 2
_SHARDED = "--use-distributed-optimizer"
_DELAYED = "delayed"


def is_on_host(flags: Flags) -> bool:
    """Whether the host updates every parameter, rather than some whole ones or none."""
    return flags.has(ON_HOST) and flags.share(FRACTION, default=0.0) == ALL


def state_types(flags: Flags) -> dict[str, Any]:
    """Return the fields of a layout that say how states are kept."""
    given = {flag: flags.text(flag) or _WIDE for flag in CHOICES}
    if not flags.has(AWARE):
        if other := next((flag for flag in CHOICES if given[flag] != _WIDE), ""):
            raise InputError(f"{other} {given[other]} needs {AWARE}; add it")
        if flags.has(ON_HOST):
            raise InputError(f"{ON_HOST} needs {AWARE}; add it")
        return {
            "moments_bytes": (TYPES[_WIDE],) * 2, "own_master_bytes": 0, "num_widened": 0,
            "updates_on_host": False,
        }  # fmt: skip
    if not flags.has(_SHARDED):
        raise InputError(f"{AWARE} needs {_SHARDED}; add it")
    moments = tuple(given[flag] for flag in _MOMENTS)
    master = given["--main-params-dtype"]
    is_own = master != _WIDE or (flags.text("--fp8-recipe") or _DELAYED) == _DELAYED
    narrow = [kind for kind in moments if kind != _WIDE]
    num_widened = 0 if moments == ("bf16", "bf16") else len(narrow)
    of_master = TYPES[master] if flags.has("--fp16") or master != _WIDE else _REMAINDER_BYTES
    return {
        "moments_bytes": tuple(TYPES[kind] for kind in moments),
        "own_master_bytes": of_master if is_own else 0,
        "num_widened": num_widened + (is_own and master != _WIDE),
        "updates_on_host": is_on_host(flags),
    }
