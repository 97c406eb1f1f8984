"""What a command line of Megatron-LM says of memory, as numbers and switches.

Defaults are those of Megatron-LM 0.20 (``megatron/training/arguments.py``,
``core/transformer/transformer_config.py``).
"""

import itertools
import re
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cuda_chips import Multiprocessors, Version, chips
from brimful.programs.base import Flags

Kind = Literal["gpt", "bert", "t5"]
"""Whose script runs."""
Attention = Literal["unfused", "flash", "fused", "local"]
"""Transformer Engine's plain attention, flash-attn's, cuDNN's; Megatron's own."""
HALF_BYTES, FLOAT_BYTES = 2, 4
HOPPER = (9, 0)
_KERNELS = ("unfused", "flash", "fused")
_NEEDED = (
    "--hidden-size", "--num-attention-heads", "--max-position-embeddings", "--micro-batch-size",
)  # fmt: skip
_LENGTHS = {"t5": ("--encoder-seq-length", "--decoder-seq-length")}
_KNOWN = {
    "--recompute-granularity": ("selective", "full"),
    "--recompute-method": ("uniform", "block"),
    "--recompute-modules": ("core_attn",),
    "--attention-backend": ("auto", "fused", "flash", "unfused", "local"),
    "--transformer-impl": ("transformer_engine", "local"),
    "--normalization": ("LayerNorm", "RMSNorm"),
    "--position-embedding-type": ("learned_absolute", "rope", "yarn", "none"),
    "--moe-token-dispatcher-type": ("allgather", "alltoall"),
    "--cross-entropy-fusion-impl": ("native", "te"),
    "--optimizer": ("adam",),
    "--cuda-graph-impl": ("none",),
}
"""Values that have a formula, of flags that have others too."""
_ROTARY = ("rope", "yarn")
_WIDE = ("fp32", "fp64")
_LIST = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d+))?")
_NOT_YET = {
    "--use-megatron-fsdp": "its own FSDP",
    "--use-torch-fsdp2": "FSDP2",
    "--moe-pad-expert-input-to-capacity": "experts with a capacity",
    "--moe-expert-capacity-factor": "experts with a capacity",
    "--moe-shared-expert-overlap": "overlapped shared experts",
    "--moe-shared-expert-gate": "gated shared experts",
    "--fp8-format": "fp8",
    "--fp4-format": "fp4",
    "--experimental-attention-variant": "linear and sparse attention",
    "--optimizer-cpu-offload": "an optimizer on the host",
    "--fine-grained-activation-offloading": "activations on the host",
    "--mtp-num-layers": "prediction of several tokens",
    "--enable-cuda-graph": "CUDA graphs",
    "--external-cuda-graph": "CUDA graphs",
    "--pipeline-model-parallel-layout": "a layout of stages by layer",
    "--heterogeneous-layers-config-path": "layers that differ",
    "--use-transformer-engine-op-fuser": "operations that Transformer Engine fuses itself",
    "--delay-wgrad-compute": "delayed gradients of weights",
    "--overlap-moe-expert-parallel-comm": "overlapped exchanges of experts",
    "--tp-comm-overlap": "user buffers",
    "--window-size": "windows",
    "--use-precision-aware-optimizer": "states of other types",
    "--export-kd-cfg": "distillation",
    "--defer-embedding-wgrad-compute": "a deferred gradient of the embedding",
    "--fp32-residual-connection": "a residual stream in fp32",
    "--attention-output-gate": "gates of attention",
    "--enable-mhc-connections": "several residual streams",
    "--moe-latent-size": "experts on a latent",
    "--moe-enable-deepep": "DeepEP",
    "--moe-apply-probs-on-input": "probabilities before experts",
    "--moe-layer-recompute": "recomputed mixtures",
    "--distribute-saved-activations": "kept activations that are shared",
    "--mlp-chunks-for-training": "an MLP in pieces",
    "--softmax-type": "softmax of another kind",
    "--freeze-all-layers": "frozen layers",
    "--heterogeneous-layers-config-encoded-json": "layers that differ",
    "--te-precision-config-file": "recipes by layer",
    "--quick-geglu": "quick GEGLU",
    "--no-bias-swiglu-fusion": "an unfused SwiGLU",
    "--img-h": "images",
    "--spec": "blocks of one's own",
    "--yaml-cfg": "a YAML of its configuration",
}
"""Flags of what has no formula yet: the program itself runs it."""


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

    @property
    def here(self) -> int:
        """Experts of a process."""
        return self.num // self.ep


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
        num_layers: Of the whole model.
        hidden: Width of the residual stream.
        heads: Of queries.
        groups: Of keys and values.
        channels: Width of a head.
        ffn: Width of an MLP, of one half where it is gated.
        is_gated: SwiGLU.
        has_bias: Of linear layers.
        qkv_bias: Of the projection to queries, keys and values alone.
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
        tp, pp, cp, dp, vp: Degrees; dp of replicas, vp of chunks of layers in a stage.
        stage: Which stage this is.
        sequence_parallel: Whether what lies between products is sharded over tp.
        attention: Its kernel.
        hidden_dropout, attention_dropout: Whether they drop.
        transformer_engine: Whether layers are Transformer Engine's.
        fuses_wgrad: Gradients of weights are added where they are kept.
        distributed_optimizer: Whether states are sharded over replicas.
        is_half: 16-bit parameters with fp32 copies.
        grads_bytes: Of an element of gradients.
        loss: Cross-entropy's kernel.
        recompute: Of a block: nothing, the core of attention, or all.
        recompute_layers: Under full recompute: layers of a unit, or how many of a stage.
        recompute_method: ``uniform`` or ``block``.
        recompute_modules: Under selective recompute.
        first_layers, last_layers: Of the first and the last stage, where these differ.
        mask: Whether the data loader makes masks.
        counts_zeros: Whether zeros of gradients are counted.
        fused_softmax: Scale, mask and softmax of plain attention by one kernel.
        counts_embedding, counts_loss: Whether stages count the ends of the model as layers.
        group: Micro-batches that run through a chunk before the next one runs.
        optimizer_instances: Groups of replicas that each hold all states.
        capability: The card's.
        experts: Of layers that are mixtures; ``num`` is 0 where none is.
        latent: Of attention.
        is_bert: Whether a head of BERT's stands before the output layer.
        has_binary_head: Whether it also says if one sentence follows another.
        key_len: Tokens of a row that its queries look at.
        is_decoder: Whether it stands behind an encoder.
        decoder: Of T5, of which this is the encoder: its layers look at the encoder's result too.
    """

    num_layers: int
    hidden: int
    heads: int
    groups: int
    channels: int
    ffn: int
    is_gated: bool
    has_bias: bool
    qkv_bias: bool
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
    pp: int
    cp: int
    dp: int
    vp: int
    stage: int
    sequence_parallel: bool
    attention: Attention
    hidden_dropout: bool
    attention_dropout: bool
    transformer_engine: bool
    fuses_wgrad: bool
    distributed_optimizer: bool
    is_half: bool
    grads_bytes: int
    loss: Literal["native", "te", "none"]
    recompute: Literal["", "selective", "full"]
    recompute_modules: tuple[str, ...]
    recompute_layers: int
    recompute_method: str
    mask: bool
    counts_zeros: bool
    fused_softmax: bool
    first_layers: int
    last_layers: int
    counts_embedding: bool
    counts_loss: bool
    group: int
    optimizer_instances: int
    capability: Version
    experts: Experts
    latent: Latent
    is_bert: bool
    has_binary_head: bool
    key_len: int
    decoder: "Layout | None"
    is_decoder: bool

    @property
    def chip(self) -> Multiprocessors:
        """That it runs on."""
        return chips()[self.capability]

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
        return sum(self.layers_of(chunk) for chunk in range(self.vp))

    def layers_of(self, chunk: int) -> int:
        """Return the layers of one chunk of this stage."""
        if self.counts_embedding or self.counts_loss:
            each = (self.num_layers + self.counts_embedding + self.counts_loss) // self.pp
            first = self.counts_embedding and self.is_first and chunk == 0
            last = self.counts_loss and self.is_last and chunk == self.vp - 1
            return each // self.vp - first - last
        if self.pp > 1 and self.is_first and self.first_layers:
            return self.first_layers // self.vp
        if self.pp > 1 and self.is_last and self.last_layers:
            return self.last_layers // self.vp
        ends = (self.first_layers > 0) + (self.last_layers > 0) if self.pp > 1 else 0
        rest = self.num_layers - self.first_layers - self.last_layers
        return rest // (self.pp - ends) // self.vp

    def first_of(self, chunk: int) -> int:
        """Return the number of a chunk's first layer in the model."""
        return _before(self)[chunk]

    @property
    def gathered(self) -> int:
        """Tokens that are gathered for experts."""
        return self.between * self.experts.ep * self.experts.etp

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
    stages = [replace(at, stage=stage) for stage in range(at.pp)]
    places = [(chunk, stage) for chunk in range(at.vp) for stage in range(at.pp)]
    ends = [0, *itertools.accumulate(stages[stage].layers_of(chunk) for chunk, stage in places)]
    return tuple(ends[places.index((chunk, at.stage))] for chunk in range(at.vp))


