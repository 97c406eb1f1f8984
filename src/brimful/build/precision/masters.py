"""fp32 masters: parameters and gradients in 16 bits, updated by way of an fp32 copy.

A step adds about a thousandth of a weight, and bf16 holds three digits: most of it would round to
nothing. So the optimizer keeps each 16-bit parameter in fp32 as well, updates that, and rounds the
parameter anew from it. As in Megatron-LM (``Float16OptimizerWithFloat16Params``) and DeepSpeed
(``FP16_Optimizer``), but gradients are widened bucket by bucket, never all at once.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from brimful.build.optimizer_state import restore_types
from brimful.build.own import own_memory
from brimful.units import MIB

MASTER = "master"
"""Where ``optimizer.state[parameter]`` holds the fp32 copy, beside the rule's own state."""
BUCKET_BYTES = 32 * MIB
"""fp32 gradients that exist at a time, or those of one parameter where that is larger."""
Group = dict[str, Any]
Rule = Callable[[list[Group]], torch.optim.Optimizer]
"""Makes the optimizer that updates the masters."""


class MasterWeights(torch.optim.Optimizer):  # type: ignore[misc]  # torch is untyped to mypy
    """Updates 16-bit parameters by way of fp32 masters; parameters in fp32 are updated as usual.

    ``state[parameter]`` holds the master and what the rule keeps of it, all in fp32, from the first
    step on. ``param_groups`` hold the parameters themselves.

    Attributes:
        gradient_factor: What gradients are multiplied by once they are in fp32: clipping and
            unscaling at once. A number or a scalar on the device.
    """

    def __init__(
        self, groups: list[Group], *, rule: Rule, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        """Take the groups of parameters.

        ``groups``: as torch's optimizers take them, each with its ``lr``. ``rule``: makes the
        optimizer that updates the masters, from groups of them. ``bucket_bytes``: of fp32 gradients
        that may exist at a time on this device.
        """
        super().__init__(groups, defaults={})
        self.gradient_factor: float | torch.Tensor = 1.0
        self._rule = rule
        self._bucket_bytes = bucket_bytes
        self._inner: torch.optim.Optimizer | None = None
        self._masters: dict[torch.Tensor, torch.Tensor] = {}
        self._settings: dict[torch.Tensor, Group] = {}

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient.

        ``closure``: not used; torch's optimizers have it.
        """
        del closure
        inner = self.ready()
        whole = inner.param_groups
        try:
            for group in self.param_groups:
                for bucket in self._buckets(group["params"]):
                    inner.param_groups = [
                        {
                            **self._settings[bucket[0]],
                            "lr": group["lr"],
                            "params": [self._masters[p] for p in bucket],
                        }
                    ]
                    self._step_bucket(inner, bucket)
        finally:
            inner.param_groups = whole

    def make_state(self, fill: Callable[[torch.optim.Optimizer], None]) -> None:
        """Make the masters and what the rule keeps of them, as the first update would.

        ``fill``: makes the state of the optimizer of the masters.
        """
        self._inner = None  # of an earlier try, should there have been one
        inner = self.ready()
        fill(inner)
        for group in self.param_groups:
            for parameter in group["params"]:
                self._share_state(inner, parameter)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned, masters in fp32; see torch's."""
        super().load_state_dict(state_dict)
        restore_types(self, state_dict)
        self._inner = None

    def ready(self) -> torch.optim.Optimizer:
        """Return the optimizer of the masters; made anew after a checkpoint was loaded."""
        mine = [p for group in self.param_groups for p in group["params"]]
        is_current = all(
            self.state.get(p, {}).get(MASTER, p) is self._masters.get(p, p) for p in mine
        )
        if self._inner is not None and is_current:
            return self._inner
        self._masters = {p: self._master(p) for p in mine}
        self._inner = self._rule(
            [
                {**group, "params": [self._masters[p] for p in group["params"]]}
                for group in self.param_groups
            ]
        )
        for group, masters in zip(self.param_groups, self._inner.param_groups, strict=True):
            self._settings |= dict.fromkeys(group["params"], masters)
        for parameter, master in self._masters.items():
            if self.state.get(parameter, {}).keys() - {MASTER}:
                self._inner.state[master] = self.state[parameter]
        return self._inner

    def _master(self, parameter: torch.Tensor) -> torch.Tensor:
        if parameter.dtype == torch.float32:
            return parameter
        if MASTER not in self.state[parameter]:
            self.state[parameter][MASTER] = parameter.detach().float()
        master: torch.Tensor = self.state[parameter][MASTER]
        return master

    def _buckets(self, parameters: Iterable[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        bucket: list[torch.Tensor] = []
        num_bytes = 0
        for parameter in parameters:
            if parameter.grad is None:
                continue
            wide = own_memory(parameter).numel() * torch.float32.itemsize
            if bucket and num_bytes + wide > self._bucket_bytes:
                yield bucket
                bucket, num_bytes = [], 0
            bucket.append(parameter)
            num_bytes += wide
        if bucket:
            yield bucket

    def _step_bucket(self, inner: torch.optim.Optimizer, bucket: list[torch.Tensor]) -> None:
        for parameter in bucket:
            self._masters[parameter].grad = parameter.grad.float().mul_(self.gradient_factor)
        inner.step()
        for parameter in bucket:
            master = self._masters[parameter]
            if master is not parameter:
                master.grad = None
                parameter.copy_(master)
            self._share_state(inner, parameter)

    def _share_state(self, inner: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
        """Let both optimizers hold one and the same state; the rule makes its own at first."""
        theirs = inner.state[self._masters[parameter]]
        if self.state[parameter] is not theirs:
            theirs.update(self.state[parameter])
            self.state[parameter] = theirs
