"""What single operations allocate beside their results, on a real GPU or on the pretend one.

``python benchmarks/gpu/kernel_calls.py`` on a GPU, and without one ``brimful pretend
benchmarks/gpu/kernel_calls.py``: the same calls, a JSON object a line. Where both are there,
``kernel_calls.py --compare MEASURED SIMULATED`` says what differs.

Bytes are the allocator's requested bytes: the most that a call takes beyond what was there before
it, what it leaves, and on a real GPU every allocation (+) and release (-) in order. Each call is
made twice: libraries make workspaces of their own the first time.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch.nn.attention import SDPBackend, sdpa_kernel

CUDA = "cuda"
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
KINDS = {BF16: "bf16", FP16: "fp16", FP32: "fp32"}
MANY_EVENTS = 60
"""Of one call; a call with more is not followed event by event."""
Call = Callable[[], Any]
Named = tuple[str, Callable[[], Call]]
"""A call's name, and what makes its inputs and returns it."""


def randn(*shape: int, dtype: torch.dtype = FP32, grad: bool = False) -> torch.Tensor:
    """Make random values on the GPU."""
    return torch.randn(*shape, device=CUDA, dtype=dtype, requires_grad=grad)


def backward_of(out: torch.Tensor, *inputs: torch.Tensor) -> Call:
    """Return a call of the backward pass of a result, for inputs that want gradients."""
    grad = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)


# -- attention --


def attention(  # noqa: PLR0913 - a call's sizes
    kernel: SDPBackend, *, batch: int, heads: int, groups: int, tokens: int, dim: int,
    dtype: torch.dtype, causal: bool, back: bool, keys: int = 0, masked: bool = False,
    dropout: float = 0.0, transposed: bool = False,
) -> Callable[[], Call]:  # fmt: skip
    """Return what makes a call of one attention kernel; ``groups`` are key heads."""

    def made() -> Call:
        def heads_of(num: int, length: int) -> torch.Tensor:
            if transposed:  # as projections leave them: tokens before heads
                return randn(batch, length, num, dim, dtype=dtype).transpose(1, 2).requires_grad_()
            return randn(batch, num, length, dim, dtype=dtype, grad=True)

        query = heads_of(heads, tokens)
        key, value = (heads_of(groups, keys or tokens) for _ in range(2))
        mask = randn(batch, 1, tokens, keys or tokens, dtype=dtype) if masked else None

        def forward() -> torch.Tensor:
            with sdpa_kernel(kernel):
                return F.scaled_dot_product_attention(
                    query, key, value, attn_mask=mask, is_causal=causal, dropout_p=dropout,
                    enable_gqa=groups != heads,
                )  # fmt: skip

        return backward_of(forward(), query, key, value) if back else forward

    return made


def _attention_shapes() -> Iterator[dict[str, Any]]:
    plain = {"batch": 2, "heads": 16, "groups": 16, "tokens": 1024, "dim": 64, "dtype": BF16,
             "causal": True}  # fmt: skip
    for dim in (64, 80, 96, 128, 192, 256):
        yield plain | {"dim": dim}
    for tokens in (128, 300, 512, 1000, 2048, 4096, 8192):
        yield plain | {"tokens": tokens}
        yield plain | {"tokens": tokens, "dim": 128, "heads": 32, "groups": 8, "transposed": True}
    for batch in (1, 3, 4, 8):
        yield plain | {"batch": batch}
    for groups in (1, 2, 4, 8):
        yield plain | {"groups": groups}
        yield plain | {"groups": groups, "dim": 128, "tokens": 2048, "batch": 1}
    for heads in (8, 12, 25, 32):
        yield plain | {"heads": heads, "groups": heads}
    yield plain | {"causal": False}
    yield plain | {"causal": False, "masked": True}
    yield plain | {"causal": False, "keys": 777}
    yield plain | {"dropout": 0.1}
    yield plain | {"dtype": FP16}
    yield plain | {"transposed": True}
    yield plain | {"heads": 32, "groups": 8, "dim": 128, "tokens": 4096, "batch": 1}


