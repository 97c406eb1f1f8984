"""Which exact attention kernels are searched beside the usual one: where that writes scores out."""

from brimful.hardware.cluster import Device
from brimful.models.kernels import attentions_of
from brimful.techniques.kernel_support import Place, why_not, writes_scores
from brimful.values.job import Job
from brimful.values.strategy import Attention

USUAL: Attention = "sdpa"
"""By which PyTorch chooses."""
_BESIDE: tuple[Attention, ...] = ("efficient",)
"""What it may not choose though it would run: fused, and traced as any."""


def beside_usual(job: Job, attention: Attention, device: Device) -> tuple[Attention, ...]:
    """List kernels that learn the same and keep no scores, where the usual one keeps them.

    ``attention``: what is taken where nobody says.
    """
    place = Place(device.kernels, device.capability)
    if attention != USUAL or not writes_scores(job, place):
        return ()
    taken = attentions_of(job)
    return tuple(each for each in _BESIDE if each in taken and why_not(job, each, place) is None)
