"""What is known of an architecture: one record, which stands beside its reader and its layout.

Whoever needs a fact asks the record; nobody lists architectures by name. A new one is a file in
this folder, a line of ``architectures.py`` and a model of it in the registry. Everything beyond
``read`` and ``layout`` has a default that claims nothing. Imports no torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from brimful.models.experts import Experts
from brimful.models.layout import Layout
from brimful.models.small_sizes import SmallSizes
from brimful.models.spec import ModelSpec

ONE_KERNEL_GELU = ("gelu", "gelu_pytorch_tanh")
"""GELUs that are one kernel; GPT-2's own, ``gelu_new``, is written out in several."""
HEAD_WIDTH = "head_dim, hidden_size or num_attention_heads"
CUT_STREAM = "hidden_size or num_attention_heads"
LATENT_ROTARY = "qk_rope_head_dim"
"""Fields that say how many numbers of a head are rotated; see ``Architecture.rotates``."""


class Traced(NamedTuple):
    """What shipped profiles were traced with of a field of a configuration.

    Attributes:
        default: What the class fills in.
        values: The values that were traced.
    """

    default: Any
    values: tuple[Any, ...]


SILU = {"hidden_act": Traced("silu", ("silu",))}
ROUTED = {
    **SILU,
    "experts_implementation": Traced("grouped_mm", ("grouped_mm",)),
    "output_router_logits": Traced(False, (False,)),
}
"""Qwen3's mixtures were traced with ``norm_topk_prob``; without it a few bytes per token less are
kept, 0.02 % of the peak of a model of width 1024."""


class Window(NamedTuple):
    """How far back tokens see where the configuration does not list its blocks' kinds.

    Source: ``get_layer_types_and_kwargs`` of ``cache_utils.py`` and the configuration classes.

    Attributes:
        default: Tokens that the class fills in; None: no window.
        is_switched: Whether it counts where ``use_sliding_window`` is true only.
        blocks: Which have it: every one, every other with the first among them, or those from
            ``max_window_layers`` on.
    """

    default: int | None = None
    is_switched: bool = False
    blocks: Literal["every", "every-other", "last"] = "every"


class BlockCode(NamedTuple):
    """How the code of a block goes about it, where what it holds has a formula.

    Attributes:
        matrices: ``apart``: queries, keys, values, gate and up by themselves; ``joined``: each kind
            in one product, of which they are views; ``conv1d``: GPT-2's, with no gate.
        is_normed_before: Whether attention and MLP are given a normed input; else they are normed
            behind it.
        norms_heads: Whether queries and keys are normed.
        is_wide: Whether rotations, and norms but for their last step, are in fp32.
        wide_shares: Whether shares of experts are in fp32 whatever the type that computes.
    """

    matrices: Literal["apart", "joined", "conv1d"] = "apart"
    is_normed_before: bool = True
    norms_heads: bool = False
    is_wide: bool = False
    wide_shares: bool = False


class Shipped(NamedTuple):
    """Which profiles of an architecture come with the package.

    Attributes:
        variants: Flags behind its name: ``tied`` to the embedding, ``mha`` with as many key heads
            as query heads, ``tp`` cut and ``ep`` parted among devices, ``narrow`` with inputs cast
            to 16 bits, ``gelu`` with another activation.
        published: Those of published runs: everything trained in bf16 or bf16-mixed, with fused
            attention, on CUDA.
        before_ampere: Those of older cards: everything trained, or adapters.
        on_cpu: Whether for CPU kernels, for the demonstration and the evidence.
        adapters: Whether with adapters.
        tunings: Tunings of published runs with the variants that they are shipped for.
        cuts_half: Whether cut programs are shipped for recipes that compute in 16 bits only.
    """

    variants: tuple[str, ...] = ("",)
    published: tuple[str, ...] = ()
    before_ampere: tuple[str, ...] = ()
    on_cpu: bool = False
    adapters: bool = False
    tunings: Mapping[str, tuple[str, ...]] = {}
    cuts_half: bool = False


_NO_WINDOW, _NONE_SHIPPED, _PLAIN = Window(), Shipped(variants=()), BlockCode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """An architecture that this project reads by itself.

    Attributes:
        model_type: Its key in ``transformers``.
        read: Takes the dimensions out of a configuration, given what people call the model.
        layout: Lays out its parameters.
        experts: Reads its experts; None in a dense architecture.
        sizes: Returns its configuration's fields, with what its class fills in where that is known.
        required: Fields that its configuration must have.
        task: What it is for.
        depth_field: What its configuration calls the number of blocks.
        own_scores: What fused attention kernels would leave out; empty: nothing.
        bias_kernels: Attention kernels through which its class sends a bias of positions.
        window: How far back its tokens see.
        is_latent: Whether its cache holds a narrow latent in place of keys and values.
        rotates: Fields that say how many numbers of a head are rotated; empty: none are.
        heads_cut_stream: Whether heads cut up the residual stream, or its class insists that they
            could.
        groups_experts: Whether its experts run as one grouped product, behind a router that says
            its logits and choices: of any of them at a time, and balanced on request.
        balances_rows: Whether its router balances every row by itself, so that its own auxiliary
            loss adds up over rows.
        balanced_router: Whether its router scores every expert by itself, with a balance that it
            keeps for each in fp32.
        tensor: Whether tensor parallelism cuts every matrix, or every one but those of experts,
            which are parted instead; empty: it does not.
        fused_matrices: Several matrices in one, of which a device's rows are no one piece.
        is_staged: Whether its forward is an embedding, a stack of blocks, a norm and a head, as
            pipelines cut it.
        fp32_norms: Whether norms stay fp32 beside fp16 (``_keep_in_fp32_modules`` of its class).
        published: The format of weights in which its models are published, where that is packed.
        scaled_embedding: Whether it holds the scale of its embedding.
        code: How its block's code goes about it; None: what it holds has no formula.
        traced_as: Whose block's shipped profile holds for it; empty: none ships.
        traced: What those were traced with, of fields that decide operations.
        caps: Fields of numbers that scores and logits are capped by; null was not traced.
        small: Makes the configuration that is traced for them.
        shipped: Which are.
    """

    model_type: str
    read: Callable[[str, dict[str, Any]], ModelSpec]
    layout: Callable[[ModelSpec], Layout]
    experts: Callable[[ModelSpec], Experts] | None = None
    sizes: Callable[[dict[str, Any]], dict[str, Any]] = dict
    required: tuple[str, ...] = ()
    task: Literal["causal-lm", "sequence-classification", "seq2seq"] = "causal-lm"
    depth_field: str = "num_hidden_layers"
    own_scores: str = ""
    bias_kernels: tuple[Literal["eager", "sdpa"], ...] = ()
    window: Window = _NO_WINDOW
    is_latent: bool = False
    rotates: str = ""
    heads_cut_stream: bool = False
    groups_experts: bool = False
    balances_rows: bool = False
    balanced_router: bool = False
    tensor: Literal["", "whole", "beside-experts"] = ""
    fused_matrices: str = ""
    is_staged: bool = False
    fp32_norms: bool = False
    published: str = ""
    scaled_embedding: bool = False
    code: BlockCode | None = None
    traced_as: str = ""
    traced: Mapping[str, Traced] = field(default_factory=lambda: SILU)
    caps: tuple[str, ...] = ()
    small: Callable[[SmallSizes, int], dict[str, Any]] | None = None
    shipped: Shipped = _NONE_SHIPPED

    @property
    def block(self) -> BlockCode:
        """How its block's code goes about it; where that is not known, one that claims nothing."""
        return self.code or _PLAIN
