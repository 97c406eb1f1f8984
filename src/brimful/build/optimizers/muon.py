"""torch's Muon and AdamW as one optimizer, whose groups say which of both updates them.

Of a matrix that FSDP2 shards each device averages its rows; what is orthogonalised is gathered in
bf16, in which torch computes it, by every device, which keeps its rows of the result: the update is
that of the whole matrix. Nothing else is gathered, and one matrix at a time.
"""

import torch
from torch.distributed.tensor import DTensor
from torch.optim._muon import _adjust_lr, _zeropower_via_newtonschulz

from brimful.build.optimizers.base import HIDDEN, Group
from brimful.build.own import own_memory, region_of, share_of
from brimful.build.parallel.collectives import gather_rows
from brimful.values.job import Job

RATE = "match_rms_adamw"
"""How the rate is adjusted to a matrix: Moonlight's, which takes AdamW's rate and decay."""


def build(groups: list[Group], job: Job) -> torch.optim.Optimizer:
    """Make Muon for matrices of blocks, and fused AdamW for the other groups."""
    return MuonBesideAdamW(groups, job)


class MuonBesideAdamW(torch.optim.Optimizer):  # type: ignore[misc]  # torch is untyped to mypy
    """Both optimizers over one list of groups and one state, which any checkpoint holds."""

    def __init__(self, groups: list[Group], job: Job) -> None:
        """Give each rule its groups, with its own settings in them.

        ``groups``: as ``parameter_groups`` makes them.
        """
        betas = (job.beta1, job.beta2)
        hidden = [group for group in groups if group.get(HIDDEN)]
        others = [group for group in groups if not group.get(HIDDEN)]
        self._rules: list[torch.optim.Optimizer] = []
        if hidden:
            self._rules.append(ShardedMuon(hidden, lr=job.learning_rate, adjust_lr_fn=RATE))
        if others:
            self._rules.append(
                torch.optim.AdamW(
                    others, lr=job.learning_rate, betas=betas, eps=job.epsilon, fused=True
                )
            )
        super().__init__([group for rule in self._rules for group in rule.param_groups], {})

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
    def step(self, closure: None = None) -> None:
        """Update every parameter that has a gradient.

        ``closure``: not used; torch's optimizers have it.
        """
        del closure
        for rule in self._rules:
            is_muon = isinstance(rule, torch.optim.Muon)
            rule.state = self.state
            rule.param_groups = [g for g in self.param_groups if bool(g.get(HIDDEN)) == is_muon]
            rule.step()


class ShardedMuon(torch.optim.Muon):  # type: ignore[misc]  # torch is untyped to mypy
    """torch's Muon, of matrices whose rows are sharded too."""

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
    def step(self, closure: None = None) -> None:
        """Update every matrix that has a gradient.

        ``closure``: not used; torch's optimizers have it.
        """
        shards = [
            (parameter, group)
            for group in self.param_groups
            for parameter in group["params"]
            if isinstance(parameter, DTensor) and parameter.grad is not None
        ]
        if not shards:
            super().step(closure)
        for parameter, group in shards:
            self._update_shard(parameter, group)

    def _update_shard(self, parameter: DTensor, group: Group) -> None:
        """Update this device's rows as torch's ``_single_tensor_muon`` updates all."""
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        rows, average = own_memory(parameter), own_memory(state["momentum_buffer"])
        gradient = own_memory(parameter.grad)
        average.lerp_(gradient, 1 - group["momentum"])
        ahead = gradient.lerp(average, group["momentum"]) if group["nesterov"] else average
        whole = _gathered(parameter, ahead.bfloat16())
        del ahead
        found = _zeropower_via_newtonschulz(
            whole, group["ns_coefficients"], group["ns_steps"], group["eps"]
        )
        rate = _adjust_lr(group["lr"], group["adjust_lr_fn"], parameter.shape)
        rows.mul_(1 - group["lr"] * group["weight_decay"])
        rows.add_(found[region_of(parameter)], alpha=-rate)


def _gathered(parameter: DTensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the whole of what every device has rows of, as it has of a parameter.

    ``parameter``: cut by rows over one axis of its mesh. ``rows``: this device's, which are padded
    where others have more.
    """
    axis = next(i for i, each in enumerate(parameter.placements) if not each.is_replicate())
    share = share_of(parameter)
    if rows.shape != share:
        padded = rows.new_zeros(share)
        padded[: rows.shape[0]] = rows
        rows = padded
    num = share[0] * parameter.device_mesh.size(axis)
    every = rows.new_empty((num, *share[1:]))
    gather_rows(every, rows, parameter.device_mesh.get_group(axis))
    return every[: parameter.shape[0]]
