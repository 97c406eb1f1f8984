"""What DeepSpeed keeps on the host of a model that it offloads.

Of a device's share: the fp32 copy that is updated, its gradient in fp32, the optimizer's state, and
where parameters are offloaded too these in the type that they run in. Of AdamW that is 16 or 18
bytes a parameter. Pinned buffers of copies come on top and are not counted.

Source: ``estimate_zero2_model_states_mem_needs`` of ``runtime/zero/stage_1_and_2.py`` and
``estimate_zero3_model_states_mem_needs`` of ``stage3.py`` (DeepSpeed 0.19.8), without their factor
for buffers of 1.5.
"""

from brimful.build.deepspeed.config import HELD
from brimful.cost.on_host import OnHost
from brimful.cost.recipes import FP32_BYTES, HALF_BYTES
from brimful.cost.update import Updater, settings_of
from brimful.models.config import parameter_count
from brimful.techniques.optimizers import OPTIMIZERS, Updated, bytes_kept
from brimful.values.job import Job
from brimful.values.strategy import Strategy, world_size

ENGINE = "deepspeed"


def is_deepspeeds(strategy: Strategy) -> bool:
    """Whether DeepSpeed keeps something of a strategy on the host."""
    return strategy.engine == ENGINE and strategy.offload != "none"


def held_by_deepspeed(job: Job, strategy: Strategy) -> OnHost:
    """Count what one process has offloaded.

    ``strategy``: by DeepSpeed's engine, which parts what is offloaded evenly.
    """
    share = -(-parameter_count(job.model).total // world_size(strategy))
    element = FP32_BYTES if HELD.get(job.precision) == "fp32" else HALF_BYTES
    kept = bytes_kept(
        OPTIMIZERS[job.optimizer],
        [Updated((share,))],
        settings_of(job, Updater("cpu", num_shards=world_size(strategy))),
    )
    return OnHost(
        parameters=element * share if strategy.offload == "parameters" else 0,
        gradients=FP32_BYTES * share,
        optimizer_state=FP32_BYTES * share + kept,
    )
