"""Dynamic loss scaling: small gradients survive fp16, and a step that overflows is skipped.

The rule of ``torch.amp.GradScaler``, to the letter, with two differences. Its scale lives on the
host as a plain number: what decides on a step, whether the gradient norm is finite, is the one
value that is read from the device, once per step, and every log wants it anyway. (Torch's reads
the count of infinities for all optimizers but fused ones, and the scale each time it is asked for.)
And it takes fp16 gradients, which torch's refuses to unscale because they would vanish: here the
fp32 masters unscale them in fp32 (``masters.py``).
"""

import math
from collections.abc import Iterable, Mapping

import torch

from brimful.errors import RunError
from brimful.values.job import LossScale

MIN_SCALE = 2.0**-14
"""A scale below it means that no step is ever finite: fp16's smallest normal number."""
_MAX_FP32 = torch.finfo(torch.float32).max


class LossScaler:
    """The scale of one run, and how often it was too large.

    Attributes:
        scale: What the next loss is multiplied by.
        growth_tracker: Finite steps since the scale last changed.
        num_skipped: Steps that were skipped so far.
    """

    def __init__(self, settings: LossScale) -> None:
        """Begin with the initial scale."""
        self.scale = settings.initial_scale
        self.growth_tracker = 0
        self.num_skipped = 0
        self._settings = settings

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss times the scale, for backward only."""
        return loss * self.scale

    def update(self, *, is_finite: bool) -> None:
        """Adapt the scale after a step.

        ``is_finite``: whether the step's gradients held no Inf or NaN. Raises RunError: the scale
        has become so small that something else is wrong.

        Source: ``_amp_update_scale_`` in ``aten/src/ATen/native/cuda/AmpKernels.cu``.
        """
        if not is_finite:
            self.num_skipped += 1
            self.growth_tracker = 0
            self._shrink()
            return
        self.growth_tracker += 1
        if self.growth_tracker == self._settings.growth_interval:
            grown = self.scale * self._settings.growth_factor
            self.scale = grown if grown <= _MAX_FP32 else self.scale
            self.growth_tracker = 0

    def _shrink(self) -> None:
        self.scale *= self._settings.backoff_factor
        if self.scale < MIN_SCALE:
            raise RunError(
                f"the gradients are Inf or NaN whatever the loss is scaled by: {self.num_skipped} "
                f"steps were skipped and the scale fell from {self._settings.initial_scale:g} to "
                f"{self.scale:g}; lower learning_rate or use a bf16 recipe"
            )

    def state_dict(self) -> dict[str, float]:
        """Return what a checkpoint must keep, as plain numbers."""
        return {
            "scale": self.scale,
            "growth_tracker": self.growth_tracker,
            "num_skipped": self.num_skipped,
        }

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from what ``state_dict`` returned."""
        self.scale = float(state["scale"])
        self.growth_tracker = int(state["growth_tracker"])
        self.num_skipped = int(state["num_skipped"])


def unscale(gradients: Iterable[torch.Tensor], scale: float) -> None:
    """Divide gradients by the scale, in place; a power of two loses nothing."""
    listed = list(gradients)
    if listed:
        torch._foreach_mul_(listed, 1.0 / scale)


def is_finite(norm: torch.Tensor) -> bool:
    """Tell whether a gradient norm is a number: the one host sync of a scaled step."""
    return math.isfinite(float(norm))
