"""Expert parallelism: every device of a group has some of a block's experts.

A token is routed where it is. Its row goes to the devices of the experts that it chose, with the
weight that its router gave each, is multiplied there by the class's own grouped product, and comes
back (two all-to-alls forward, two backward). No token is dropped, so that how many rows a device
gets hangs on the routing: ``routing`` says how many where nothing is real.

Experts' parameters are DTensors cut by expert over the group; FSDP2 shards each device's experts
again over the devices that have the same ones, as ``mesh.experts_mesh`` lays them out.

Shapes: N tokens of this device, k experts of a token, D width, E experts, R rows received.
Source: Lepikhin et al. 2020 (arXiv:2006.16668); without capacity as Gale et al. 2022
(arXiv:2211.15841).
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from brimful.build.experts import expert_modules
from brimful.build.parallel.collectives import exchange_rows
from brimful.build.parallel.pieces import Forward, cut_parameters, mark_cut, own_pieces
from brimful.build.parallel.routing import Rows, rows_of
from brimful.build.phases import in_backward
from brimful.errors import UnsupportedError

RECEIVED = "rows_received"
"""Attribute of experts that are parted: called in each forward pass, but for recomputed ones, with
the number of the sparse block among the model's and the rows that this device got."""
Heard = Callable[[int, int], None]


class _Site(NamedTuple):
    """Where the experts of one block are: of a model, of a group of devices."""

    block: int
    num_experts: int
    group: ProcessGroup


def expert_parallel(model: nn.Module, mesh: DeviceMesh, *, is_compiled: bool = False) -> None:
    """Part the experts of a model that has no bytes yet among the devices of a group, in place.

    ``model``: of ``transformers``, on ``meta``. ``mesh``: the axis of expert parallelism; its size
    divides the number of experts. ``is_compiled``: whether blocks are: their graphs end before rows
    are sent, as the host reads how many come, and the product has a graph of its own.
    """
    every = list(expert_modules(model))
    if not every:
        raise UnsupportedError(
            f"ep={mesh.size()} is not run for {type(model).__name__}, whose experts transformers "
            f"does not run as one grouped product; use ep=1",
            nearest={"ep": 1},
        )
    for block, experts in enumerate(every):
        site = _Site(block, experts.num_experts, mesh.get_group())
        _part(experts, mesh, site, is_compiled=is_compiled)


def _part(experts: Any, mesh: DeviceMesh, site: _Site, *, is_compiled: bool) -> None:
    placements = {name: Shard(0) for name, _ in experts.named_parameters()}
    cut_parameters(experts, mesh, {}, **placements)
    mark_cut(experts, site.group)
    experts.num_experts = site.num_experts // mesh.size()
    inner: Forward = experts.forward
    multiply = torch.compile(inner, dynamic=True) if is_compiled else inner

    @wraps(inner)
    def forward(
        hidden_ND: torch.Tensor,  # noqa: N803
        expert_Nk: torch.Tensor,  # noqa: N803
        weight_Nk: torch.Tensor,  # noqa: N803
    ) -> torch.Tensor:
        num_choices = expert_Nk.shape[1]
        chosen, order = expert_Nk.flatten().sort()
        rows = _announced(chosen, site)
        _tell(experts, site.block, rows)
        theirs_RD = _sent(hidden_ND[order // num_choices], rows, site)  # noqa: N806
        weight_R = _sent(weight_Nk.flatten()[order], rows, site)  # noqa: N806
        with own_pieces(experts):
            made_RD = multiply(theirs_RD, rows.experts[:, None], weight_R[:, None])  # noqa: N806
        back = exchange_rows(made_RD, rows.received, rows.sent, site.group)
        return back[_places(order)].view(-1, num_choices, back.shape[-1]).sum(1)

    experts.forward = torch.compiler.disable(forward) if is_compiled else forward


def _announced(chosen: torch.Tensor, site: _Site) -> Rows:
    """Tell the group how many of this device's rows go to each expert."""
    load_E = chosen.new_zeros(site.num_experts)  # noqa: N806
    load_E.scatter_add_(0, chosen, chosen.new_ones(1).expand_as(chosen))
    return rows_of(load_E, site.block, len(chosen), site.group)


def _sent(x: torch.Tensor, rows: Rows, site: _Site) -> torch.Tensor:
    return exchange_rows(x, rows.sent, rows.received, site.group)


def _places(order: torch.Tensor) -> torch.Tensor:
    """Return where each row was before it was moved."""
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order), device=order.device)
    return place


def _tell(experts: nn.Module, block: int, rows: Rows) -> None:
    heard: Heard | None = getattr(experts, RECEIVED, None)
    if heard is not None and not in_backward():
        heard(block, sum(rows.received))