def layout(  # noqa: PLR0913 - each by its name
    flags: Flags, *, vocab: int, world_size: int, stage: int, capability: Version, kind: Kind
) -> Layout:
    """Read a command line.

    Args:
        flags: Of the script.
        vocab: Rows of the vocabulary, before they are padded.
        world_size: Processes.
        stage: Of which pipeline stage.
        capability: The card's.
        kind: Whose script it is.

    Raises:
        InputError: A number is none.
        UnsupportedError: It asks for what has no formula.
    """
    for flag, words in _NOT_YET.items():
        if flags.has(flag):
            raise UnsupportedError(f"{words} ({flag}) of Megatron-LM has no formula; simulate it")
    _check_known(flags, kind)
    told = {
        **_model(flags, vocab),
        **_degrees(flags, world_size),
        **_switches(flags, capability),
        **_recomputed(flags),
        "stage": stage,
        "capability": capability,
        "experts": _experts(flags),
        "latent": _latent(flags),
        "is_bert": kind == "bert",
        "has_binary_head": kind == "bert" and not flags.has("--bert-no-binary-head"),
        "decoder": None,
        "is_decoder": False,
    }
    if kind == "t5":
        if told["pp"] > 1:
            raise UnsupportedError("stages of T5 of Megatron-LM have no formula; simulate it")
        told["seq_len"] = flags.first("--encoder-seq-length", default=1)
    _check(told)
    if kind == "t5":
        return _t5(flags, told)
    at = Layout(**told)
    _check_stages(at)
    return at


