"""The kernels that stand for a training step when a machine's rates are measured.

A step of a decoder spends its time in matrix products, in fused attention, and in operations
that move memory (norms, rotary embedding, gates, residuals, the loss). Each kernel here is one of
those at the sizes of such a step, with fresh outputs as in training: on a CPU a tensor over 32 MiB
is mapped anew, page fault by page fault, each time, and that is part of the rate.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.pretend.costs import work

_NUM_TINY_OPS = 1000
_COPIED = (2**22, 2**24)
"""Numbers in fp32 that are copied at once: 16 and 64 MiB, more than caches of processors hold."""
_EMULATED = 5
"""A type whose small products take this much longer than fp32's has no units of its own."""
_FEW_TOKENS = 1 / 64
_PROBE, _NUM_PROBES = 512, 3
_MEMORY_BLOCKS = 2
_MODEL_BLOCKS = 8
"""Blocks of the model that is stood for; ``_MEMORY_BLOCKS`` of them are run and count for all."""


class Block(NamedTuple):
    """The sizes of a decoder and its micro-batch."""

    num_sequences: int
    seq_len: int
    hidden: int
    intermediate: int
    num_heads: int
    vocab: int


BLOCKS = (
    Block(8, 256, 384, 1024, 6, 8192),
    Block(4, 512, 512, 1344, 8, 8192),
)
"""Two ends of what is trained on a small machine; a rate is the average over both."""
BLOCKS_OF_CARDS = (
    Block(4, 2048, 2048, 8192, 32, 32768),
    Block(2, 4096, 4096, 14336, 32, 32768),
)
"""Two ends of what is trained on a card, 1B and 8B: the blocks above keep none busy."""
BLOCKS_OF_SMALL_CARDS = (Block(1, 2048, 2048, 8192, 32, 32768),)
SMALL_CARD_BYTES = 24 * 10**9
"""Cards with less take the smaller ones: the two above are simulated to take 16.4 GB."""


class Kernel(NamedTuple):
    """Work to be timed.

    Attributes:
        rate: The rate it belongs to: ``fp32``, ``bf16``, ``memory``, ``copy`` or ``launch``.
        share: How often it counts in a step.
        amount: FLOPs, bytes moved or operations of one run.
        run: Does it once.
    """

    rate: str
    share: float
    amount: float
    run: Callable[[], object]


def kernels(device: torch.device, *, bf16: bool, blocks: tuple[Block, ...] = ()) -> list[Kernel]:
    """Build every kernel on a device, its inputs allocated and filled.

    ``bf16``: whether the device has bf16 matrix products. ``blocks``: of which sizes; empty: those
    that keep the device busy.
    """
    dtypes = {"fp32": torch.float32, **({"bf16": torch.bfloat16} if bf16 else {})}
    found = [_launch(device), _copies(device)]
    share = {rate: token_share(device, dtype) for rate, dtype in dtypes.items()}
    for block in blocks or blocks_for(_memory_bytes(device)):
        for rate, dtype in dtypes.items():
            found += _products(block, rate, dtype, device, share[rate])
            found.append(_attention(block, rate, dtype, device))
        found += _memory(block, device)
    return found


def _memory_bytes(device: torch.device) -> int | None:
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory)


def blocks_for(memory_bytes: int | None) -> tuple[Block, ...]:
    """Return the blocks whose kernels keep a device busy and fit it.

    ``memory_bytes``: of a GPU; None: a CPU.
    """
    if memory_bytes is None:
        return BLOCKS
    return BLOCKS_OF_SMALL_CARDS if memory_bytes < SMALL_CARD_BYTES else BLOCKS_OF_CARDS


def token_share(device: torch.device, dtype: torch.dtype) -> float:
    """Return what share of a block's tokens is multiplied: a few where a type is emulated.

    A CPU without units for bf16 may be thirty times slower in it than in fp32, so that one round of
    whole blocks would take a minute; its rate hardly hangs on how many tokens there are.
    """
    if device.type != "cpu" or dtype == torch.float32:
        return 1.0
    wide, narrow = (_probe_s(device, of) for of in (torch.float32, dtype))
    return 1.0 if narrow < _EMULATED * wide else _FEW_TOKENS


def _probe_s(device: torch.device, dtype: torch.dtype) -> float:
    """Time a small product: the shortest of a few."""
    x = torch.randn(_PROBE, _PROBE, device=device).to(dtype)
    times_s = []
    for _ in range(_NUM_PROBES):
        start_s = time.perf_counter()
        _ = x @ x
        times_s.append(time.perf_counter() - start_s)
    return min(times_s)


def _products(
    block: Block, rate: str, dtype: torch.dtype, device: torch.device, share_of_tokens: float
) -> Iterator[Kernel]:
    """Forward product ``x @ W.T`` and the two of its backward, for each shape of weight."""
    hidden, wide = block.hidden, block.intermediate
    shapes = {
        (hidden, hidden): 4.0,
        (wide, hidden): 2.0,
        (hidden, wide): 1.0,
        (block.vocab, hidden): 1 / _MODEL_BLOCKS,
    }
    num_tokens = int(block.num_sequences * block.seq_len * share_of_tokens)
    for (rows, columns), share in shapes.items():
        x_NI = torch.randn(num_tokens, columns, device=device).to(dtype)  # noqa: N806
        w_OI = torch.randn(rows, columns, device=device).to(dtype)  # noqa: N806
        g_NO = torch.randn(num_tokens, rows, device=device).to(dtype)  # noqa: N806

        def run(x: torch.Tensor = x_NI, w: torch.Tensor = w_OI, g: torch.Tensor = g_NO) -> None:
            _ = x @ w.t()
            _ = g @ w
            _ = g.t() @ x

        yield Kernel(rate, share / share_of_tokens, 6 * num_tokens * rows * columns, run)


