"""What the devices of a tensor- or expert-parallel group tell each other, forward and backward.

Each is a function of plain tensors with its own backward pass: what one direction gathers the other
adds up and scatters. Tokens are the first dimension, so that a gathered piece needs no copy.

Shapes: N tokens of the group, n tokens of this device, D width of a token, f features of this
device, F features of the group.
Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models"
(arXiv:2205.05198), section 4.2.2.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import Function
from torch.distributed import ProcessGroup

_IS_NEW = hasattr(dist, "all_gather_single")
_GATHER = "all_gather_single" if _IS_NEW else "all_gather_into_tensor"
_SCATTER = "reduce_scatter_single" if _IS_NEW else "reduce_scatter_tensor"
"""Their names since torch 2.13, and before."""


def gather_rows(every: torch.Tensor, rows: torch.Tensor, group: ProcessGroup) -> None:
    """Put the rows of every device, of which each has as many, one below the other.

    ``every``: where; no gradient is known of it.
    """
    getattr(dist, _GATHER)(every, rows, group=group)


def gather_tokens(x_nD: torch.Tensor, group: ProcessGroup) -> torch.Tensor:  # noqa: N803
    """Put every device's tokens together.

    ``x_nD``: [n, D]; alike in shape on every device. Returns [N, D]. Its gradient is summed over
    the devices, which each used all tokens.
    """
    gathered: torch.Tensor = _GatherTokens.apply(x_nD, group)
    return gathered


def scatter_sum(x_ND: torch.Tensor, group: ProcessGroup) -> torch.Tensor:  # noqa: N803
    """Add up what every device has of all tokens, and keep this device's tokens.

    ``x_ND``: [N, D], a term of the sum. ``group``: the devices; their number divides N. Returns [n,
    D].
    """
    summed: torch.Tensor = _ScatterSum.apply(x_ND, group)
    return summed


def gather_features(x_Nf: torch.Tensor, group: ProcessGroup) -> torch.Tensor:  # noqa: N803
    """Put every device's features together.

    ``x_Nf``: [..., f]. Returns [..., F]. Its gradient is summed over the devices.
    """
    by_feature = x_Nf.movedim(-1, 0).contiguous()
    gathered: torch.Tensor = _GatherTokens.apply(by_feature, group)
    return gathered.movedim(0, -1).contiguous()


def with_summed_gradient(x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    """Return the same numbers, whose gradient is the sum of the devices' gradients."""
    same: torch.Tensor = _SumGradient.apply(x, group)
    return same


def exchange_rows(
    x_ND: torch.Tensor,  # noqa: N803
    sent: Sequence[int],
    received: Sequence[int],
    group: ProcessGroup,
) -> torch.Tensor:
    """Send every device some of this one's rows, and get some of each one's (all-to-all).

    ``x_ND``: [N, ...]: rows for the first device of the group, then those for the second, and on.
    ``sent``: how many go to each device; N in all. Returns [sum of ``received``, ...], those of the
    first device first. Gradients go back the same way.
    """
    exchanged: torch.Tensor = _ExchangeRows.apply(x_ND, list(sent), list(received), group)
    return exchanged


def _exchanged(
    x: torch.Tensor, sent: list[int], received: list[int], group: ProcessGroup
) -> torch.Tensor:
    out = x.new_empty((sum(received), *x.shape[1:]))
    dist.all_to_all_single(out, x.contiguous(), received, sent, group=group)
    return out


def gathered(x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    """Put what every device has one below the other; no gradient is known of it."""
    out = x.new_empty((x.shape[0] * group.size(), *x.shape[1:]))
    getattr(dist, _GATHER)(out, x.contiguous(), group=group)
    return out


def scattered(x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    """Add up what every device has, and keep this device's rows; see ``gathered``."""
    out = x.new_empty((x.shape[0] // group.size(), *x.shape[1:]))
    getattr(dist, _SCATTER)(out, x.contiguous(), group=group)
    return out


class _GatherTokens(Function):  # type: ignore[misc]  # torch is untyped to mypy
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return scattered(gradient, ctx.group), None


class _ScatterSum(Function):  # type: ignore[misc]  # torch is untyped to mypy
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return scattered(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gathered(gradient, ctx.group), None


class _SumGradient(Function):  # type: ignore[misc]  # torch is untyped to mypy
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        summed = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed, group=ctx.group)
        return summed, None


class _ExchangeRows(Function):  # type: ignore[misc]  # torch is untyped to mypy
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, sent: list[int], received: list[int], group: ProcessGroup
    ) -> torch.Tensor:
        ctx.back = (received, sent, group)
        return _exchanged(x, sent, received, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _exchanged(gradient, *ctx.back), None, None, None
