"""A step of Llama or Qwen3 as torchtitan has them: FSDP2, checkpoints, blocks compiled one by one.

``brimful pretend --world-size 8 -- titan.py --compile``: written from ``models/llama`` and
``components/loss.py`` at 069bae286 and ``experiments/qwen3`` at d66b72a6a, and run without
torchtitan.
"""

import argparse
import functools
from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

_aten: Any = torch.ops.aten
SAVED = {
    _aten.mm.default,
    _aten._scaled_dot_product_efficient_attention.default,  # noqa: SLF001 - its name
    _aten._scaled_dot_product_flash_attention.default,  # noqa: SLF001
    torch.ops._c10d_functional.reduce_scatter_tensor.default,  # noqa: SLF001
}
"""What selective checkpoints of operations keep; of products every second one."""


class Norm(nn.Module):
    """``RMSNorm`` written out, in fp32."""

    def __init__(self, width: int) -> None:
        """Make the weight."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Norm the last dimension."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return normed.type_as(x) * self.weight


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate pairs of x [batch, tokens, heads, head_dim] by complex angles [tokens, pairs]."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    out = torch.view_as_real(pairs * angles[: x.shape[1]].view(1, x.shape[1], 1, -1))
    return out.flatten(3).type_as(x)


def turn(x: Tensor, cache: Tensor) -> Tensor:
    """Rotate halves of x by cosines and sines [tokens, 2 head_dim], as Qwen3 does."""
    cos, sin = cache[: x.shape[1]].view(1, x.shape[1], 1, -1).to(x.dtype).chunk(2, dim=-1)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Attention whose keys and values are repeated to the number of heads."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Make the products."""
        super().__init__()
        width, size = args.width, args.head_dim
        self.repeats, self.size = args.heads // args.kv_heads, size
        self.rotates = turn if args.model == "qwen3" else rotate
        self.wq = nn.Linear(width, args.heads * size, bias=False)
        self.wk = nn.Linear(width, args.kv_heads * size, bias=False)
        self.wv = nn.Linear(width, args.kv_heads * size, bias=False)
        self.wo = nn.Linear(args.heads * size, width, bias=False)
        is_normed = args.model == "qwen3"
        self.q_norm = nn.RMSNorm(size) if is_normed else nn.Identity()
        self.k_norm = nn.RMSNorm(size) if is_normed else nn.Identity()

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """Attend to what comes before."""
        batch, tokens, _ = x.shape
        q, k, v = (w(x).view(batch, tokens, -1, self.size) for w in (self.wq, self.wk, self.wv))
        q, k = self.rotates(self.q_norm(q), angles), self.rotates(self.k_norm(k), angles)
        k, v = (_repeated(t, self.repeats).transpose(1, 2) for t in (k, v))
        out = functional.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).contiguous().view(batch, tokens, -1))


def _repeated(x: Tensor, times: int) -> Tensor:
    batch, tokens, heads, size = x.shape
    wide = x[:, :, :, None, :].expand(batch, tokens, heads, times, size)
    return wide.reshape(batch, tokens, heads * times, size)


class Feed(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int) -> None:
        """Make the products."""
        super().__init__()
        self.w1 = nn.Linear(width, inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)
        self.w3 = nn.Linear(width, inner, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Gate and project."""
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Attention and SwiGLU behind norms."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Make its parts."""
        super().__init__()
        norm = nn.RMSNorm if args.model == "qwen3" else Norm
        self.attention = Attention(args)
        self.feed_forward = Feed(args.width, args.inner)
        self.attention_norm, self.ffn_norm = norm(args.width), norm(args.width)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """Add both to x."""
        h = x + self.attention(self.attention_norm(x), angles)
        return h + self.feed_forward(self.ffn_norm(h))


class Decoder(nn.Module):
    """Embedding, blocks, norm and output layer."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Make its parts."""
        super().__init__()
        is_real = args.model == "qwen3"
        shape = (args.tokens, args.head_dim * 2 if is_real else args.head_dim // 2)
        self.tok_embeddings = nn.Embedding(args.vocabulary, args.width)
        angles = torch.zeros(shape, dtype=torch.float32 if is_real else torch.complex64)
        self.register_buffer("angles", angles, persistent=True)
        self.layers = nn.ModuleDict({str(i): Block(args) for i in range(args.layers)})
        self.norm = nn.RMSNorm(args.width) if is_real else Norm(args.width)
        self.output = nn.Linear(args.width, args.vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits."""
        h = self.tok_embeddings(ids)
        for layer in self.layers.values():
            h = layer(h, self.angles)
        return self.output(self.norm(h))


def every_second_product() -> Any:
    """Make the contexts of one selective checkpoint."""
    counts: dict[str, int] = defaultdict(int)

    def policy(context: Any, func: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        mode = "recompute" if context.is_recompute else "forward"
        if func is _aten.mm.default:
            counts[mode] += 1
        is_saved = func in SAVED and not (func is _aten.mm.default and counts[mode] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def parallelize(model: Decoder, args: argparse.Namespace) -> None:
    """Checkpoint, compile and shard, in torchtitan's order."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    how = {"context_fn": every_second_product, "preserve_rng_state": False}
    for name, block in model.layers.items():
        wrapped: Any = block
        if args.checkpoint == "selective":
            wrapped = checkpoint_wrapper(block, **how)
        elif args.checkpoint == "full":
            wrapped = checkpoint_wrapper(block, preserve_rng_state=False)
        model.layers[name] = torch.compile(wrapped, fullgraph=True) if args.compile else wrapped
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shard = functools.partial(fully_shard, mp_policy=policy)
    has_units = args.model == "qwen3"  # of what lies outside of blocks, since pull request 1094
    if has_units:
        shard(model.tok_embeddings, reshard_after_forward=True)
    for i, block in enumerate(model.layers.values()):
        shard(block, reshard_after_forward=has_units or i < len(model.layers) - 1)
    if has_units:
        shard([model.norm, model.output], reshard_after_forward=False)
        shard(model)
    else:
        shard(model, reshard_after_forward=True)


def loss_of(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the mean loss."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), ids.flatten(0, 1))


def main() -> None:
    """Train as the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = functools.partial(parser.add_argument, type=int)
    add("--layers", default=32)
    add("--width", default=4096)
    add("--inner", default=14336)
    add("--heads", default=32)
    add("--kv-heads", default=8)
    add("--head-dim", default=128)
    add("--vocabulary", default=128256)
    add("--tokens", default=8192)
    add("--batch", default=1)
    add("--steps", default=2)
    parser.add_argument("--model", choices=("llama", "qwen3"), default="llama")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--checkpoint", choices=("none", "selective", "full"), default="selective")
    args = parser.parse_args()
    # PyTorch of that time took FlashAttention, and 2.11 and later would take cuDNN's.
    torch.backends.cuda.enable_cudnn_sdp(enabled=False)
    dist.init_process_group("nccl")
    with torch.device("meta"):
        model = Decoder(args)
    parallelize(model, args)
    model.to_empty(device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    is_judged_compiled = args.compile and args.model == "qwen3"
    judge = torch.compile(loss_of) if is_judged_compiled else loss_of
    for _ in range(args.steps):
        ids = torch.randint(args.vocabulary, (args.batch, args.tokens), device="cuda")
        loss = judge(model(ids), ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
    print(f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB")


if __name__ == "__main__":
    main()
