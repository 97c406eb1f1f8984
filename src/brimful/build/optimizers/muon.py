"""torch's Muon and AdamW as one optimizer, whose groups say which of both updates them.

torch's takes matrices. A stack of them, [experts, rows, columns], is iterated on all at once:

    X <- X / |X|,    five times    X <- a X + (b G + c G G) X,  G = X X^T,    for each X of it

Of a matrix that FSDP2 shards each device averages its rows; what is orthogonalised is gathered in
bf16, in which torch computes it, by every device, which keeps its rows of the result: the update is
that of the whole matrix. Nothing else is gathered, and one matrix at a time. A shard of a stack is
whole matrices, which are updated where they are; where devices that part experts cut the rows of
each, these are gathered.

Source: ``torch/optim/_muon.py``; Liu et al. 2025, arXiv:2502.16982.
"""

from typing import Any

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
    """torch's Muon, of stacks of matrices too, and of what is sharded."""

    def __init__(self, groups: list[Group], **settings: Any) -> None:
        """Take groups of matrices and of stacks of them; torch's own takes no stacks."""
        super().__init__([{**group, "params": []} for group in groups], **settings)
        for group, given in zip(self.param_groups, groups, strict=True):
            group["params"] = given["params"]

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
    def step(self, closure: None = None) -> None:
        """Update everything that has a gradient.

        ``closure``: not used; torch's optimizers have it.
        """
        del closure
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: torch.Tensor, group: Group) -> None:
        """Update what this device has as torch's ``_single_tensor_muon`` updates a matrix."""
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        own, average = own_memory(parameter), own_memory(state["momentum_buffer"])
        gradient = own_memory(parameter.grad)
        average.lerp_(gradient, 1 - group["momentum"])
        ahead = gradient.lerp(average, group["momentum"]) if group["nesterov"] else average
        cut = _cut_dim(parameter)
        if cut is not None:
            ahead = _gathered(parameter, ahead.bfloat16(), cut)
        found = _orthogonal(ahead, group)
        del ahead
        rate = _adjust_lr(group["lr"], group["adjust_lr_fn"], parameter.shape[-2:])
        own.mul_(1 - group["lr"] * group["weight_decay"])
        if cut is not None:
            mine = region_of(parameter)[cut]
            found = found.narrow(cut, mine.start, mine.stop - mine.start)
        own.add_(found, alpha=-rate)


def _orthogonal(matrices: torch.Tensor, group: Group) -> torch.Tensor:
    """Orthogonalise a matrix by torch's function, or each of a stack as that does one."""
    (a, b, c), eps = group["ns_coefficients"], group["eps"]
    if matrices.ndim == 2:  # noqa: PLR2004 - a matrix
        found: torch.Tensor = _zeropower_via_newtonschulz(
            matrices, group["ns_coefficients"], group["ns_steps"], eps
        )
        return found
    is_tall = matrices.size(-2) > matrices.size(-1)
    x = matrices.bfloat16()
    if is_tall:
        x = x.mT
    x.div_(x.norm(dim=(-2, -1), keepdim=True).clamp(min=eps))
    for _ in range(group["ns_steps"]):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if is_tall else x


def _cut_dim(parameter: torch.Tensor) -> int | None:
    """Return along which dimension matrices are cut over devices; None: each is whole on one."""
    if not isinstance(parameter, DTensor):
        return None
    dims = [each.dim for each in parameter.placements if not each.is_replicate()]
    return next((dim for dim in dims if dim >= parameter.ndim - 2), None)


def _gathered(parameter: DTensor, piece: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the whole of what every device has a piece of, as it has of a parameter.

    ``parameter``: cut along ``dim`` over one axis of its mesh; where devices part experts, stacks
    are over another axis, whose others have other matrices. ``piece``: this device's, which is
    padded where others have more.
    """
    axis = next(i for i, each in enumerate(parameter.placements) if each.is_shard(dim))
    share = share_of(parameter)
    if piece.shape != share:
        padded = piece.new_zeros(share)
        padded.narrow(dim, 0, piece.shape[dim]).copy_(piece)
        piece = padded
    num = parameter.device_mesh.size(axis)
    every = piece.new_empty((num * share[0], *share[1:]))
    gather_rows(every, piece, parameter.device_mesh.get_group(axis))
    if dim:  # pieces lie one behind the other: put the rows of each matrix together
        every = every.unflatten(0, (num, share[0])).transpose(0, 1).flatten(1, 2)
    return every.narrow(dim, 0, parameter.shape[dim])
