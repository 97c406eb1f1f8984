"""torch's fused AdamW: one kernel updates in place, with no temporary of the size of a parameter.

State: two moments in the type of the parameter, and a count of steps, which the kernel reads.
"""

from brimful.techniques.optimizers.base import (
    Kept,
    Settings,
    Spelled,
    Updated,
    at_once,
    counted,
)
from brimful.techniques.optimizers.two_moments import moments_of, two_moments


def _state(parameter: Updated, _settings: Settings) -> tuple[Kept, ...]:
    return counted(on_host=False), *moments_of(parameter)


ADAMW = two_moments(
    "adamw",
    keeps="two moments per parameter",
    source="``torch/optim/adam.py``, ``_fused_adam``",
    state=_state,
    moments=at_once,
    shards="all",
    on_host=True,
    deepspeed_engine=True,
    transformers=Spelled(
        "adamw_torch_fused",
        reads=("adam", "adamw_hf", "adamw_apex_fused"),
    ),
    deepspeed=Spelled("AdamW", reads=("adam", "adamw")),
    titan="fused",
    also=("fusedadam",),
)
