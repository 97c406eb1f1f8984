"""The largest loss scale that a step's gradients bear: tried, not guessed."""

from collections.abc import Sequence

from brimful.build.gradient_clip import gradient_norm
from brimful.build.precision.loss_scaling import is_finite
from brimful.build.program import Program
from brimful.doctor.advice import BAD_SHARE
from brimful.doctor.program import PlainStep, accumulate, scaled_by
from brimful.doctor.seen import Trial

LEAST_POWER, MOST_POWER = 8, 24


def search_scale(
    program: Program, steps: Sequence[PlainStep], *, bad_share: float = BAD_SHARE
) -> tuple[Trial, ...]:
    """Halve the range of 2^8 to 2^24 until the largest scale is known that few steps overflow at.

    ``program``: whose loss is scaled; of many devices all call this, and agree, for the norm that
    decides is of all. Nothing is updated. Returns the trials, in the order of their scales;
    ``advice`` picks the largest that is borne.
    """
    trials: dict[int, Trial] = {}
    low, high = LEAST_POWER - 1, MOST_POWER
    while low < high:
        middle = -(-(low + high) // 2)
        trials[middle] = _tried(program, steps, 2.0**middle)
        if trials[middle].bad_share <= bad_share:
            low = middle
        else:
            high = middle - 1
    return tuple(trials[power] for power in sorted(trials))


def _tried(program: Program, steps: Sequence[PlainStep], scale: float) -> Trial:
    num_bad = sum(not _is_borne(program, step, scale) for step in steps)
    return Trial(scale=scale, num=len(steps), num_bad=num_bad)


def _is_borne(program: Program, step: PlainStep, scale: float) -> bool:
    program.optimizer.zero_grad(set_to_none=True)
    try:
        with scaled_by(program, scale):
            accumulate(program, step)
        trained = [p for p in program.model.parameters() if p.requires_grad]
        return is_finite(gradient_norm(trained))
    finally:
        program.optimizer.zero_grad(set_to_none=True)
