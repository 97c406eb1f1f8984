"""The dense decoder that torchtitan trained, as it was at several dates, in plain PyTorch.

Owns the model's shape and the order of its operations, for on them depends what autograd keeps.
Knows nothing of parallelism, of pretend devices or of published runs.

Shape suffixes: B batch, S tokens, D model width, H heads, K key-value heads, E head width.

Source: the public history of ``torchtitan/models`` (``llama``, ``llama3``, ``qwen3``).
"""

import msgspec
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

COMPOSED, FUSED = "composed", "fused"
COMPLEX, HALVES = "complex", "halves"
INIT_STD = 0.02


class Dims(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The size of a decoder.

    Attributes:
        width: Model width.
        num_layers: Blocks.
        num_heads: Query heads.
        num_kv_heads: Key-value heads.
        head_width: Width of one head.
        ffn_width: Width of the feed-forward's inside.
        vocab: Rows of the embedding and of the head.
        qk_norm: Whether queries and keys are normed head by head.
    """

    width: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    ffn_width: int
    vocab: int
    qk_norm: bool = False


MODELS = {
    name: Dims(
        width=width,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_width=128,
        ffn_width=ffn_width,
        vocab=vocab,
        qk_norm=name.startswith("qwen3"),
    )
    for name, width, num_layers, num_heads, num_kv_heads, ffn_width, vocab in (
        ("llama2-7b", 4096, 32, 32, 32, 11008, 32000),
        ("llama2-13b", 5120, 40, 40, 40, 13824, 32000),
        ("llama2-70b", 8192, 80, 64, 8, 28672, 32000),
        ("llama3-8b", 4096, 32, 32, 8, 14336, 128256),
        ("llama3-70b", 8192, 80, 64, 8, 28672, 128256),
        ("llama3-405b", 16384, 126, 128, 8, 53248, 128256),
        ("qwen3-8b", 4096, 36, 32, 8, 12288, 151936),
        ("qwen3-14b", 5120, 40, 40, 8, 17408, 151936),
        ("qwen3-32b", 5120, 64, 64, 8, 25600, 151936),
    )
}
"""Published sizes of the models, from their own configuration files."""


class Program(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the model was written at the time.

    Attributes:
        norm: ``composed`` of PyTorch operations in fp32, or one ``fused`` operation.
        rotary: ``complex`` numbers in fp32, or ``halves`` of cosines and sines in the input's type.
        folded: Whether batch and tokens are one dimension between embedding and head.
        rotary_tokens: Rows of the rotary table.
        float_logits: Whether the model itself widens its logits to fp32.
    """

    norm: str
    rotary: str
    folded: bool
    rotary_tokens: int
    float_logits: bool


class ComposedNorm(nn.Module):
    """RMS norm written out: everything between the casts is in fp32."""

    def __init__(self, width: int) -> None:
        """Make the weight."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """Norm the last dimension."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return normed.type_as(x) * self.weight


class FusedNorm(nn.Module):
    """RMS norm as one operation, as CUDA has it from PyTorch 2.9 on."""

    def __init__(self, width: int) -> None:
        """Make the weight."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """Norm the last dimension."""
        out: Tensor = _FusedNorm.apply(x, self.weight)
        return out


class _FusedNorm(torch.autograd.Function):
    """Keeps the input, the weight and one fp32 number a row.

    Source: ``_fused_rms_norm`` and its backward in ``native/cuda/layer_norm_kernel.cu``.
    """

    @staticmethod
    def forward(ctx, x, weight):  # noqa: ANN001, ANN205
        ctx.save_for_backward(x, weight, x.new_empty((*x.shape[:-1], 1), dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, _grad):  # noqa: ANN001, ANN205
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def draw_truncated_(weight: Tensor, std: float) -> None:
    """Fill with a truncated normal, in place, as ``nn.init.trunc_normal_`` did before 2.12.

    Args:
        weight: What to fill.
        std: Standard deviation; three of them are allowed.
    """
    with torch.no_grad():
        weight.uniform_(-0.99, 0.99).erfinv_().mul_(std * 2.0**0.5).add_(0.0)
        weight.clamp_(min=-3 * std, max=3 * std)


def norm(program: Program, width: int) -> nn.Module:
    """Make the norm of the program's time."""
    return FusedNorm(width) if program.norm == FUSED else ComposedNorm(width)


def rotary_table(program: Program, head_width: int) -> Tensor:
    """Make the table of rotations, on the current default device.

    Returns:
        Complex [tokens, E / 2], or cosines beside sines [tokens, 2 E].
    """
    inverse = 1.0 / (10000.0 ** (torch.arange(0, head_width, 2).float() / head_width))
    angles = torch.outer(torch.arange(program.rotary_tokens, device=inverse.device), inverse)
    if program.rotary == COMPLEX:
        return torch.polar(torch.ones_like(angles), angles)
    both = torch.cat([angles, angles], dim=-1)
    return torch.cat([both.cos(), both.sin()], dim=-1)


def rotate(program: Program, x_bshe: Tensor, table: Tensor) -> Tensor:
    """Rotate heads by their position."""
    if program.rotary == COMPLEX:
        pairs = torch.view_as_complex(x_bshe.float().reshape(*x_bshe.shape[:-1], -1, 2))
        turned = pairs * table.view(1, table.shape[0], 1, table.shape[1])
        return torch.view_as_real(turned).flatten(3).type_as(x_bshe)
    width = x_bshe.shape[-1]
    table = table.view(1, table.shape[0], 1, table.shape[1])
    cos, sin = (half.to(x_bshe.dtype) for half in (table[..., :width], table[..., width:]))
    first, second = x_bshe[..., : width // 2], x_bshe[..., width // 2 :]
    return x_bshe * cos + torch.cat((-second, first), dim=-1) * sin


def repeat_heads(x_bske: Tensor, times: int) -> Tensor:
    """Write every key-value head ``times`` times."""
    if times == 1:
        return x_bske
    b, s, k, e = x_bske.shape
    return x_bske.unsqueeze(3).expand(b, s, k, times, e).reshape(b, s, k * times, e)


class Core(nn.Module):
    """The attention itself, a module of its own so that a plan can name it."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend causally with flash attention, first choice then; [B, H, S, E] each."""
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(self, dims: Dims, program: Program) -> None:
        """Make the four projections, and two norms if the model has them."""
        super().__init__()
        self.dims, self.program = dims, program
        query, keys = dims.num_heads * dims.head_width, dims.num_kv_heads * dims.head_width
        self.wq = nn.Linear(dims.width, query, bias=False)
        self.wk = nn.Linear(dims.width, keys, bias=False)
        self.wv = nn.Linear(dims.width, keys, bias=False)
        self.wo = nn.Linear(query, dims.width, bias=False)
        if dims.qk_norm:
            self.q_norm, self.k_norm = (norm(program, dims.head_width) for _ in range(2))
        self.core = Core()

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """Attend; x is [B, S, D] or, folded, [B S, D]."""
        shape = (-1, table.shape[0], *(-1,)) if self.program.folded else x.shape[:2]
        q, k, v = self._heads(x, shape)
        if self.dims.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(self.program, q, table), rotate(self.program, k, table)
        groups = self.dims.num_heads // self.dims.num_kv_heads
        keys, values = repeat_heads(k, groups), repeat_heads(v, groups)
        out = self.core(q.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2))
        out = out.transpose(1, 2).contiguous()
        return self.wo(out.view(*x.shape[:-1], -1))

    def _heads(self, x: Tensor, shape: tuple[int, ...]) -> list[Tensor]:
        projected = self.wq(x), self.wk(x), self.wv(x)
        batch = x.shape[0] // shape[1] if self.program.folded else x.shape[0]
        return [y.view(batch, shape[1], -1, self.dims.head_width) for y in projected]


class FeedForward(nn.Module):
    """The gated feed-forward."""

    def __init__(self, dims: Dims) -> None:
        """Make the three projections."""
        super().__init__()
        self.w1 = nn.Linear(dims.width, dims.ffn_width, bias=False)
        self.w2 = nn.Linear(dims.ffn_width, dims.width, bias=False)
        self.w3 = nn.Linear(dims.width, dims.ffn_width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map token by token."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """One layer."""

    def __init__(self, dims: Dims, program: Program) -> None:
        """Make attention, feed-forward and their norms."""
        super().__init__()
        self.attention = Attention(dims, program)
        self.feed_forward = FeedForward(dims)
        self.attention_norm = norm(program, dims.width)
        self.ffn_norm = norm(program, dims.width)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """Add attention, then feed-forward, to the residual stream."""
        h = x + self.attention(self.attention_norm(x), table)
        return h + self.feed_forward(self.ffn_norm(h))


class Decoder(nn.Module):
    """The whole model."""

    def __init__(self, dims: Dims, program: Program) -> None:
        """Make embedding, blocks, last norm and head."""
        super().__init__()
        self.dims, self.program = dims, program
        self.tok_embeddings = nn.Embedding(dims.vocab, dims.width)
        self.register_buffer("table", rotary_table(program, dims.head_width))
        self.layers = nn.ModuleDict({str(i): Block(dims, program) for i in range(dims.num_layers)})
        self.norm = norm(program, dims.width)
        self.output = nn.Linear(dims.width, dims.vocab, bias=False)

    def init_weights(self) -> None:
        """Draw every weight in place, as a run from scratch does."""
        with torch.device(self.table.device):
            self.table = rotary_table(self.program, self.dims.head_width)
        nn.init.normal_(self.tok_embeddings.weight)
        for module in self.layers.modules():
            if isinstance(module, nn.Linear):
                draw_truncated_(module.weight, INIT_STD)
            elif isinstance(module, (ComposedNorm, FusedNorm)):
                nn.init.ones_(module.weight)
        nn.init.ones_(self.norm.weight)
        draw_truncated_(self.output.weight, self.dims.width**-0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [B, S, vocabulary]."""
        h = self.tok_embeddings(tokens)
        table = self.table[: tokens.shape[1]]
        if self.program.folded:
            h = h.view(-1, self.dims.width)
        for block in self.layers.values():
            h = block(h, table)
        h = self.norm(h)
        if self.program.folded:
            h = h.view(tokens.shape[0], -1, self.dims.width)
        logits = self.output(h)
        return logits.float() if self.program.float_logits else logits
