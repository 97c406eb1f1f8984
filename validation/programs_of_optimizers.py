"""Peaks of programs with others' optimizers and loops by arithmetic, written before they were run.

Derived from the sources of transformers 5.23.0, bitsandbytes 0.50.2, galore-torch 1.0, Lightning
2.6.6 and LLaMA-Factory 0.9.5 (with transformers 5.6.0, in an environment of its own), and committed
before the pretend GPU had run any of these programs in these sizes. Letters
and rules are those of ``programs_by_hand.py``.
"""

from typing import NamedTuple

from programs_by_hand import WORKSPACES, Item, Sizes

SIZES = Sizes(2, 1024, 1024, 2816, 4, 16, 16, 64, 32_000)
FACTORY = Sizes(3, 768, 640, 1792, 3, 10, 10, 64, 24_000)
GALORE_RANK = 128
_PAGED_FROM = 100_000
"""bitsandbytes keeps the state of smaller tensors on the GPU, paged or not."""
_IN_8_BIT_FROM = 4096
_BLOCK = 256


class LoopSizes(NamedTuple):
    """What Lightning's program is told."""

    batch: int
    length: int
    width: int
    layers: int
    vocab: int

    @property
    def tokens(self) -> int:
        """N."""
        return self.batch * self.length


LOOP = LoopSizes(2, 512, 1024, 3, 20_000)
LOOP_LONGER = LoopSizes(3, 512, 1280, 4, 24_000)


def _matrices(s: Sizes) -> list[tuple[int, int]]:
    """Rows and columns of the matrices of all blocks."""
    attention = [(s.query, s.width), (s.key, s.width), (s.key, s.width), (s.width, s.query)]
    mlp = [(s.mlp, s.width), (s.mlp, s.width), (s.width, s.mlp)]
    return s.layers * [*attention, *mlp]


def _tensors(s: Sizes) -> list[int]:
    """Elements of every parameter."""
    norms = (2 * s.layers + 1) * [s.width]
    return [m * n for m, n in _matrices(s)] + 2 * [s.vocab * s.width] + norms


