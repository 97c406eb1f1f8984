"""Which share of a device's matrix rate a step used: MFU and HFU.

MFU (model FLOPs utilization) counts what the mathematics needs, HFU (hardware) what was computed:
the same plus whatever checkpointing and a chunked loss compute twice. Attention is counted whole,
its masked half too, as the papers do.

Source: Chowdhery et al. 2022, arXiv:2204.02311, appendix B; Korthikanti et al. 2022,
arXiv:2205.05198, section 6.3.
"""

from typing import NamedTuple

import msgspec

from brimful.cost.estimate import estimate_or_none
from brimful.hardware.cluster import matrix_rate
from brimful.values.plan import Plan


class Utilization(NamedTuple):
    """What one step computes and how fast the device could; 0 is unknown.

    Attributes:
        model_flops: Of a step that recomputes nothing.
        hardware_flops: Of a step as it is run.
        flops_per_s: The device's dense rate for the recipe: of the datasheet, or as calibrated on a
            small block; against the latter a step can pass 100 %.
    """

    model_flops: float
    hardware_flops: float
    flops_per_s: float

    def mfu(self, step_s: float) -> float | None:
        """Return the share of the rate that the mathematics took; None where unknown."""
        return self._share(self.model_flops, step_s)

    def hfu(self, step_s: float) -> float | None:
        """Return the share of the rate that was computed; None where unknown."""
        return self._share(self.hardware_flops, step_s)

    def _share(self, flops: float, step_s: float) -> float | None:
        if not flops or not self.flops_per_s:
            return None
        return flops / (self.flops_per_s * step_s)


def utilization_of(plan: Plan) -> Utilization:
    """Count a plan's FLOPs with what it recomputes and without.

    ``Estimate.step_flops`` has recomputation in it, so the estimate is made once more for the same
    strategy without checkpointing and with a whole loss.
    """
    plain = msgspec.structs.replace(plan.strategy, activation_checkpointing="none", loss_chunks=1)
    model = estimate_or_none(plan.job, plan.cluster, plain)
    return Utilization(
        model_flops=model.step_flops if model else 0.0,
        hardware_flops=plan.estimate.step_flops if plan.estimate else 0.0,
        flops_per_s=matrix_rate(plan.cluster.device, plan.job.precision),
    )