def _spelled(sizes: dict[str, Any]) -> str:
    return ",".join(
        f"{name}={KINDS.get(value, value) if name == 'dtype' else value}"
        for name, value in sizes.items()
    )


def attentions() -> Iterator[Named]:
    """Every kernel on every shape; most of all cuDNN's, whose workspaces no source tells."""
    kernels = (
        ("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION),
        ("efficient", SDPBackend.EFFICIENT_ATTENTION), ("math", SDPBackend.MATH),
    )  # fmt: skip
    for name, kernel in kernels:
        for sizes in _attention_shapes():
            if name == "math" and sizes["tokens"] > 2048:  # squares of it
                continue
            for back in (False, True):
                pass_name = "backward" if back else "forward"
                yield (
                    f"attention/{name}/{pass_name}/{_spelled(sizes)}",
                    attention(kernel, back=back, **sizes),
                )


# -- products and convolutions --


def mm(rows: int, inner: int, columns: int, dtype: torch.dtype) -> Call:
    """Multiply two matrices."""
    left, right = randn(rows, inner, dtype=dtype), randn(inner, columns, dtype=dtype)
    return lambda: left @ right


def linear(rows: int, inner: int, columns: int, dtype: torch.dtype, *, back: bool) -> Call:
    """A linear layer with a bias."""
    left = randn(rows, inner, dtype=dtype, grad=True)
    right = randn(columns, inner, dtype=dtype, grad=True)
    bias = randn(columns, dtype=dtype, grad=True)

    def forward() -> torch.Tensor:
        with torch.set_grad_enabled(back):
            return F.linear(left, right, bias)

    return backward_of(forward(), left, right, bias) if back else forward


def batched(name: str, dtype: torch.dtype) -> Call:
    """Multiply 64 pairs of matrices: ``bmm``, ``baddbmm`` or ``addbmm``."""
    left, right = randn(64, 256, 512, dtype=dtype), randn(64, 512, 128, dtype=dtype)
    if name == "bmm":
        return lambda: torch.bmm(left, right)
    other = randn(*((64,) if name == "baddbmm" else ()), 256, 128, dtype=dtype)
    return lambda: getattr(torch, name)(other, left, right)


def mv(dtype: torch.dtype) -> Call:
    """Multiply a matrix and a vector."""
    left, right = randn(4096, 2048, dtype=dtype), randn(2048, dtype=dtype)
    return lambda: left @ right


def grouped(groups: int, rows: int, inner: int, columns: int, *, back: bool) -> Call:
    """Multiply groups of rows, each by a matrix of its own, as experts do."""
    left = randn(rows, inner, dtype=BF16, grad=back)
    right = randn(groups, inner, columns, dtype=BF16, grad=back)
    ends = torch.arange(1, groups + 1, device=CUDA, dtype=torch.int32) * (rows // groups)

    def forward() -> torch.Tensor:
        return torch._grouped_mm(left, right, offs=ends)  # noqa: SLF001

    return backward_of(forward(), left, right) if back else forward


def scaled(rows: int, inner: int, columns: int, *, by_row: bool) -> Call:
    """Multiply in fp8, with a scale of each tensor or of each row."""
    left = randn(rows, inner).to(torch.float8_e4m3fn)
    right = randn(columns, inner).to(torch.float8_e4m3fn).t()
    shapes = ((rows, 1), (1, columns)) if by_row else ((), ())
    one, other = (torch.ones(shape, device=CUDA) for shape in shapes)
    return lambda: torch._scaled_mm(left, right, one, other, out_dtype=BF16)  # noqa: SLF001


def int8(rows: int, inner: int, columns: int) -> Call:
    """Multiply integers of 8 bits."""
    left, right = randn(rows, inner).to(torch.int8), randn(inner, columns).to(torch.int8)
    return lambda: torch._int_mm(left, right)  # noqa: SLF001


def products() -> Iterator[Named]:
    """Matrix products, plain, grouped and in 8 bits."""
    for dtype in (FP32, BF16, FP16):
        kind = KINDS[dtype]
        for sizes in ((512, 1024, 768), (4096, 4096, 4096), (8192, 1024, 32000)):
            spelled = f"{kind},{'x'.join(map(str, sizes))}"
            yield f"mm/{spelled}", partial(mm, *sizes, dtype)
            yield f"linear/{spelled}", partial(linear, *sizes, dtype, back=False)
            yield f"linear backward/{spelled}", partial(linear, *sizes, dtype, back=True)
        for name in ("bmm", "baddbmm", "addbmm"):
            yield f"{name}/{kind}", partial(batched, name, dtype)
        yield f"mv/{kind}", partial(mv, dtype)
    for groups in (4, 8, 64):
        for sizes in ((4096, 1024, 512), (8192, 2048, 768)):
            spelled = f"{groups}groups,{'x'.join(map(str, sizes))}"
            yield f"grouped mm/{spelled}", partial(grouped, groups, *sizes, back=False)
            yield f"grouped mm backward/{spelled}", partial(grouped, groups, *sizes, back=True)
    for sizes in ((1024, 2048, 4096), (8192, 4096, 4096)):
        spelled = "x".join(map(str, sizes))
        yield f"scaled mm/tensorwise,{spelled}", partial(scaled, *sizes, by_row=False)
        yield f"scaled mm/rowwise,{spelled}", partial(scaled, *sizes, by_row=True)
        yield f"int mm/{spelled}", partial(int8, *sizes)


class Convolution(NamedTuple):
    """Sizes of a convolution of square images."""

    batch: int
    ins: int
    outs: int
    size: int
    kernel: int
    stride: int
    padding: int
    groups: int


CONVOLUTIONS = (
    # ResNet-50's
    (32, 3, 64, 224, 7, 2, 3, 1), (32, 64, 64, 56, 1, 1, 0, 1), (32, 64, 64, 56, 3, 1, 1, 1),
    (32, 64, 256, 56, 1, 1, 0, 1), (32, 256, 64, 56, 1, 1, 0, 1), (32, 256, 128, 56, 1, 1, 0, 1),
    (32, 128, 128, 56, 3, 2, 1, 1), (32, 128, 512, 28, 1, 1, 0, 1),
    (32, 256, 512, 56, 1, 2, 0, 1), (32, 512, 256, 28, 1, 1, 0, 1),
    (32, 256, 256, 28, 3, 2, 1, 1), (32, 256, 1024, 14, 1, 1, 0, 1),
    (32, 512, 512, 14, 3, 2, 1, 1), (32, 512, 512, 7, 3, 1, 1, 1),
    (32, 512, 2048, 7, 1, 1, 0, 1), (32, 256, 512, 28, 1, 2, 0, 1),
    # a U-Net's and its autoencoder's
    (4, 4, 320, 64, 3, 1, 1, 1), (8, 320, 320, 64, 3, 1, 1, 1), (4, 320, 320, 64, 3, 2, 1, 1),
    (4, 640, 640, 32, 3, 1, 1, 1), (4, 1280, 1280, 16, 3, 1, 1, 1),
    (4, 960, 640, 32, 1, 1, 0, 1), (4, 320, 4, 64, 3, 1, 1, 1), (2, 128, 128, 256, 3, 1, 1, 1),
    # patches, and one filter a channel
    (64, 3, 768, 224, 16, 16, 0, 1), (16, 3, 1024, 224, 14, 14, 0, 1),
    (16, 128, 128, 56, 3, 1, 1, 128),
)  # fmt: skip
"""Of ``Convolution`` each, as vision models, diffusion and speech have them."""


def conv2d(sizes: Convolution, dtype: torch.dtype, *, last: bool, back: bool) -> Call:
    """A convolution, channels first or last."""
    layout = torch.channels_last if last else torch.contiguous_format
    shape = (sizes.outs, sizes.ins // sizes.groups, sizes.kernel, sizes.kernel)
    image = randn(sizes.batch, sizes.ins, sizes.size, sizes.size, dtype=dtype)
    image = image.to(memory_format=layout).requires_grad_()
    weight = randn(*shape, dtype=dtype).to(memory_format=layout).requires_grad_()

    def forward() -> torch.Tensor:
        return F.conv2d(image, weight, None, sizes.stride, sizes.padding, 1, sizes.groups)

    return backward_of(forward(), image, weight) if back else forward


def conv1d(dtype: torch.dtype, *, back: bool) -> Call:
    """A convolution of sound."""
    sound, weight = randn(8, 80, 3000, dtype=dtype, grad=True), randn(512, 80, 3, dtype=dtype)
    weight.requires_grad_()

    def forward() -> torch.Tensor:
        return F.conv1d(sound, weight, None, 1, 1)

    return backward_of(forward(), sound, weight) if back else forward


def convolutions() -> Iterator[Named]:
    """Convolutions, there and back."""
    for shape in CONVOLUTIONS:
        sizes = Convolution(*shape)
        for dtype in (FP32, BF16):
            for last in (False, True):
                name = (
                    f"{KINDS[dtype]},{'last' if last else 'first'},{sizes.batch}x{sizes.ins}->"
                    f"{sizes.outs}@{sizes.size},k{sizes.kernel},s{sizes.stride},g{sizes.groups}"
                )
                yield f"conv2d/{name}", partial(conv2d, sizes, dtype, last=last, back=False)
                yield f"conv2d backward/{name}", partial(conv2d, sizes, dtype, last=last, back=True)
    for dtype in (FP32, BF16):
        yield f"conv1d/{KINDS[dtype]}", partial(conv1d, dtype, back=False)
        yield f"conv1d backward/{KINDS[dtype]}", partial(conv1d, dtype, back=True)


# -- norms, losses, recurrent networks --


def normed(name: str, dtype: torch.dtype) -> Call:
    """The backward of a layer norm or an RMS norm."""
    x, weight = randn(8192, 4096, dtype=dtype, grad=True), randn(4096, dtype=dtype, grad=True)
    if name == "rms":
        return backward_of(F.rms_norm(x, (4096,), weight), x, weight)
    bias = randn(4096, dtype=dtype, grad=True)
    return backward_of(F.layer_norm(x, (4096,), weight, bias), x, weight, bias)


def group_norm(dtype: torch.dtype, *, back: bool) -> Call:
    """A group norm of images."""
    x = randn(8, 320, 64, 64, dtype=dtype, grad=True)
    weight, bias = (randn(320, dtype=dtype, grad=True) for _ in range(2))

    def forward() -> torch.Tensor:
        return F.group_norm(x, 32, weight, bias)

    return backward_of(forward(), x, weight, bias) if back else forward


def batch_norm(dtype: torch.dtype, *, last: bool, back: bool) -> Call:
    """A batch norm of images, channels first or last."""
    layout = torch.channels_last if last else torch.contiguous_format
    x = randn(32, 256, 56, 56, dtype=dtype).to(memory_format=layout).requires_grad_()
    weight, bias = (randn(256, grad=True) for _ in range(2))
    mean, var = torch.zeros(256, device=CUDA), torch.ones(256, device=CUDA)

    def forward() -> torch.Tensor:
        return F.batch_norm(x, mean, var, weight, bias, training=True)

    return backward_of(forward(), x, weight, bias) if back else forward


def cross_entropy(dtype: torch.dtype, *, back: bool) -> Call:
    """The loss over a vocabulary."""
    logits = randn(4096, 32000, dtype=dtype, grad=True)
    wanted = torch.randint(32000, (4096,), device=CUDA)

    def forward() -> torch.Tensor:
        return F.cross_entropy(logits, wanted)

    return backward_of(forward(), logits) if back else forward


def norms() -> Iterator[Named]:
    """Normalisations and losses, there and back."""
    for dtype in (FP32, BF16):
        kind = KINDS[dtype]
        yield f"layer norm backward/{kind}", partial(normed, "layer", dtype)
        yield f"rms norm backward/{kind}", partial(normed, "rms", dtype)
        for back in (False, True):
            then = " backward" if back else ""
            yield f"group norm{then}/{kind}", partial(group_norm, dtype, back=back)
            for last in (False, True):
                name = f"batch norm{then}/{kind},{'last' if last else 'first'}"
                yield name, partial(batch_norm, dtype, last=last, back=back)
            yield f"cross entropy{then}/{kind}", partial(cross_entropy, dtype, back=back)


def recurrents() -> Iterator[Named]:
    """cuDNN's recurrent networks: reserve space and workspaces."""
    shapes = (
        (16, 256, 512, 1024, 1, 0.0, False), (16, 256, 512, 1024, 2, 0.2, False),
        (16, 256, 512, 1024, 2, 0.0, True), (32, 128, 256, 256, 1, 0.0, False),
        (64, 35, 650, 650, 2, 0.5, False), (8, 512, 768, 512, 3, 0.0, False),
        (20, 70, 400, 1150, 1, 0.0, False), (64, 100, 128, 128, 1, 0.0, True),
    )  # fmt: skip
    for kind in ("LSTM", "GRU", "RNN"):
        for dtype in (FP32, BF16):
            for batch, tokens, wide, hidden, layers, dropout, both in shapes:
                sizes = (
                    f"{KINDS[dtype]},{batch}x{tokens}x{wide}->{hidden},{layers}layers,"
                    f"dropout{dropout},{'both' if both else 'one'}"
                )
                module = partial(
                    getattr(torch.nn, kind), wide, hidden, layers, dropout=dropout,
                    bidirectional=both, batch_first=True, device=CUDA, dtype=dtype,
                )  # fmt: skip
                for back in (False, True):
                    name = f"{kind.lower()}{' backward' if back else ''}/{sizes}"
                    yield name, partial(_recurrent, module, (batch, tokens, wide), dtype, back=back)


def _recurrent(
    network: Callable[[], Any], shape: tuple[int, ...], dtype: torch.dtype, *, back: bool
) -> Call:
    module, x = network(), randn(*shape, dtype=dtype, grad=True)
    return backward_of(module(x)[0], x, *module.parameters()) if back else partial(module, x)


# -- sorting, indexing, reducing --


def using(make: Callable[[], Any], use: Callable[..., Any]) -> Callable[[], Call]:
    """Return what makes inputs and a call that uses them."""

    def made() -> Call:
        found = make()
        values = found if isinstance(found, tuple) else (found,)
        return lambda: use(*values)

    return made


def wide() -> torch.Tensor:
    """Make rows of 4,096."""
    return randn(1024, 4096)


def flat() -> torch.Tensor:
    """Make four million values."""
    return randn(4_000_000)


def ints() -> torch.Tensor:
    """Make a million integers."""
    return torch.randint(1000, (1_000_000,), device=CUDA)


def square() -> torch.Tensor:
    """Make four square matrices."""
    return randn(4, 256, 256)


def embedded() -> Call:
    """The backward of an embedding."""
    table, rows = randn(32000, 1024, grad=True), torch.randint(32000, (8192,), device=CUDA)
    return backward_of(F.embedding(rows, table), table)


def bag() -> Call:
    """The backward of a bag of embeddings."""
    table, rows = randn(32000, 256, grad=True), torch.randint(32000, (512, 64), device=CUDA)
    return backward_of(F.embedding_bag(rows, table), table)


def heard() -> Call:
    """The loss of speech."""
    scores = randn(400, 16, 64).log_softmax(-1).requires_grad_()
    wanted = torch.randint(1, 64, (16, 50), device=CUDA)
    long, short = (torch.full((16,), n, device=CUDA) for n in (400, 50))
    return lambda: F.ctc_loss(scores, wanted, long, short)


USES: tuple[tuple[str, Callable[[], Any], Callable[..., Any]], ...] = (
    ("sort rows", wide, lambda x: x.sort(-1)),
    ("sort flat", flat, lambda x: x.sort()),
    ("sort 100k", lambda: randn(100_000), lambda x: x.sort()),
    ("sort 1M", lambda: randn(1_000_000), lambda x: x.sort()),
    ("sort 2M", lambda: randn(2_000_000), lambda x: x.sort()),
    ("sort 10M", lambda: randn(10_000_000), lambda x: x.sort()),
    ("sort 1M bf16", lambda: randn(1_000_000, dtype=BF16), lambda x: x.sort()),
    ("sort rows of 16k", lambda: randn(256, 16384), lambda x: x.sort(-1)),
    ("sort rows of 32k", lambda: randn(8, 32000), lambda x: x.sort(-1)),
    ("cumsum 1M", lambda: randn(1_000_000), lambda x: x.cumsum(0)),
    ("cumsum 10M", lambda: randn(10_000_000), lambda x: x.cumsum(0)),
    ("cumsum of ints", lambda: torch.ones(65536, dtype=torch.int64, device=CUDA),
     lambda x: x.cumsum(0)),
    ("argsort 16k ints", lambda: torch.randint(8, (16384,), device=CUDA),
     lambda x: x.argsort()),
    ("sort 64k ints", lambda: torch.randint(8, (65536,), device=CUDA), lambda x: x.sort()),
    ("randperm 10k", lambda: (), lambda: torch.randperm(10_000, device=CUDA)),
    ("topk 50 of 32k", lambda: randn(8, 32000), lambda x: x.topk(50)),
    ("topk 8 of 64 in bf16", lambda: randn(8192, 64, dtype=BF16), lambda x: x.topk(8)),
    ("histc of experts", lambda: torch.randint(128, (65536,), device=CUDA).float(),
     lambda x: x.histc(128, 0, 127)),
    ("bincount of experts", lambda: torch.randint(128, (65536,), device=CUDA),
     lambda x: x.bincount(minlength=128)),
    ("one hot", lambda: torch.randint(128, (8192,), device=CUDA), lambda x: F.one_hot(x, 128)),
    ("nonzero of 1M", lambda: torch.arange(1_000_000, device=CUDA) % 3,
     lambda x: x.nonzero()),
    ("masked select 1M", lambda: torch.arange(1_000_000, device=CUDA),
     lambda x: x[x % 2 == 0]),
    ("stable sort of ints", ints, lambda x: x.sort(stable=True)),
    ("argsort ints", ints, lambda x: x.argsort()),
    ("topk 8 of 128", lambda: randn(8192, 128), lambda x: x.topk(8)),
    ("topk 64", wide, lambda x: x.topk(64)),
    ("topk flat", flat, lambda x: x.topk(100)),
    ("kthvalue", wide, lambda x: x.kthvalue(7)),
    ("median", wide, lambda x: x.median()),
    ("median rows", wide, lambda x: x.median(-1)),
    ("mode", wide, lambda x: x.mode(-1)),
    ("quantile", lambda: randn(100_000), lambda x: x.quantile(0.9)),
    ("cumsum rows", wide, lambda x: x.cumsum(-1)),
    ("cumsum flat", flat, lambda x: x.cumsum(0)),
    ("cumsum of columns", wide, lambda x: x.cumsum(0)),
    ("cumprod flat", flat, lambda x: x.cumprod(0)),
    ("logcumsumexp", flat, lambda x: x.logcumsumexp(0)),
    ("cummax", wide, lambda x: x.cummax(-1)),
    ("unique", ints, lambda x: x.unique()),
    ("unique with counts", ints, lambda x: x.unique(return_counts=True)),
    ("nonzero", flat, lambda x: (x > 0).nonzero()),
    ("masked select", flat, lambda x: x[x > 0]),
    ("masked scatter", flat, lambda x: x.masked_scatter(x > 0, x)),
    ("bincount", ints, lambda x: x.bincount()),
    ("histc", flat, lambda x: x.histc(100)),
    ("multinomial", lambda: torch.rand(8, 32000, device=CUDA), lambda x: x.multinomial(1)),
    ("multinomial many", lambda: torch.rand(8, 32000, device=CUDA),
     lambda x: x.multinomial(64)),
    ("randperm", lambda: (), lambda: torch.randperm(1_000_000, device=CUDA)),
    ("aminmax", flat, lambda x: x.aminmax()),
    ("max", flat, lambda x: x.max()),
    ("argmax rows", wide, lambda x: x.argmax(-1)),
    ("sum flat", flat, lambda x: x.sum()),
    ("mean of columns", wide, lambda x: x.mean(0)),
    ("norm", flat, lambda x: x.norm()),
    ("std", flat, lambda x: x.std()),
    ("var of columns", wide, lambda x: x.var(0)),
    ("all", flat, lambda x: (x > 0).all()),
    ("isnan any", flat, lambda x: x.isnan().any()),
    ("softmax", wide, lambda x: x.softmax(-1)),
    ("index add", wide, lambda x: x.index_add(
        0, torch.randint(1024, (1024,), device=CUDA), x)),
    ("index put accumulate", wide, lambda x: x.index_put(
        (torch.randint(1024, (1024,), device=CUDA),), x, accumulate=True)),
    ("scatter add", wide, lambda x: x.scatter_add(
        1, torch.randint(4096, (1024, 4096), device=CUDA), x)),
    ("gather", wide, lambda x: x.gather(1, torch.randint(4096, (1024, 64), device=CUDA))),
    ("index select", wide, lambda x: x.index_select(
        0, torch.randint(1024, (500,), device=CUDA))),
    ("take along dim", wide, lambda x: x.take_along_dim(x.argsort(-1), -1)),
    ("searchsorted", flat, lambda x: torch.searchsorted(x.sort().values, x)),
    ("cat", wide, lambda x: torch.cat([x] * 8)),
    ("repeat interleave", wide, lambda x: x.repeat_interleave(2, 0)),
    ("roll", wide, lambda x: x.roll(3, 1)),
    ("cdist", lambda: randn(2048, 256), lambda x: torch.cdist(x, x)),
    ("einsum", square, lambda x: torch.einsum("bij,bjk->bik", x, x)),
    ("cholesky", square, lambda x: torch.linalg.cholesky(x @ x.mT + 300 * torch.eye(
        256, device=CUDA))),
    ("inverse", square, lambda x: torch.linalg.inv(x + 30 * torch.eye(256, device=CUDA))),
    ("svd", square, torch.linalg.svd),
    ("qr", square, torch.linalg.qr),
    ("eigh", square, lambda x: torch.linalg.eigh(x + x.mT)),
    ("solve", square, lambda x: torch.linalg.solve(x + 30 * torch.eye(256, device=CUDA), x)),
    ("fft", wide, torch.fft.fft),
    ("rfft", wide, torch.fft.rfft),
    ("interpolate bilinear", lambda: randn(8, 64, 64, 64), lambda x: F.interpolate(
        x, scale_factor=2, mode="bilinear")),
    ("grid sample", lambda: (randn(8, 64, 64, 64), torch.rand(8, 64, 64, 2, device=CUDA)),
     lambda x, grid: F.grid_sample(x, grid, align_corners=False)),
    ("max pool", lambda: randn(32, 64, 112, 112), lambda x: F.max_pool2d(x, 3, 2, 1)),
    ("average pool", lambda: randn(32, 64, 56, 56), lambda x: F.adaptive_avg_pool2d(x, 1)),
    ("unfold", lambda: randn(8, 64, 56, 56), lambda x: F.unfold(x, 3)),
    ("dropout", wide, lambda x: F.dropout(x, 0.1)),
    ("gelu", wide, F.gelu),
    ("foreach norm", lambda: [wide() for _ in range(20)], torch._foreach_norm),  # noqa: SLF001
    ("clip", lambda: _with_grads(20), lambda *x: torch.nn.utils.clip_grad_norm_(x, 1.0)),
    ("chunk cat", lambda: [randn(1024, 1024) for _ in range(20)],
     lambda x: torch._chunk_cat(x, 0, 2)),  # noqa: SLF001
)  # fmt: skip
"""A name, what makes the inputs, and what uses them."""


def others() -> Iterator[Named]:
    """What sorts, counts, gathers and adds up."""
    for name, make, use in USES:
        yield name, using(make, use)
    for rule in ("AdamW fused", "AdamW foreach", "SGD foreach", "SGD fused", "Adafactor"):
        yield f"step of {rule}", partial(_stepping, rule)
    yield "embedding backward", embedded
    yield "embedding bag backward", bag
    yield "ctc loss", heard


def _with_grads(num: int) -> tuple[torch.Tensor, ...]:
    made = tuple(randn(1024, 1024, grad=True) for _ in range(num))
    for one in made:
        one.grad = torch.ones_like(one)
    return made


def _stepping(rule: str) -> Call:
    parameters = list(_with_grads(20))
    name, _, how = rule.partition(" ")
    chosen = {how: True} if how else {}
    step: Call = getattr(torch.optim, name)(parameters, lr=1e-3, **chosen).step
    return step


# -- asking --


def all_calls() -> Iterator[Named]:
    """Every call, the unknown ones first."""
    yield from attentions()
    yield from products()
    yield from norms()
    yield from others()
    yield from recurrents()
    yield from convolutions()


def _is_real() -> bool:
    return "brimful.pretend" not in sys.modules


def _taken(call: Call) -> dict[str, Any]:
    """Make a call and read what it took."""
    follow = _is_real()
    if follow:
        torch.cuda.memory._record_memory_history(max_entries=10_000, context=None)  # noqa: SLF001
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    result = call()
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    found: dict[str, Any] = {
        "peak": after["requested_bytes.all.peak"] - before,
        "left": after["requested_bytes.all.current"] - before,
    }
    if follow:
        found["events"] = _events()
    del result
    return found


def _events() -> list[int] | None:
    """Read the allocator's events since it was last told to take note."""
    trace = torch.cuda.memory._snapshot()["device_traces"][0]  # noqa: SLF001
    torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001
    signs = {"alloc": 1, "free_requested": -1}
    events = [signs[one["action"]] * one["size"] for one in trace if one["action"] in signs]
    return events if len(events) <= MANY_EVENTS else None


def ask(name: str, make: Callable[[], Call]) -> dict[str, Any]:
    """Make a call twice; what fails says why."""
    row: dict[str, Any] = {"call": name}
    try:
        call = make()
        row["first"], row["second"] = _taken(call), _taken(call)
    except Exception as error:  # noqa: BLE001 - any reason is the row's
        row["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return row


def main() -> None:
    """Ask all, or those whose names begin so; a JSON object a line."""
    if sys.argv[1:2] == ["--compare"]:
        print("\n".join(compared(*map(Path, sys.argv[2:4]))))
        return
    wanted, out = tuple(sys.argv[1:]), os.environ.get("KERNELS_OUT")
    limit_s = float(os.environ.get("KERNELS_LIMIT_S", "3600"))
    start_s, lines = time.perf_counter(), []
    for name, make in all_calls():
        if wanted and not name.startswith(wanted):
            continue
        if time.perf_counter() - start_s > limit_s:
            print(f"stopped before {name}: {limit_s:.0f} s are over", file=sys.stderr)
            break
        lines.append(json.dumps(ask(name, make)))
    text = "\n".join(lines) + "\n"
    if out:
        Path(out).write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    print(f"{len(lines)} calls in {time.perf_counter() - start_s:.0f} s", file=sys.stderr)


def compared(measured: Path, simulated: Path) -> Iterator[str]:
    """Say of which calls the two do not agree, second calls first; yields lines."""
    there, here = (
        {row["call"]: row for row in map(json.loads, path.read_text().splitlines())}
        for path in (measured, simulated)
    )
    same = 0
    for name, row in there.items():
        said = here.get(name, {"failed": "not asked"})
        if "failed" in row or "failed" in said:
            yield f"{name}: {row.get('failed', 'measured')} | {said.get('failed', 'simulated')}"
            continue
        found, guessed = (one["second"]["peak"] for one in (row, said))
        if found == guessed:
            same += 1
            continue
        yield f"{name}: measured {found:,}, simulated {guessed:,}, {row['second']['events']}"
    yield f"{same} of {len(there)} calls agree to the byte"


if __name__ == "__main__":
    main()
