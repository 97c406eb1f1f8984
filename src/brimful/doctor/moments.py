"""Whether AdamW's second moments hold: what has vanished is divided by epsilon alone.

An update is first moment / (root of second moment + epsilon). Where gradients are small their
squares leave fp16 long before they do, and an epsilon of 1e-8 is 0 in fp16 as well.
"""

from collections.abc import Iterator, Mapping

import torch

from brimful.doctor.records import Moments
from brimful.doctor.updates import sample

_FIRST, _SECOND = "exp_avg", "exp_avg_sq"
"""torch's names of the moments in an optimizer's state; 8-bit AdamW's are codes under these."""


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def look_at_moments(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str], step: int
) -> list[Moments]:
    """Count the second moments that are 0 beside a first one that is not, by parameter.

    Of a large parameter as many are looked at as of its updates (``updates.SAMPLE``).

    ``optimizer``: it has just stepped; one without such moments has nothing to look at.
    """
    return list(_looked_at(getattr(optimizer, "optim", optimizer), names, step))


def _looked_at(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str], step: int
) -> Iterator[Moments]:
    for group in optimizer.param_groups:
        for parameter in (p for p in group["params"] if p in names):
            state = optimizer.state.get(parameter, {})
            first, second = state.get(_FIRST), state.get(_SECOND)
            if first is None or second is None or not second.is_floating_point():
                continue
            moved, held = sample(first) != 0, sample(second)
            yield Moments(
                step=step,
                name=names[parameter],
                held=str(held.dtype).removeprefix("torch."),
                num=int(moved.sum()),
                num_vanished=int((moved & (held == 0)).sum()),
                epsilon=float(group.get("eps", 0.0)),
            )