def _attention(block: Block, rate: str, dtype: torch.dtype, device: torch.device) -> Kernel:
    """Causal fused attention, forward and backward, its FLOPs counted whole (2 + 5 products)."""
    head_dim = block.hidden // block.num_heads
    shape = (block.num_sequences, block.num_heads, block.seq_len, head_dim)
    q, k, v = (torch.randn(shape, device=device).to(dtype).requires_grad_() for _ in range(3))
    gradient = torch.randn(shape, device=device).to(dtype)

    def run() -> object:
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.autograd.grad(out, (q, k, v), gradient)

    num_heads = block.num_sequences * block.num_heads
    return Kernel(rate, 1, 7 * 2 * num_heads * block.seq_len**2 * head_dim, run)


def _memory(block: Block, device: torch.device) -> Iterator[Kernel]:
    """All else: blocks without their products, and the loss over whole logits."""
    shares = {_residual_stream: _MODEL_BLOCKS / _MEMORY_BLOCKS, _loss: 1.0}
    for build, share in shares.items():
        run = build(block, _META)
        counter = _MovedBytes()
        with counter:
            run()
        yield Kernel("memory", share, counter.num_bytes, build(block, device))


_META = torch.device("meta")


class _MovedBytes(TorchDispatchMode):  # type: ignore[misc]
    """Counts bytes by the rule by which the cost model counts those of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        del types
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            _, _, moved_bytes = work(func, args, kwargs or {}, out)
            self.num_bytes += sum(moved_bytes)
        return out


def _residual_stream(block: Block, device: torch.device) -> Callable[[], object]:
    """Norms, rotary embedding, gate and residual sums, forward and backward."""
    shape = (block.num_sequences, block.seq_len, block.hidden)
    head_dim = block.hidden // block.num_heads
    x_BSH = torch.randn(shape, device=device, requires_grad=True)  # noqa: N806
    weight_H = torch.ones(block.hidden, device=device, requires_grad=True)  # noqa: N806
    wide_BSF = torch.randn(*shape[:2], block.intermediate, device=device)  # noqa: N806
    wide_BSF.requires_grad_()
    cos, sin = (torch.randn(block.seq_len, head_dim, device=device) for _ in range(2))

    def norm(x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return weight_H * (x * scale)

    def rotated(x: torch.Tensor) -> torch.Tensor:
        heads = x.view(*shape[:2], block.num_heads, head_dim).transpose(1, 2)
        left, right = heads.chunk(2, dim=-1)
        return heads * cos + torch.cat((-right, left), dim=-1) * sin

    def one(x: torch.Tensor) -> torch.Tensor:
        normed = norm(x)
        query, key = rotated(normed), rotated(normed)
        x = x + (query + key).transpose(1, 2).reshape(shape)
        gated = functional.silu(wide_BSF) * wide_BSF
        return x + norm(x) * gated[..., :1]

    def run() -> object:
        x = x_BSH
        for _ in range(_MEMORY_BLOCKS):
            x = one(x)
        return torch.autograd.grad(x, (x_BSH, weight_H, wide_BSF), x.detach())

    return run


def _loss(block: Block, device: torch.device) -> Callable[[], object]:
    """Cross-entropy over whole logits, as they come in bf16 and are widened, and its backward."""
    num_tokens = block.num_sequences * block.seq_len
    logits_NV = torch.randn(num_tokens, block.vocab, device=device).bfloat16()  # noqa: N806
    logits_NV.requires_grad_()
    labels_N = torch.zeros(num_tokens, dtype=torch.long, device=device)  # noqa: N806

    def run() -> object:
        loss = functional.cross_entropy(logits_NV.float(), labels_N, reduction="sum")
        return torch.autograd.grad(loss, logits_NV)

    return run


def _copies(device: torch.device) -> Kernel:
    """Copy to the host and back, between memory that was used before; to and from pinned memory."""
    there = [torch.ones(num, device=device) for num in _COPIED]
    home = [torch.ones(num, pin_memory=device.type == "cuda") for num in _COPIED]

    def run() -> None:
        for one, other in zip(there, home, strict=True):
            other.copy_(one, non_blocking=True)
            one.copy_(other, non_blocking=True)

    return Kernel("copy", 1, 2 * sum(map(torch.Tensor.nbytes.__get__, there)), run)


def _launch(device: torch.device) -> Kernel:
    """Sixteen numbers, forward and backward through autograd: all host time, no work."""
    x = torch.randn(16, device=device, requires_grad=True)
    y = torch.randn(16, device=device)

    def run() -> object:
        total = x
        for _ in range(_NUM_TINY_OPS):
            total = total * y
        return torch.autograd.grad(total, x, y)

    return Kernel("launch", 1, 2 * _NUM_TINY_OPS, run)
