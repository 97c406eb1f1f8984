"""A plan as what something else takes: one file per target; and one that is read back.

Owns nothing of how a plan is found or run; a target is a text. What a target cannot say is listed
(``lost``), and refused where it would train something else.
"""

from collections.abc import Callable

from brimful.export import (
    accelerate,
    axolotl,
    deepspeed,
    hf_trainer,
    llama_factory,
    slurm,
    torchrun,
    torchtitan,
    trl,
)
from brimful.export.given import Exported, Given
from brimful.values.plan import Plan

TARGETS: dict[str, Callable[[Plan, Given], Exported]] = {
    "torchrun": torchrun.command,
    "slurm": slurm.script,
    "deepspeed": deepspeed.text,
    "accelerate": accelerate.text,
    "hf-trainer": hf_trainer.text,
    "torchtitan": torchtitan.text,
    "trl": trl.text,
    "axolotl": axolotl.text,
    "llama-factory": llama_factory.text,
}
