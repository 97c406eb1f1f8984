"""The global gradient norm and the clip, in fp32 whatever the gradients are held in.

Torch's own norm is of the gradients' type, so that one of bf16 gradients has three digits: the
clip scales by a factor that is up to 0.4 % off and a log shows a staircase.
"""

from collections.abc import Iterable, Iterator

import torch

_PIECE = 2**16
"""Elements that are summed at a time on a CPU, whose kernel widens what it is given into a copy:
256 KiB, where whole gradients would take as much as the largest of them twice. CUDA's widens each
number as it reads it."""
_NEAR_ZERO = 1e-6
"""As in ``torch.nn.utils.clip_grad_norm_``: a norm of zero divides nothing."""


def clip_gradients(parameters: Iterable[torch.Tensor], max_norm: float) -> torch.Tensor:
    """Scale the gradients in place so that their global norm is at most ``max_norm``.

    Args:
        parameters: All that train.
        max_norm: The bound; 0 only measures.

    Returns:
        The norm before scaling, an fp32 scalar on the device.
    """
    trained = list(parameters)
    bound = max_norm if max_norm > 0 else float("inf")
    if all(p.grad.dtype == torch.float32 for p in trained if p.grad is not None):
        return torch.nn.utils.clip_grad_norm_(trained, bound)
    norm = gradient_norm(trained)
    if max_norm > 0:
        torch.nn.utils.clip_grads_with_norm_(trained, bound, norm)
    return norm


def gradient_norm(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the global norm of the gradients as they are, an fp32 scalar on the device."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.tensor(0.0)
    pieces = [piece for gradient in gradients for piece in _pieces(gradient)]
    norms = torch._foreach_norm(pieces, 2.0, torch.float32)  # noqa: SLF001 - as torch's clip does
    return torch.linalg.vector_norm(torch.stack(norms))


def clip_factor(norm: torch.Tensor, max_norm: float) -> torch.Tensor:
    """Return what gradients of this norm are multiplied by, at most 1, on the norm's device.

    Args:
        norm: A scalar.
        max_norm: The bound; 0 leaves gradients alone.
    """
    if max_norm <= 0:
        return torch.ones_like(norm)
    return (max_norm / (norm + _NEAR_ZERO)).clamp_(max=1.0)


def _pieces(gradient: torch.Tensor) -> Iterator[torch.Tensor]:
    if gradient.device.type == "cpu" and gradient.dtype != torch.float32:
        yield from gradient.flatten().split(_PIECE)
    else:
        yield gradient
