"""What a model keeps for its backward pass after Lightning Thunder has compiled it.

Thunder fuses element-wise operations into kernels and decides itself what to keep. The traces on
litgpt's page of it keep: the inputs of norms and their scales, the inputs of linear layers, both
results that a gated feed-forward multiplies, and what attention keeps. That is done here by three
functions; the rest is the eager program. The traces are of fp32; in bf16 some executors keep more.

Source: ``extensions/thunder/README.md`` of Lightning-AI/litgpt, ``saved_for_backward``.
"""

from typing import Any

import torch
from litgpt_model import GPT, GatedMLP, RMSNorm
from torch import Tensor, nn


class _Norm(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        scale = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
        ctx.save_for_backward(x, weight, scale)
        return torch.empty_like(x)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any,
        grad: Tensor,  # noqa: ARG004
    ) -> tuple[Tensor, Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class _Gate(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any,
        grad: Tensor,  # noqa: ARG004
    ) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        return torch.empty_like(gate), torch.empty_like(up)


class _Loss(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        sums = torch.empty(targets.shape, dtype=torch.float32, device=logits.device)
        ctx.save_for_backward(logits, targets, sums)
        return sums.mean()

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: Any,
        grad: Tensor,  # noqa: ARG004
    ) -> tuple[Tensor, None]:
        return torch.empty_like(ctx.saved_tensors[0]), None


class TracedNorm(nn.Module):
    """An RMS norm as one kernel."""

    def __init__(self, norm: RMSNorm) -> None:
        """Take over a norm's weight."""
        super().__init__()
        self.weight = norm.weight

    def forward(self, x: Tensor) -> Tensor:
        """Norm [..., C]."""
        out: Tensor = _Norm.apply(x, self.weight)
        return out


class TracedMLP(nn.Module):
    """A gated feed-forward whose gate is one kernel."""

    def __init__(self, mlp: GatedMLP) -> None:
        """Take over a feed-forward's layers."""
        super().__init__()
        self.fc_1, self.fc_2, self.proj = mlp.fc_1, mlp.fc_2, mlp.proj

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to [..., C]."""
        out: Tensor = self.proj(_Gate.apply(self.fc_1(x), self.fc_2(x)))
        return out


def trace(model: GPT) -> None:
    """Put the traced parts in the place of the eager ones."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, RMSNorm):
                setattr(module, name, TracedNorm(child))
            elif isinstance(child, GatedMLP):
                setattr(module, name, TracedMLP(child))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss, keeping the logits as they came out of the head."""
    out: Tensor = _Loss.apply(logits.reshape(-1, logits.size(-1)), targets.reshape(-1))
    return out