def _llama_in_backward(s: Sizes) -> list[Item]:
    """A plain Llama in bf16 as backward makes the gradient of the logits, which is the highest.

    In memory are log_softmax's result, its gradient, and the gradient of the logits, all fp32: 12
    bytes a logit. In forward it is 10 (bf16 logits, their fp32 copy, log_softmax's result). No
    gradient of a parameter is there yet; when all are, the saved activations are gone.
    """
    n, norm = s.tokens, 8 * s.tokens * s.width + 4 * s.tokens
    return [
        Item("parameters", 2 * sum(_tensors(s))),
        Item("buffers of rotary frequencies", 2 * 4 * (s.head_dim // 2)),
        Item("workspaces of cuBLAS", WORKSPACES),
        Item("token numbers, which are the labels", 8 * n),
        Item("labels, shifted", 8 * n),
        Item("cos and sin", 2 * 2 * s.length * s.head_dim),
        Item("norms: input in fp32, its normalized form, the result", (2 * s.layers + 1) * norm),
        Item("q, k, v", s.layers * 2 * n * (s.query + 2 * s.key)),
        Item("attention's output", s.layers * 2 * n * s.query),
        Item("attention's logsumexp", s.layers * 4 * n * s.heads),
        Item("gate, silu of it, up, their product", s.layers * 8 * n * s.mlp),
        Item("log_softmax's result, its gradient, that of the logits", 12 * n * s.vocab),
    ]


def _absmax(elements: int) -> int:
    return 2 * 4 * -(-elements // _BLOCK)


def adamw_8bit() -> list[Item]:
    """AdamW8bit of bitsandbytes: a byte a moment, a scale per block; norms' moments are fp32."""
    large = [n for n in _tensors(SIZES) if n >= _IN_8_BIT_FROM]
    small = [n for n in _tensors(SIZES) if n < _IN_8_BIT_FROM]
    return [
        *_llama_in_backward(SIZES),
        Item("moments in 8 bits", 2 * sum(large)),
        Item("scales of their blocks", sum(map(_absmax, large))),
        Item("moments of norms", 8 * sum(small)),
        Item("two maps of 256 values", 2 * 4 * 256),
    ]


def paged_adamw_8bit() -> list[Item]:
    """The same paged: moments are in managed memory, which is not the allocator's."""
    large = [n for n in _tensors(SIZES) if n >= _PAGED_FROM]
    small = [n for n in _tensors(SIZES) if n < _PAGED_FROM]
    return [
        *_llama_in_backward(SIZES),
        Item("scales of blocks", sum(map(_absmax, large))),
        Item("moments of norms", 8 * sum(small)),
        Item("two maps of 256 values", 2 * 4 * 256),
    ]


def paged_adamw_32bit() -> list[Item]:
    """AdamW in fp32, paged: only norms' moments are on the GPU."""
    small = [n for n in _tensors(SIZES) if n < _PAGED_FROM]
    return [*_llama_in_backward(SIZES), Item("moments of norms", 8 * sum(small))]


def galore() -> list[Item]:
    """GaLore: of a matrix two moments of the projected gradient, and the projection, in bf16."""
    low = sum(max(m, n) * GALORE_RANK for m, n in _matrices(SIZES))
    ortho = sum(min(m, n) * GALORE_RANK for m, n in _matrices(SIZES))
    others = sum(_tensors(SIZES)) - sum(m * n for m, n in _matrices(SIZES))
    return [
        *_llama_in_backward(SIZES),
        Item("moments of projected gradients", 2 * 2 * low),
        Item("projections", 2 * ortho),
        Item("moments of embedding, head and norms", 2 * 2 * others),
    ]


def lightning_longer() -> list[Item]:
    """The same in other sizes, with what ``lightning_loop`` overlooked.

    ``cross_entropy`` hands its input's type to log_softmax, which autocast then leaves alone: its
    result is bf16, and the loss widens it. In forward there are 2 + 2 + 4 bytes a logit and the
    gradients before; in backward at most 4 + 4 + 2 and none.
    """
    s = LOOP_LONGER
    return [*_loop(s), Item("logits, log_softmax's result, that in fp32", 8 * s.tokens * s.vocab)]


def lightning_loop() -> list[Item]:
    """Lightning's loop under bf16 autocast: the peak is in forward, with the gradients before it.

    Its closure sets gradients to None between forward and backward. When log_softmax's result is
    made there are the bf16 logits, their fp32 copy (which autocast holds) and the result. Against
    it in backward: 12 bytes a logit instead of 10, and no gradients.
    """
    logits = Item("logits in bf16, in fp32, log_softmax's result", 10 * LOOP.tokens * LOOP.vocab)
    return [*_loop(LOOP), logits]


def llama_factory() -> list[Item]:
    """``llamafactory-cli train``, full fine-tuning of fp32 weights under bf16 autocast.

    It checkpoints every block with re-entrant checkpoints, which keep a block's input in fp32. The
    peak is in the second micro-batch of a step, as the gradient of the logits is made: the
    gradients of the first are there, and the head's weight and input in bf16.
    """
    s = FACTORY
    n, elements = s.tokens, sum(_tensors(s))
    return [
        Item("parameters", 4 * elements),
        Item("AdamW's moments", 8 * elements),
        Item("AdamW's steps", 4 * len(_tensors(s))),
        Item("gradients of the micro-batch before", 4 * elements),
        Item("buffers of rotary frequencies", 2 * 4 * (s.head_dim // 2)),
        Item("workspaces of cuBLAS", WORKSPACES),
        Item("batches: two, and one fetched ahead", 3 * 3 * 8 * n),
        Item("inputs of blocks", s.layers * 4 * n * s.width),
        Item("cos and sin, which checkpoints keep", 2 * 4 * s.length * s.head_dim),
        Item("the last norm: its input, 1/rms, the normalized", 8 * n * s.width + 4 * n),
        Item("the head's input and weight in bf16", 2 * n * s.width + 2 * s.vocab * s.width),
        Item("log_softmax's result, its gradient, that of the logits", 12 * n * s.vocab),
    ]


def _loop(s: LoopSizes) -> list[Item]:
    n = s.tokens
    parameters = 4 * (2 * s.vocab * s.width + s.layers * s.width**2)
    return [
        Item("parameters", parameters),
        Item("AdamW's moments", 2 * parameters),
        Item("AdamW's steps", 4 * (s.layers + 2)),
        Item("gradients of the step before", parameters),
        Item("workspaces of cuBLAS", WORKSPACES),
        Item("token numbers", 8 * n),
        Item("weights in bf16", 2 * (s.vocab * s.width + s.layers * s.width**2)),
        Item("inputs of matrices in bf16", (s.layers + 1) * 2 * n * s.width),
        Item("results of relu", s.layers * 2 * n * s.width),
        Item("the last layer's result", 4 * n * s.width),
    ]


DERIVED = {
    "adamw_8bit": adamw_8bit,
    "paged_adamw_8bit": paged_adamw_8bit,
    "paged_adamw_32bit": paged_adamw_32bit,
    "galore": galore,
    "lightning": lightning_loop,
    "lightning_longer": lightning_longer,
}
"""By the name of the program, of those that one environment can run."""
OPTIMIZERS = {
    "adamw_8bit": "AdamW8bit",
    "paged_adamw_8bit": "PagedAdamW8bit",
    "paged_adamw_32bit": "PagedAdamW32bit",
}
SIZES_OF: dict[str, Sizes | LoopSizes] = {
    **dict.fromkeys((*OPTIMIZERS, "galore"), SIZES),
    "lightning": LOOP,
    "lightning_longer": LOOP_LONGER,
}
