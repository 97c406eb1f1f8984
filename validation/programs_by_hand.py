"""Peaks of other people's programs by arithmetic, tensor by tensor, written before they were run.

What stands here was derived from the sources of transformers 5.23.0, Liger 0.8.5, TRL 1.16.0 and
PEFT 0.21.2, and committed before the pretend GPU had run any of these programs in these sizes. Each
function lists what is in memory at the instant that is the highest of a step after the first, and
says why no other is. A line that turned out wrong is not mended silently: ``programs.json`` keeps
what was derived first.

Letters: N tokens of a batch, T of a row, H width, I of the MLP, Q and K of all heads of queries and
of keys, V vocabulary, L layers. bf16 has 2 bytes, fp32 has 4.
"""

from collections.abc import Callable
from typing import NamedTuple

WORKSPACES = 2 * 32 * 2**20
"""cuBLAS on Hopper: 32 MiB for the thread that runs forward and for autograd's."""
_STEP_BYTES = 4
"""AdamW's fused kernel keeps its count of steps on the GPU, an fp32 scalar per parameter."""


class Item(NamedTuple):
    """Tensors that are in memory at the peak."""

    name: str
    num_bytes: int


class LossSizes(NamedTuple):
    """What a program of one loss is told."""

    tokens: int
    width: int
    vocab: int


class FlashSizes(NamedTuple):
    """What a program of one attention is told: rows that are packed have one length of all."""

    batch: int
    length: int
    heads: int
    kv_heads: int
    head_dim: int


class TunedSizes(NamedTuple):
    """What a program of one kernel is told."""

    elements: int


class Sizes(NamedTuple):
    """What a program is told."""

    batch: int
    length: int
    width: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def tokens(self) -> int:
        """N."""
        return self.batch * self.length

    @property
    def query(self) -> int:
        """Q."""
        return self.heads * self.head_dim

    @property
    def key(self) -> int:
        """K."""
        return self.kv_heads * self.head_dim


LLAMA = Sizes(2, 1536, 768, 1536, 3, 12, 4, 64, 50_000)
QWEN = Sizes(2, 1536, 640, 1280, 3, 10, 2, 64, 60_000)
GEMMA = Sizes(3, 1024, 768, 1536, 2, 6, 2, 128, 64_000)
TRL = Sizes(2, 2048, 640, 1792, 3, 10, 2, 64, 64_000)
LORA = Sizes(2, 1024, 768, 2304, 3, 12, 4, 64, 32_000)
LORA_LONGER = Sizes(1, 3072, 640, 1536, 4, 10, 2, 64, 48_000)
FLASH = {
    "flash_grouped": FlashSizes(2, 1000, 16, 4, 96),
    "flash_packed": FlashSizes(3, 3000, 8, 8, 80),
}
TUNED = TunedSizes(10_000_000)
LORA_RANK = 16
LOSSES = {
    "cross_entropy": LossSizes(2048, 1024, 40_000),
    "fused_fp32": LossSizes(2048, 1024, 40_000),
    "kl_div": LossSizes(1024, 1024, 32_000),
    "jsd": LossSizes(1024, 1024, 32_000),
    "fused_jsd": LossSizes(2048, 512, 32_000),
}


AnySizes = Sizes | LossSizes | FlashSizes | TunedSizes