def _check_known(flags: Flags, kind: Kind) -> None:
    """Refuse what is missing, and values that have no formula.

    Raises:
        InputError: A flag is missing that Megatron wants.
        UnsupportedError: A value has no formula.
    """
    lengths = _LENGTHS.get(kind, ("--num-layers", "--seq-length"))
    for flag in (*_NEEDED, *lengths):
        if not flags.has(flag):
            raise InputError(f"the command line says no {flag}; add it")
    for flag, known in _KNOWN.items():
        given = flags.text(flag)
        if given and given not in known:
            raise UnsupportedError(
                f"{flag} {given} of Megatron-LM has no formula (those that have: "
                f"{', '.join(known)}); simulate it"
            )
    if not flags.has("--bf16") and not flags.has("--fp16"):
        raise UnsupportedError("Megatron-LM in fp32 has no formula; add --bf16, or simulate it")
    by_unit = flags.text("--recompute-method") != "block"
    if by_unit and flags.first("--recompute-num-layers", default=1) > 1:
        raise UnsupportedError("recomputed units of several layers have no formula; simulate it")


def _check(told: dict[str, Any]) -> None:
    """Refuse numbers that Megatron refuses: what is cut has to be cut evenly.

    Raises:
        InputError: Two do not go together.
    """
    tp, cp, experts = told["tp"], told["cp"], told["experts"]
    micro, dp, rows = told["micro_batch"], told["dp"], told.pop("global_batch")
    instances = told["optimizer_instances"]
    wanted = (
        ("--num-attention-heads", told["heads"], tp, f"tp {tp}"),
        ("--num-query-groups", told["groups"], tp, f"tp {tp}"),
        ("--ffn-hidden-size", told["ffn"], tp, f"tp {tp}"),
        ("--num-experts", experts.num, experts.ep, f"ep {experts.ep}"),
        ("--moe-ffn-hidden-size", experts.ffn, experts.etp, f"etp {experts.etp}"),
        ("--global-batch-size", rows, micro * dp, f"micro-batch {micro} x {dp} replicas"),
        ("--seq-length", told["seq_len"], 2 * cp if cp > 1 else 1, f"2 x cp {cp}"),
        ("--seq-length", told["seq_len"], tp if told["sequence_parallel"] else 1, f"tp {tp}"),
        ("the replicas", dp * cp, instances, f"{instances} optimizer instances"),
    )
    for what, number, parts, why in wanted:
        if number % parts:
            raise InputError(f"{what} is {number}, no multiple of {parts} ({why}); change one")
    if experts.num and experts.topk > experts.num:
        raise InputError(f"--moe-router-topk {experts.topk} is over --num-experts {experts.num}")


def _check_stages(at: Layout) -> None:
    """Refuse layers that stages do not hold all of.

    Raises:
        InputError: Some are left over.
    """
    held = sum(replace(at, stage=stage).layers_here for stage in range(at.pp))
    if held != at.num_layers:
        raise InputError(
            f"{at.num_layers} layers do not divide over {at.pp * at.vp} chunks (pp {at.pp} x "
            f"{at.vp} virtual stages): these hold {held}; change one"
        )


