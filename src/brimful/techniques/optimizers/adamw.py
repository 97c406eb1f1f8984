"""torch's fused AdamW: one kernel updates in place, with no temporary of the size of a parameter.

State: two moments in the type of the parameter, and a count of steps, which the kernel reads.
"""

from brimful.errors import LESS
from brimful.techniques.optimizers.base import (
    Kept,
    Like,
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
    likes=(
        Like(
            (
                "adamax",
                "lamb",
                "nadam",
                "radam",
                "schedule-free",
                "schedule-free-adamw",
                "schedule-free-radam",
                "schedulefree",
                "sophia",
                "stable-adamw",
            ),
            "two numbers a parameter",
            "AdamW keeps as many",
        ),
        Like(
            ("adan", "ademamix", "dadapt-adam", "prodigy"),
            "three numbers a parameter or more",
            "AdamW keeps two: 4 bytes a number come on top",
            LESS,
        ),
        Like(
            ("kron", "shampoo", "soap"),
            "moments and two matrices for each matrix",
            "AdamW keeps the moments, and the matrices come on top",
            LESS,
        ),
    ),
)
