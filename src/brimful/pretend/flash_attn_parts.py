"""Forward and backward of flash-attn alone, for libraries that have an autograd of their own.

Followed: flash-attn 2.8.3, ``flash_attn/flash_attn_interface.py`` (``_flash_attn_forward`` and the
like); what its kernels allocate stands in ``flash_attn_kernels``.
"""

from collections.abc import Callable
from typing import Any

import torch

from brimful.errors import UnsupportedError
from brimful.pretend.flash_attn_kernels import How, dense, kernel_backward, kernel_forward
from brimful.pretend.known_values import KnownValues
from brimful.pretend.other_kernels import OtherKernels


def functions(kernels: OtherKernels, known: KnownValues) -> dict[str, Callable[..., Any]]:
    """Return them, by name."""

    def forward(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, how: How
    ) -> tuple[torch.Tensor, ...]:
        kernels.launch("flash_attn_2_cuda.fwd", {}, known)
        return kernel_forward(q, k, v, how)

    def backward(given: tuple[torch.Tensor, ...], gradients: Any, how: How) -> torch.Tensor:
        dout, q, k, v, out = map(dense, given)
        made = [
            torch.empty_like(x) if made is None else made
            for x, made in zip((q, k, v), gradients, strict=True)
        ]
        kernels.launch("flash_attn_2_cuda.bwd", dict(zip("qkv", made, strict=True)), known)
        kernel_backward(dout, (q, k, v, out), tuple(made), how)
        sums = (q.shape[0], q.shape[-2]) if how.offsets else (*q.shape[:1], q.shape[2], q.shape[1])
        return torch.empty(sums, dtype=torch.float32, device=q.device)

    def alone(q: Any, k: Any, v: Any, dropout_p: float = 0.0, *_how: Any, **told: Any) -> Any:
        wants = bool(told.get("return_softmax")) and dropout_p > 0
        return forward(q, k, v, _how_of(dropout=dropout_p, wants_scores=wants))

    def packed(  # noqa: PLR0913, PLR0917 - the signature is the package's
        q: Any, k: Any, v: Any, first: Any, second: Any, longest: int, longest_k: int,
        dropout_p: float = 0.0, *_how: Any, **told: Any,
    ) -> Any:  # fmt: skip
        if told.get("block_table") is not None:
            raise UnsupportedError(
                "flash-attn is given pages of a cache (block_table), which are not simulated; call "
                "it with whole keys and values"
            )
        return forward(q, k, v, _how_of((first, second), (longest, longest_k), dropout=dropout_p))

    def back_alone(  # noqa: PLR0913, PLR0917 - the signature is the package's
        dout: Any, q: Any, k: Any, v: Any, out: Any, _lse: Any, dq: Any, dk: Any, dv: Any,
        dropout_p: float = 0.0, *_how: Any, deterministic: bool = False, **_told: Any,
    ) -> torch.Tensor:  # fmt: skip
        how = _how_of(dropout=dropout_p, deterministic=deterministic)
        return backward((dout, q, k, v, out), (dq, dk, dv), how)

    def back_packed(  # noqa: PLR0913, PLR0917 - the signature is the package's
        dout: Any, q: Any, k: Any, v: Any, out: Any, _lse: Any, dq: Any, dk: Any, dv: Any,
        first: Any, second: Any, longest: int, longest_k: int, dropout_p: float = 0.0,
        *_how: Any, deterministic: bool = False, **_told: Any,
    ) -> torch.Tensor:  # fmt: skip
        how = _how_of(
            (first, second), (longest, longest_k), dropout=dropout_p, deterministic=deterministic
        )
        return backward((dout, q, k, v, out), (dq, dk, dv), how)

    return {
        "_flash_attn_forward": alone,
        "_flash_attn_varlen_forward": packed,
        "_flash_attn_backward": back_alone,
        "_flash_attn_varlen_backward": back_packed,
    }


def _how_of(
    offsets: tuple[torch.Tensor, ...] = (),
    longest: tuple[int, int] = (0, 0),
    *,
    dropout: float,
    deterministic: bool = False,
    wants_scores: bool = False,
) -> How:
    return How("q k v", offsets, longest, dropout, deterministic, wants_scores)