def _cdiv(x: int, y: int) -> int:
    return -(-x // y)


def _layer_parameters(s: Sizes, *, head_norms: bool) -> int:
    attention = s.width * (2 * s.query + 2 * s.key) + 2 * s.head_dim * head_norms
    return attention + 3 * s.width * s.mlp + 2 * s.width


def _states(s: Sizes, *, head_norms: bool = False, tied: bool = False) -> list[Item]:
    """bf16 parameters and AdamW's two moments of the same type."""
    heads = 1 if tied else 2
    own = s.layers * _layer_parameters(s, head_norms=head_norms)
    number = own + heads * s.vocab * s.width + s.width
    tensors = s.layers * (11 if head_norms else 9) + heads + 1
    return [
        Item("parameters", 2 * number),
        Item("AdamW's moments", 2 * 2 * number),
        Item("AdamW's steps", _STEP_BYTES * tensors),
        Item("buffers of rotary frequencies", 2 * 4 * (s.head_dim // 2)),
        Item("workspaces of cuBLAS", WORKSPACES),
    ]


def _liger_block(s: Sizes, *, head_norms: bool) -> list[Item]:
    """What a block with Liger's kernels keeps for backward.

    RMSNorm saves its input and 1/rms of each row; rope writes over q and k; SiLU or GELU times up
    saves both factors; matrices save their inputs, of which attention's output is one already.
    """
    n = s.tokens
    normed = [
        Item("q and k before their norms", 2 * n * (s.query + s.key)),
        Item("1/rms of each head of q and k", 4 * n * (s.heads + s.kv_heads)),
    ]
    return [
        Item("inputs of both norms", 2 * 2 * n * s.width),
        Item("outputs of both norms", 2 * 2 * n * s.width),
        Item("1/rms of both norms", 2 * 4 * n),
        *(normed if head_norms else []),
        Item("q, k, v", 2 * n * (s.query + 2 * s.key)),
        Item("attention's output", 2 * n * s.query),
        Item("attention's logsumexp", 4 * n * s.heads),
        Item("gate, up and their product", 3 * 2 * n * s.mlp),
    ]


def _chunk_rows(s: Sizes | LossSizes) -> int:
    """Tokens of a chunk of Liger's fused losses: a power of two."""
    rows = _cdiv(s.tokens, _cdiv(s.vocab, s.width))
    return min(1 << (rows - 1).bit_length(), s.tokens)


def _fused_loss(s: Sizes, *, weight_grad: bool) -> list[Item]:
    """What the loss holds while it computes its gradients, in its forward."""
    n = s.tokens
    return [
        Item("the last norm's input", 2 * n * s.width),
        Item("the last norm's output", 2 * n * s.width),
        Item("1/rms of the last norm", 4 * n),
        Item("gradient of the last norm's output", 2 * n * s.width),
        *([Item("gradient of the head", 2 * s.vocab * s.width)] if weight_grad else []),
        Item("a chunk of logits", 2 * _chunk_rows(s) * s.vocab),
        Item("losses of tokens", 4 * n),
        Item("which tokens count", n),
        Item("labels, padded and shifted", 8 * s.batch * (s.length + 1) + 8 * n),
    ]


def _times(count: int, items: list[Item]) -> list[Item]:
    return [Item(f"{count} x {item.name}", count * item.num_bytes) for item in items]


def _shared(s: Sizes) -> list[Item]:
    return [
        Item("token numbers, which are the labels", 8 * s.tokens),
        Item("cos and sin", 2 * 2 * s.length * s.head_dim),
    ]


def liger_llama() -> list[Item]:
    """Llama with all of Liger, bf16, fused AdamW: the peak is in the loss, in forward.

    Against it in the last block's backward: without the last norm's input and output and the logits
    (15.8 MB), with the gradient of the product (9.4) and of one matrix (2.4).
    """
    block = _times(LLAMA.layers, _liger_block(LLAMA, head_norms=False))
    loss = _fused_loss(LLAMA, weight_grad=True)
    return [*_states(LLAMA), *_shared(LLAMA), *block, *loss]


def liger_qwen3() -> list[Item]:
    """Qwen3 with all of Liger, whose norms of q and k make new tensors; else as ``liger_llama``."""
    block = _times(QWEN.layers, _liger_block(QWEN, head_norms=True))
    loss = _fused_loss(QWEN, weight_grad=True)
    return [*_states(QWEN, head_norms=True), *_shared(QWEN), *block, *loss]


def liger_gemma() -> list[Item]:
    """Gemma with all of Liger: embeddings are tied and scaled, of which nothing more is kept.

    At the end of backward there are two gradients of the tied matrix (197 MB) and no activations,
    which are 122 MB with the loss: less than forward's, where the one gradient and those are.
    """
    block = _times(GEMMA.layers, _liger_block(GEMMA, head_norms=False))
    loss = _fused_loss(GEMMA, weight_grad=True)
    scale = Item("the embedding's scale", 4)
    return [*_states(GEMMA, tied=True), scale, *_shared(GEMMA), *block, *loss]


def _plain_norm(rows: int, width: int) -> int:
    """RMSNorm of transformers in bf16: its fp32 input, 1/rms, and the product before the weight."""
    return rows * (4 * width + 4 + 2 * width)


def trl_sft() -> list[Item]:
    """TRL's SFTTrainer, plain Qwen3 in bf16, its own fused head with Triton.

    The peak is where the head's backward returns: fp32 gradients and their bf16 copies, beside all
    that the blocks keep. The head's tile is [tokens that have a label, 32,768] of bf16.
    """
    s, n = TRL, TRL.tokens
    scored = s.batch * (s.length - 1)
    block = [
        Item("both norms", 2 * _plain_norm(n, s.width)),
        Item("outputs of both norms", 2 * 2 * n * s.width),
        Item("norms of q and k", _plain_norm(n * (s.heads + s.kv_heads), s.head_dim)),
        Item("q, k, v", 2 * n * (s.query + 2 * s.key)),
        Item("attention's output", 2 * n * s.query),
        Item("attention's logsumexp", 4 * n * s.heads),
        Item("gate, its SiLU, up and the product", 4 * 2 * n * s.mlp),
    ]
    head = [
        Item("the last norm", _plain_norm(n, s.width)),
        Item("hidden states that have a label", 2 * scored * s.width),
        Item("their labels, logsumexps and entropies", (8 + 4 + 4) * scored),
        Item("gradient of hidden states, fp32 and bf16", (4 + 2) * scored * s.width),
        Item("gradient of the head, fp32 and bf16", (4 + 2) * s.vocab * s.width),
        Item("the head's tile", 2 * min(scored, 4096) * 32_768),
    ]
    batch = Item("token numbers, labels and the mask", 3 * 8 * n)
    shared = Item("cos and sin", 2 * 2 * s.length * s.head_dim)
    states = _states(s, head_norms=True)
    return [*states, batch, shared, *_times(s.layers, block), *head]


def _lora_kept(s: Sizes) -> list[Item]:
    """What LoRA in fp32 on all matrices of a bf16 Llama with all of Liger has, and keeps.

    Each adapted matrix keeps an fp32 copy of its input and A's output; the first norm's input needs
    no gradient and is not kept.
    """
    n, r = s.tokens, LORA_RANK
    base = s.layers * _layer_parameters(s, head_norms=False) + 2 * s.vocab * s.width + s.width
    inputs = (s.width, s.width, s.width, s.query, s.width, s.width, s.mlp)
    outputs = (s.query, s.key, s.key, s.width, s.mlp, s.mlp, s.width)
    adapters = s.layers * r * (sum(inputs) + sum(outputs))
    tensors = s.layers * 2 * len(inputs)
    block = [
        Item("the second norm's input and its 1/rms", 2 * n * s.width + 4 * n),
        Item("fp32 inputs of adapted matrices", 4 * n * sum(inputs)),
        Item("outputs of A", 4 * n * r * len(inputs)),
        Item("q, k, v", 2 * n * (s.query + 2 * s.key)),
        Item("attention's output", 2 * n * s.query),
        Item("attention's logsumexp", 4 * n * s.heads),
        Item("gate and up", 2 * 2 * n * s.mlp),
    ]
    first = Item("the first norm's input and its 1/rms", 2 * n * s.width + 4 * n)
    return [
        Item("base", 2 * base),
        Item("adapters", 4 * adapters),
        Item("AdamW's moments", 2 * 4 * adapters),
        Item("AdamW's steps", _STEP_BYTES * tensors),
        Item("buffers of rotary frequencies", 2 * 4 * (s.head_dim // 2)),
        Item("workspaces of cuBLAS", WORKSPACES),
        *_shared(s),
        *_times(s.layers, block),
        *_times(s.layers - 1, [first]),
    ]


def liger_lora() -> list[Item]:
    """PEFT's LoRA with Liger, the peak in backward, where A of the last ``down_proj`` is.

    This is not the highest instant, as the simulation showed: see ``liger_lora_longer``.
    """
    s, n = LORA, LORA.tokens
    return [
        *_lora_kept(s),
        Item("gradient of the block's output", 2 * n * s.width),
        Item("the same for the frozen matrix", 2 * n * s.width),
        Item("gradient of A's fp32 input", 4 * n * s.mlp),
        Item("gradients of down_proj's A and B", 4 * LORA_RANK * (s.mlp + s.width)),
    ]


def liger_lora_longer() -> list[Item]:
    """The same in other sizes, the peak in forward, where the last ``down_proj`` scales B's output.

    Derived anew after ``liger_lora`` had turned out 1.2 % too low, for sizes that had not been run.
    """
    s, n = LORA_LONGER, LORA_LONGER.tokens
    return [
        *_lora_kept(s),
        Item("positions", 8 * s.length),
        Item("embeddings, which the model's forward still names", 2 * n * s.width),
        Item("the second norm's output, which the MLP's forward still names", 2 * n * s.width),
        Item("the bf16 product of gate and up, which down_proj was given", 2 * n * s.mlp),
        Item("down_proj's own result", 2 * n * s.width),
        Item("B's output before and after it is scaled", 2 * 4 * n * s.width),
    ]


def _hidden_and_head(s: LossSizes, *, pairs: int = 1) -> list[Item]:
    return [
        Item("hidden states", pairs * 2 * s.tokens * s.width),
        Item("heads", pairs * 2 * s.vocab * s.width),
        Item("labels", 8 * s.tokens),
    ]


def cross_entropy() -> list[Item]:
    """Liger's writes its gradient over the logits; the peak is the head's backward."""
    s = LOSSES["cross_entropy"]
    return [
        *_hidden_and_head(s),
        Item("logits, which are their gradient", 2 * s.tokens * s.vocab),
        Item("gradient of hidden states", 2 * s.tokens * s.width),
        Item("gradient of the head", 2 * s.vocab * s.width),
        Item("workspaces of cuBLAS", WORKSPACES),
    ]


def fused_fp32() -> list[Item]:
    """The fused loss that adds the head's gradient up in fp32: the peak is where it is cast.

    The chunk of logits is freed by then; backward has no product, and no workspace of its own.
    """
    s = LOSSES["fused_fp32"]
    return [
        *_hidden_and_head(s),
        Item("gradient of hidden states", 2 * s.tokens * s.width),
        Item("gradient of the head, fp32 and bf16", (4 + 2) * s.vocab * s.width),
        Item("losses of tokens and which count", (4 + 1) * s.tokens),
        Item("workspace of cuBLAS", WORKSPACES // 2),
    ]


def kl_div() -> list[Item]:
    """The peak is in backward: a gradient, and the same divided by the number of rows."""
    s = LOSSES["kl_div"]
    one = 4 * s.tokens * s.vocab
    return [
        Item("labels", 8 * s.tokens),
        Item("student and teacher", 2 * one),
        Item("gradient before and after it is divided", 2 * one),
    ]


def jsd() -> list[Item]:
    """The peak is in forward: a copy that becomes the gradient, and the loss of every entry."""
    s = LOSSES["jsd"]
    one = 4 * s.tokens * s.vocab
    return [
        Item("labels", 8 * s.tokens),
        Item("student and teacher", 2 * one),
        Item("gradient", one),
        Item("losses of entries", one),
    ]


def fused_jsd() -> list[Item]:
    """The peak is the softmax of any chunk but the first, beside what the one before still names.

    These are its probabilities (two, by the tuple of arguments), its softmax and its losses.
    """
    s = LOSSES["fused_jsd"]
    chunk = 4 * _chunk_rows(s) * s.vocab
    return [
        *_hidden_and_head(s, pairs=2),
        Item("gradient of hidden states", 2 * s.tokens * s.width),
        Item("gradient of the head", 2 * s.vocab * s.width),
        Item("logits of student and teacher", 2 * chunk),
        Item("their log-probabilities, of this chunk and the one before", 4 * chunk),
        Item("softmax of this chunk and the one before", 2 * chunk),
        Item("losses of the chunk before", chunk),
        Item("workspace of cuBLAS", WORKSPACES // 2),
    ]


def _flash(s: FlashSizes, tokens: int) -> list[Item]:
    """What both forms of flash-attn 2.8.3 keep and return: bf16, and an fp32 logsumexp."""
    one, key = 2 * tokens * s.heads * s.head_dim, 2 * tokens * s.kv_heads * s.head_dim
    return [
        Item("q, k, v and their gradients", 2 * (one + 2 * key)),
        Item("the output and its gradient", 2 * one),
        Item("logsumexp", 4 * tokens * s.heads),
        Item("state of random numbers", 2 * 8),
    ]


def flash_grouped() -> list[Item]:
    """flash_attn_func with four queries to a key: the peak is its backward.

    Queries are padded to 1,024, heads stay at 96; dk and dv are first made for every query head.
    """
    s = FLASH["flash_grouped"]
    rows = s.batch * 1024 * s.heads
    return [
        *_flash(s, s.batch * s.length),
        Item("fp32 row sums", 4 * rows),
        Item("fp32 dq", 4 * rows * 96),
        Item("dk and dv of every query head", 2 * 2 * s.batch * s.length * s.heads * s.head_dim),
    ]


def flash_packed() -> list[Item]:
    """flash_attn_varlen_func: 128 rows more for each sequence, heads of 80 rounded to 96."""
    s = FLASH["flash_packed"]
    rows = (s.length + 128 * s.batch) * s.heads
    return [
        *_flash(s, s.length),
        Item("where sequences begin", 4 * (s.batch + 1)),
        Item("fp32 row sums", 4 * rows),
        Item("fp32 dq", 4 * rows * 96),
    ]


def autotuned() -> list[Item]:
    """A kernel that triton tunes and restores its result for: the peak is a trial.

    ``do_bench`` holds 256 MiB that it clears before each call; the tuner copies what it restores.
    """
    one = 4 * TUNED.elements
    return [
        Item("input and result", 2 * one),
        Item("copy of the result", one),
        Item("what flushes the card's cache", 256 * 2**20),
    ]


DERIVED: dict[str, Callable[[], list[Item]]] = {
    "liger_llama": liger_llama,
    "liger_qwen3": liger_qwen3,
    "liger_gemma": liger_gemma,
    "trl_sft": trl_sft,
    "liger_lora": liger_lora,
    "liger_lora_longer": liger_lora_longer,
    "cross_entropy": cross_entropy,
    "fused_fp32": fused_fp32,
    "kl_div": kl_div,
    "jsd": jsd,
    "fused_jsd": fused_jsd,
    "flash_grouped": flash_grouped,
    "flash_packed": flash_packed,
    "autotuned": autotuned,
}
"""By the name of the program."""


_SIZES: dict[str, AnySizes] = {
    "liger_llama": LLAMA,
    "liger_qwen3": QWEN,
    "liger_gemma": GEMMA,
    "trl_sft": TRL,
    "liger_lora": LORA,
    "liger_lora_longer": LORA_LONGER,
    **LOSSES,
    **FLASH,
    "autotuned": TUNED,
}


def sizes_of(name: str) -> AnySizes:
    """Return what a program is told."""
    return _SIZES[name]


def derived_bytes(name: str) -> int:
    """Return the peak of a program by arithmetic."""
    return sum(item.num_bytes for item in DERIVED[name]())


if __name__ == "__main__":
    for program in DERIVED:
        print(f"{program:14s} {derived_bytes(program) / 2**20:10.2f} MiB")
