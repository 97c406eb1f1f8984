"""torch's SGD with momentum, fused for fp32 parameters; of sharded ones each device its part.

16-bit parameters are updated one after another, with a temporary of one parameter where it decays:
on a CPU the fused kernel of torch 2.13 leaves most of a 16-bit parameter as it was, without a word
(pytorch/pytorch#191763).
"""

import torch
from torch.optim.sgd import sgd

from brimful.build.optimizers.base import Group
from brimful.build.own import own_memory, sharded_as
from brimful.values.job import Job

_KEPT = "momentum_buffer"
_SETTINGS = (
    "weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize", "foreach", "fused",
)  # fmt: skip


def build(groups: list[Group], job: Job) -> torch.optim.Optimizer:
    """Make SGD whose momentum is ``beta1``."""
    wide = all(p.dtype == torch.float32 for group in groups for p in group["params"])
    kernels = {"fused": True} if wide else {"foreach": False}
    return LocalSGD(groups, lr=job.learning_rate, momentum=job.beta1, **kernels)


class LocalSGD(torch.optim.SGD):  # type: ignore[misc]  # torch is untyped to mypy
    """torch's SGD of what this device has: its fused kernel takes no ``DTensor``."""

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient.

        ``closure``: not used; torch's optimizers have it.
        """
        del closure
        for group in self.param_groups:
            given = [p for p in group["params"] if p.grad is not None and own_memory(p).numel()]
            kept = [self.state[p].get(_KEPT) for p in given]
            buffers = [None if buffer is None else own_memory(buffer) for buffer in kept]
            sgd(
                [own_memory(p) for p in given],
                [own_memory(p.grad) for p in given],
                buffers,
                has_sparse_grad=False,
                **{key: group[key] for key in _SETTINGS},
            )
            if group["momentum"]:
                for parameter, buffer in zip(given, buffers, strict=True):
                    self.state[parameter].setdefault(_KEPT, sharded_as(parameter, buffer))
