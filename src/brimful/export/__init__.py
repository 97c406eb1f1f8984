"""A plan as what something else takes: one file per target.

Owns nothing of how a plan is found or run; a target is a text. What a target cannot say is refused,
or said in the text.
"""

from collections.abc import Callable

from brimful.export import slurm, torchrun
from brimful.export.given import Given
from brimful.plan import Plan

TARGETS: dict[str, Callable[[Plan, Given], str]] = {
    "torchrun": torchrun.command,
    "slurm": slurm.script,
}