def _t5(flags: Flags, told: dict[str, Any]) -> Layout:
    """Return an encoder, with its decoder, whose lengths and layers are flags of their own."""
    number, layers = flags.first, told["num_layers"]
    encoder, decoder = (
        told
        | {
            "num_layers": num,
            "seq_len": length,
            "key_len": length,
            "mask": False,
            "experts": replace(told["experts"], layers=(False,) * num),
        }
        for num, length in (
            (
                number("--encoder-num-layers", default=layers),
                number("--encoder-seq-length", default=told["seq_len"]),
            ),
            (
                number("--decoder-num-layers", default=layers),
                number("--decoder-seq-length", default=1),
            ),
        )
    )
    return Layout(**(encoder | {"decoder": Layout(**(decoder | {"is_decoder": True}))}))


def _ffn(flags: Flags) -> int:
    """Return the width of an MLP: of gated ones two thirds, a multiple of 64."""
    hidden = flags.first("--hidden-size", default=1)
    plain = 4 * hidden * 2 // 3 // 64 * 64 if flags.has("--swiglu") else 4 * hidden
    return flags.first("--ffn-hidden-size", default=plain)


def _model(flags: Flags, vocab: int) -> dict[str, Any]:
    number, has = flags.first, flags.has
    hidden = number("--hidden-size", default=1)
    heads = number("--num-attention-heads", default=1)
    is_gated = has("--swiglu")
    has_bias = not has("--disable-bias-linear")
    multiple = number("--make-vocab-size-divisible-by", default=128)
    multiple *= number("--tensor-model-parallel-size", default=1)
    positions = flags.text("--position-embedding-type") or "learned_absolute"
    if has("--use-rotary-position-embeddings"):  # as older command lines say it
        positions = "rope"
    return {
        "num_layers": number("--num-layers", default=1),
        "hidden": hidden,
        "heads": heads,
        "groups": number("--num-query-groups", default=1)
        if has("--group-query-attention")
        else heads,
        "channels": number("--kv-channels", default=hidden // heads),
        "ffn": _ffn(flags),
        "is_gated": is_gated,
        "has_bias": has_bias,
        "qkv_bias": has_bias or has("--add-qkv-bias"),
        "norms_heads": has("--qk-layernorm") and not has("--multi-latent-attention"),
        "is_rms": flags.text("--normalization") == "RMSNorm",
        "has_positions": positions == "learned_absolute",
        "has_rope": positions in _ROTARY,
        "is_tied": not has("--untie-embeddings-and-output-weights"),
        "vocab": number("--padded-vocab-size", default=-(-vocab // multiple) * multiple),
        "max_positions": number("--max-position-embeddings", default=1),
        "seq_len": number("--seq-length", default=1),
        "key_len": number("--seq-length", default=1),
        "micro_batch": number("--micro-batch-size", default=1),
    }


def _degrees(flags: Flags, world_size: int) -> dict[str, Any]:
    number, has = flags.first, flags.has
    tp = number("--tensor-model-parallel-size", default=1)
    pp = number("--pipeline-model-parallel-size", default=1)
    cp = number("--context-parallel-size", default=1)
    dp = max(1, world_size // (tp * pp * cp))
    of_embedding = has("--account-for-embedding-in-pipeline-split")
    of_loss = has("--account-for-loss-in-pipeline-split")
    layers = number("--num-layers", default=1) + of_embedding + of_loss
    by_chunk = number("--num-layers-per-virtual-pipeline-stage", default=0)
    chunks = number("--num-virtual-stages-per-pipeline-rank", default=1)
    micro = number("--micro-batch-size", default=1)
    rows = number("--global-batch-size", default=micro * dp)
    return {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": dp,
        "vp": max(1, -(-layers // pp // by_chunk)) if by_chunk else chunks,
        "global_batch": rows,
        "num_micro": max(1, rows // (micro * dp)),
        "group": number("--microbatch-group-size-per-virtual-pipeline-stage", default=pp),
        "first_layers": number("--decoder-first-pipeline-num-layers", default=0),
        "last_layers": number("--decoder-last-pipeline-num-layers", default=0),
        "counts_embedding": of_embedding,
        "counts_loss": of_loss,
        "sequence_parallel": has("--sequence-parallel") and tp > 1,
        "distributed_optimizer": has("--use-distributed-optimizer"),
        "optimizer_instances": number("--num-distributed-optimizer-instances", default=1),
    }


def _experts(flags: Flags) -> Experts:
    number, has = flags.first, flags.has
    layers = number("--num-layers", default=1)
    tp = number("--tensor-model-parallel-size", default=1)
    num = number("--num-experts", default=0)
    return Experts(
        num=num,
        topk=number("--moe-router-topk", default=2),
        ffn=number("--moe-ffn-hidden-size", default=_ffn(flags)),
        shared_ffn=number("--moe-shared-expert-intermediate-size", default=0),
        ep=number("--expert-model-parallel-size", default=1),
        etp=number("--expert-tensor-parallel-size", default=tp),
        dispatcher=flags.text("--moe-token-dispatcher-type") or "allgather",
        is_grouped=has("--moe-grouped-gemm"),
        is_wide=flags.text("--moe-router-dtype") in _WIDE,
        layers=_mixtures(flags.text("--moe-layer-freq") or "1", layers, is_any=num > 0),
    )


def _latent(flags: Flags) -> Latent:
    number = flags.first
    return Latent(
        is_used=flags.has("--multi-latent-attention"),
        query_rank=number("--q-lora-rank", default=0),
        key_rank=number("--kv-lora-rank", default=32),
        width=number("--qk-head-dim", default=128),
        positions=number("--qk-pos-emb-head-dim", default=64),
        value_width=number("--v-head-dim", default=128),
        is_normed=flags.has("--qk-layernorm"),
    )


def _mixtures(text: str, num_layers: int, *, is_any: bool) -> tuple[bool, ...]:
    """Return which layers are mixtures: every n-th, or a list such as ``([0]*3+[1]*11)``.

    Raises:
        InputError: It is neither.
    """
    if not is_any:
        return (False,) * num_layers
    plain = text.replace(" ", "").strip("()")
    if plain.isdecimal() and int(plain):
        return tuple(layer % int(plain) == 0 for layer in range(num_layers))
    found: list[bool] = []
    for part in plain.split("+"):
        matched = _LIST.fullmatch(part)
        if matched is None:
            raise InputError(
                f"--moe-layer-freq {text} is no number and no list of 0 and 1; give one"
            )
        found += [each == "1" for each in matched[1].split(",")] * int(matched[2] or 1)
    if len(found) != num_layers:
        raise InputError(
            f"--moe-layer-freq {text} is of {len(found)} layers and --num-layers is {num_layers}; "
            f"give one for each"
        )
    return tuple(found)


def _switches(flags: Flags, capability: Version) -> dict[str, Any]:
    has = flags.has
    is_te = flags.text("--transformer-impl") != "local"
    # Gradients of bf16 are added up in fp32 unless it is said, those of fp16 only where it is.
    is_wide = not has("--fp16") or has("--accumulate-allreduce-grads-in-fp32")
    kind = flags.text("--cross-entropy-fusion-impl") or "native"
    return {
        "attention": _attention(flags, capability, is_te=is_te),
        "hidden_dropout": _drops(flags, "--hidden-dropout"),
        "attention_dropout": _drops(flags, "--attention-dropout"),
        "transformer_engine": is_te,
        "fuses_wgrad": not has("--no-gradient-accumulation-fusion"),
        "is_half": has("--bf16") or has("--fp16"),
        "grads_bytes": FLOAT_BYTES if is_wide and not has("--grad-reduce-in-bf16") else HALF_BYTES,
        "loss": kind if has("--cross-entropy-loss-fusion") else "none",
        "mask": not has("--no-create-attention-mask-in-dataloader"),
        "counts_zeros": has("--log-num-zeros-in-grad"),
        "fused_softmax": is_te or not has("--no-masked-softmax-fusion"),
    }


def _recomputed(flags: Flags) -> dict[str, Any]:
    given = flags.text("--recompute-granularity")
    if not given and flags.has("--recompute-activations"):
        given = "selective"
    return {
        "recompute": given,
        "recompute_modules": tuple(flags.text("--recompute-modules").split()) or ("core_attn",),
        "recompute_layers": flags.first("--recompute-num-layers", default=1),
        "recompute_method": flags.text("--recompute-method") or "uniform",
    }


def _drops(flags: Flags, name: str) -> bool:
    return flags.share(name, default=0.1) > 0  # unless it is said


def _attention(flags: Flags, capability: Version, *, is_te: bool) -> str:
    """Return the kernel: cuDNN's on Hopper and later, flash-attn's before, unless it is said."""
    asked = flags.text("--attention-backend")
    if not is_te or asked == "local":
        return "local"
    if asked in _KERNELS:
        return asked
    return "flash" if flags.has("--use-flash-attn") or capability < HOPPER else "fused"
