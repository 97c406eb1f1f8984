"""A process of Megatron-LM: what of its command line memory and time depend on."""

import itertools
import math
from functools import lru_cache
from typing import Literal

import msgspec

from brimful.hardware.cuda_chips import Multiprocessors, Version, chips
from brimful.megatron.pipeline import Chunks
from brimful.megatron.recipe import Recipe

Attention = Literal["unfused", "flash", "fused", "local"]
"""Transformer Engine's plain attention, flash-attn's, cuDNN's; Megatron's own."""
HALF_BYTES, FLOAT_BYTES = 2, 4
KEEPS_NARROW = "--keeps-bf16-gradients"
"""No flag of Megatron's: said of a command line of DeepSpeed's, which has none for it either."""
HOPPER = (9, 0)


class Experts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mixture of experts.

    Attributes:
        num: Experts of a layer.
        topk: That a token goes to.
        ffn: Width of one.
        shared_ffn: Width of those that every token has; 0: none.
        ep: Degree over which experts are parted.
        etp: Degree over which each of them is cut.
        dispatcher: How tokens come to experts.
        is_grouped: Whether all experts here are one product.
        is_wide: Whether probabilities are in fp32.
        layers: Which layers are mixtures, of all.
        route_groups: Groups of experts of which a token chooses some first; 1: it does not.
        route_topk: How many of them it chooses.
        dispatch_sms: Multiprocessors that DeepEP takes.
    """

    num: int
    topk: int
    ffn: int
    shared_ffn: int
    ep: int
    etp: int
    dispatcher: str
    is_grouped: bool
    is_wide: bool
    layers: tuple[bool, ...]
    route_groups: int = 1
    route_topk: int = 1
    dispatch_sms: int = 20

    def share_of(self, num: int) -> float:
        """Return which share of tokens chooses any of some experts that lie together, at random.

        ``num``: how many: a part of a group of experts, or several groups.
        """
        groups, chosen = self.route_groups, self.route_topk
        each = self.num // groups
        held = max(1, num // each)
        missed = 0.0
        for of_held in range(max(0, chosen - groups + held), min(held, chosen) + 1):
            ways = math.comb(held, of_held) * math.comb(groups - held, chosen - of_held)
            rest = max(0, each * chosen - of_held * num // held)
            missed += ways * math.comb(rest, self.topk) / math.comb(each * chosen, self.topk)
        return 1.0 - missed / math.comb(groups, chosen)

    @property
    def here(self) -> int:
        """Experts of a process."""
        return self.num // self.ep

    @property
    def width(self) -> int:
        """Width of an expert on a process."""
        return self.ffn // self.etp


class Latent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Multi-head latent attention.

    Attributes:
        is_used: Whether it is.
        query_rank: Width of the latent of queries; 0: they are projected at once.
        key_rank: Width of that of keys and values.
        width: Of a head of queries and keys, without positions.
        positions: What is rotated beside it.
        value_width: Of a head of values.
        is_normed: Whether latents are.
    """

    is_used: bool
    query_rank: int
    key_rank: int
    width: int
    positions: int
    value_width: int
    is_normed: bool


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process of Megatron-LM.

    Attributes:
        chunks: Layers of each chunk of every stage.
        predicts_more: Whether one token more is predicted, by a layer like the last behind it.
        hidden: Width of the residual stream.
        heads: Of queries.
        groups: Of keys and values.
        channels: Width of a head.
        ffn: Width of an MLP, of one half where it is gated.
        is_gated: SwiGLU or quick GEGLU.
        fuses_glu: Whether one kernel gates, rather than several.
        is_clamped: Whether both halves of a mixture's are clamped beforehand, by other kernels.
        has_bias: Of linear layers.
        qkv_bias: Of the projection to queries, keys and values alone.
        learns_offset: Whether a number for each head is in the sum of softmax, and learnt.
        windows: At how many tokens a query of each layer looks, of all layers; 0: at all.
        unrotated: Which layers, of all, rotate nothing where others do.
        norms_heads: Whether queries and keys are normed.
        is_rms: RMSNorm in place of LayerNorm.
        has_positions: Learnt position embeddings.
        has_rope: Rotary embeddings.
        is_tied: Embedding and output layer are one.
        vocab: Rows, padded.
        max_positions: Rows of learnt positions.
        seq_len: Tokens of a row.
        micro_batch: Rows of a micro-batch.
        num_micro: Micro-batches of a step.
        tp, cp, dp: Degrees; dp of replicas.
        stage: Which stage this is.
        sequence_parallel: Whether what lies between products is sharded over tp.
        attention: Its kernel.
        hidden_dropout, attention_dropout: Whether they drop.
        transformer_engine: Whether layers are Transformer Engine's.
        fuses_wgrad: Gradients of weights are added where they are kept.
        num_deferred: Micro-batches whose gradient of the output layer's weight waits for the end.
        distributed_optimizer: Whether states are sharded over replicas.
        is_half: 16-bit parameters with fp32 copies.
        is_fp16: Whether these 16 bits are fp16's, rather than bf16's.
        grads_bytes: Of an element of gradients.
        keeps_narrow: Whether those of 16 bits are kept too, from step to step (DeepSpeed's
            ``BF16_Optimizer`` sets them to zero).
        moments_bytes: Of an element of each moment.
        own_master_bytes: Of an element of copies that the optimizer makes itself; 0: Megatron does.
        num_widened: States of a parameter that an update works on as copies in fp32.
        updates_on_host: Whether the host has copies and moments, and updates them.
        loss: Cross-entropy's kernel.
        loss_copies: Whether Transformer Engine's keeps a copy of the logits, rather than them.
        recompute: Of a block: nothing, the core of attention, or all.
        recompute_layers: Under full recompute: layers of a unit, or how many of a stage.
        recompute_method: ``uniform`` or ``block``.
        recompute_modules: Under selective recompute.
        mask: Whether the data loader makes masks.
        counts_zeros: Whether zeros of gradients are counted.
        fused_softmax: Scale, mask and softmax of plain attention by one kernel.
        group: Micro-batches that run through a chunk before the next one runs.
        optimizer_instances: Groups of replicas that each hold all states.
        capability: The card's.
        experts: Of layers that are mixtures; ``num`` is 0 where none is.
        latent: Of attention.
        is_bert: Whether a head of BERT's stands before the output layer.
        has_binary_head: Whether it also says if one sentence follows another.
        key_len: Tokens of a row that its queries look at.
        is_decoder: Whether it stands behind an encoder.
        recipe: How linear layers are quantised; None: they are not.
        decoder: Of T5, of which this is the encoder: its layers look at the encoder's result too.
    """

    chunks: Chunks
    predicts_more: bool
    hidden: int
    heads: int
    groups: int
    channels: int
    ffn: int
    is_gated: bool
    fuses_glu: bool
    is_clamped: bool
    has_bias: bool
    qkv_bias: bool
    learns_offset: bool
    windows: tuple[int, ...]
    unrotated: tuple[bool, ...]
    norms_heads: bool
    is_rms: bool
    has_positions: bool
    has_rope: bool
    is_tied: bool
    vocab: int
    max_positions: int
    seq_len: int
    micro_batch: int
    num_micro: int
    tp: int
    cp: int
    dp: int
    stage: int
    sequence_parallel: bool
    attention: Attention
    hidden_dropout: bool
    attention_dropout: bool
    transformer_engine: bool
    fuses_wgrad: bool
    num_deferred: int
    distributed_optimizer: bool
    is_half: bool
    is_fp16: bool
    grads_bytes: int
    keeps_narrow: bool
    moments_bytes: tuple[int, int]
    own_master_bytes: int
    num_widened: int
    updates_on_host: bool
    loss: Literal["native", "te", "none"]
    loss_copies: bool
    recompute: Literal["", "selective", "full"]
    recompute_modules: tuple[str, ...]
    recompute_layers: int
    recompute_method: str
    mask: bool
    counts_zeros: bool
    fused_softmax: bool
    group: int
    optimizer_instances: int
    capability: Version
    experts: Experts
    latent: Latent
    is_bert: bool
    has_binary_head: bool
    key_len: int
    recipe: Recipe | None
    decoder: "Layout | None"
    is_decoder: bool

    @property
    def chip(self) -> Multiprocessors:
        """That it runs on."""
        return chips()[self.capability]

    @property
    def num_layers(self) -> int:
        """Of the whole model."""
        return sum(map(sum, self.chunks))

    @property
    def pp(self) -> int:
        """Stages."""
        return len(self.chunks)

    @property
    def vp(self) -> int:
        """Chunks of layers in a stage."""
        return len(self.chunks[0])

    @property
    def tokens(self) -> int:
        """Of a micro-batch, on this process."""
        return self.seq_len * self.micro_batch // self.cp

    @property
    def between(self) -> int:
        """Tokens between products: a shard of them under sequence parallelism."""
        return self.tokens // self.tp if self.sequence_parallel else self.tokens

    @property
    def queries(self) -> int:
        """Width of all queries of a token, on this process."""
        return self.heads * self.channels // self.tp

    @property
    def keys(self) -> int:
        """Width of all keys of a token, on this process."""
        return max(1, self.groups // self.tp) * self.channels

    @property
    def projected(self) -> int:
        """Width of what one product makes of a token on this process: queries, keys and values."""
        return (self.heads + 2 * self.groups) * self.channels // self.tp

    @property
    def shares_groups(self) -> bool:
        """Whether several processes have one group of keys and values.

        The product is cut evenly all the same, and gathered before heads are taken of it.
        """
        return self.groups < self.tp and not self.latent.is_used

    @property
    def num_halves(self) -> int:
        """Widths that an MLP's first matrix has: a gate and what it multiplies, or one."""
        return 2 if self.is_gated else 1

    @property
    def has_output_bias(self) -> bool:
        """Whether the output layer has a bias: BERT's and T5's."""
        return self.is_bert or self.is_decoder

    @property
    def is_first(self) -> bool:
        """Whether the embedding is here."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether the loss is here."""
        return self.stage == self.pp - 1

    @property
    def layers_here(self) -> int:
        """Layers of this stage, of all its chunks."""
        return sum(self.chunks[self.stage])

    @property
    def numbers_here(self) -> tuple[int, ...]:
        """Numbers in the model of this stage's layers, chunk after chunk.

        One that predicts a token more has that of the last.
        """
        more = (self.num_layers - 1,) if self.predicts_more and self.is_last else ()
        return (
            *(
                first + index
                for chunk, first in enumerate(_before(self))
                for index in range(self.layers_of(chunk))
            ),
            *more,
        )

    @property
    def norm_vectors(self) -> int:
        """Vectors that a norm has: a weight, and a LayerNorm's bias; as many numbers a row."""
        return 1 if self.is_rms else 2

    def recomputes(self, module: str) -> bool:
        """Whether selective recompute has a module: ``core_attn``, ``moe_act``, ``layernorm``."""
        return self.recompute == "selective" and module in self.recompute_modules

    def layers_of(self, chunk: int) -> int:
        """Return the layers of one chunk of this stage."""
        return self.chunks[self.stage][chunk]

    def first_of(self, chunk: int) -> int:
        """Return the number of a chunk's first layer in the model."""
        return _before(self)[chunk]

    @property
    def gathered(self) -> int:
        """Tokens that are gathered for experts."""
        return self.between * self.experts.ep * self.experts.etp

    @property
    def arrived(self) -> int:
        """Tokens that come to a process for any of the experts here, at random routers."""
        return int(self.gathered * self.experts.share_of(self.experts.here))

    @property
    def routed(self) -> int:
        """Tokens of the experts here, one for each expert that it goes to."""
        return self.gathered * self.experts.topk // self.experts.ep

    @property
    def num_ahead(self) -> int:
        """Chunks that run forward before the first one runs backward."""
        if self.vp == 1:
            return self.pp - self.stage - 1
        return 2 * (self.pp - self.stage - 1) + (self.vp - 1) * self.group

    def chunk_of(self, index: int) -> tuple[int, int]:
        """Return which chunk runs at a place of the order, and of which micro-batch."""
        round_of, inside = divmod(index, self.group * self.vp)
        rows = min(self.group, self.num_micro - round_of * self.group)
        return inside // rows, round_of * self.group + inside % rows


@lru_cache(maxsize=4096)
def _before(at: Layout) -> tuple[int, ...]:
    """Return how many layers of the model come before each chunk of a stage."""
    places = [(chunk, stage) for chunk in range(at.vp) for stage in range(at.pp)]
    ends = [0, *itertools.accumulate(at.chunks[stage][chunk] for chunk, stage in places)]
    return tuple(ends[places.index((chunk, at.stage))] for chunk in range(at.vp))
