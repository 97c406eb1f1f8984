"""Megatron-LM's command line, read as a process; what has no formula is refused by its flag.

Defaults are those of Megatron-LM 0.20 (``megatron/training/arguments.py``,
``core/transformer/transformer_config.py``).
"""

from typing import Any, Literal, cast

from msgspec.structs import replace

from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cuda_chips import Version
from brimful.hardware.cuda_libraries import NEWEST
from brimful.megatron import deepep
from brimful.megatron.by_layer import mixtures, unrotated, windows
from brimful.megatron.layout import (
    FLOAT_BYTES,
    HALF_BYTES,
    HOPPER,
    KEEPS_NARROW,
    Experts,
    Latent,
    Layout,
)
from brimful.megatron.pipeline import LAYOUT, chunks_of
from brimful.megatron.recipe import (
    BLACKWELL,
    RECIPES_OF_FP8,
    Recipe,
    RecipeName,
    multiplies_any_layout,
)
from brimful.megatron.state_types import CHOICES, state_types
from brimful.megatron.unwalked import NOT_YET, not_yet
from brimful.programs.base import Flags

Kind = Literal["gpt", "bert", "t5"]
"""Whose script runs."""
_KERNELS = ("unfused", "flash", "fused")
_NEEDED = (
    "--hidden-size", "--num-attention-heads", "--max-position-embeddings", "--micro-batch-size",
)  # fmt: skip
_LENGTHS = {"t5": ("--encoder-seq-length", "--decoder-seq-length")}
_KNOWN = {
    **CHOICES,
    "--recompute-granularity": ("selective", "full"),
    "--recompute-method": ("uniform", "block"),
    "--attention-backend": ("auto", "fused", "flash", "unfused", "local"),
    "--transformer-impl": ("transformer_engine", "local"),
    "--normalization": ("LayerNorm", "RMSNorm"),
    "--position-embedding-type": ("learned_absolute", "rope", "yarn", "none"),
    "--moe-token-dispatcher-type": ("allgather", "alltoall", deepep.DISPATCHER),
    "--moe-flex-dispatcher-backend": ("deepep",),
    "--cross-entropy-fusion-impl": ("native", "te"),
    "--optimizer": ("adam",),
    "--cuda-graph-impl": ("none",),
    "--softmax-type": ("vanilla", "off-by-one", "learnable"),
    "--fp8-format": ("e4m3", "hybrid"),
    "--fp8-recipe": RECIPES_OF_FP8,
    "--fp4-format": ("e2m1",),
    "--fp4-recipe": ("nvfp4",),
}
"""Values that have a formula, of flags that have others too."""
_STAGES = (
    "--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank",
    "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split",
)  # fmt: skip
"""What says how many layers stages hold, where no layout is written."""
_RECOMPUTED = ("core_attn", "moe_act", "layernorm")
"""Modules that have a formula under selective recompute."""
_ROTARY = ("rope", "yarn")
_WIDE = ("fp32", "fp64")
_WITH_WINDOWS = ("a2a", "all_gather")
"""How processes that share a sequence send what they have to each other, where tokens see a window
alone. Source: ``AttnFuncWithCP`` of Transformer Engine's ``context_parallel.py``."""
_FP8_SINCE: Version = (8, 9)
_OF_BLACKWELL = {"mxfp8", "nvfp4"}
_COPIES_SINCE: Version = (2, 13)
"""Transformer Engine's loss keeps a copy of the logits since July 2026 (NVIDIA/TransformerEngine
#3193, #3273), and wrote over them before: a PyTorch of before is taken for that."""
_ALL = 2**31
"""Micro-batches that no schedule has."""


def read_layout(  # noqa: PLR0913 - each by its name
    flags: Flags,
    *,
    vocab: int,
    world_size: int,
    stage: int,
    capability: Version,
    kind: Kind,
    torch_version: Version = NEWEST,
) -> Layout:
    """Read a command line.

    ``vocab``: rows of the vocabulary, before they are padded. ``torch_version``: PyTorch's (major,
    minor), which says how old other libraries are. Raises InputError: a number is none.
    """
    for flag in not_yet(flags):
        raise UnsupportedError(
            f"{NOT_YET[flag]} ({flag}) of Megatron-LM has no formula; simulate it"
        )
    _check_known(flags, kind)
    told = {
        **_model(flags, vocab),
        **_degrees(flags, world_size),
        **_switches(flags, capability),
        "loss_copies": torch_version >= _COPIES_SINCE,
        **_recomputed(flags),
        "stage": stage,
        "capability": capability,
        "experts": _experts(flags),
        "latent": _latent(flags),
        "recipe": _recipe(flags, capability),
        "predicts_more": flags.first("--mtp-num-layers", default=0) > 0,
        "is_bert": kind == "bert",
        "has_binary_head": kind == "bert" and not flags.has("--bert-no-binary-head"),
        "decoder": None,
        "is_decoder": False,
    }
    at = _t5(flags, told) if kind == "t5" else Layout(**told, chunks=chunks_of(flags))
    _check_cuts(at, flags)
    _check_kernels(at, flags)
    return at


def _check_kernels(at: Layout, flags: Flags) -> None:
    """Refuse what Megatron has no kernel of, or what is not walked by several kernels."""
    plain = at.attention in {"unfused", "local"}
    if plain and (any(at.windows) or flags.text("--softmax-type") not in {"", "vanilla"}):
        raise UnsupportedError(
            f"windows and other kinds of softmax have no formula with {at.attention} attention; "
            f"drop --attention-backend, or simulate it"
        )
    if at.cp > 1 and any(at.windows) and flags.text("--cp-comm-type") not in _WITH_WINDOWS:
        raise InputError(
            f"--window-size with --context-parallel-size {at.cp} needs --cp-comm-type "
            f"{' or '.join(_WITH_WINDOWS)} (Transformer Engine); add it, or leave one out"
        )
    if at.shares_groups and (plain or at.decoder is not None):
        raise UnsupportedError(
            f"--num-query-groups {at.groups} under tp {at.tp} has a formula in pretrain_gpt.py "
            f"with flash-attn or cuDNN alone; drop --attention-backend, or simulate it"
        )
    is_grouped = all(at.experts.layers) and at.experts.is_grouped
    is_gpt = not at.is_bert and at.decoder is None
    if at.predicts_more and not is_gpt:
        raise UnsupportedError("prediction of a token more has a formula in pretrain_gpt.py alone")
    if flags.first("--mtp-num-layers", default=0) > 1:
        raise UnsupportedError("prediction of several tokens more has no formula; simulate it")
    if at.predicts_more and ((at.recipe and at.recipe.is_fp4) or at.attention == "local"):
        raise UnsupportedError(
            "prediction of a token more has no formula in fp4, or without Transformer Engine"
        )
    if flags.has("--quick-geglu") and not (is_grouped and at.has_bias and at.fuses_glu):
        raise UnsupportedError(
            "--quick-geglu of Megatron-LM has a formula in mixtures with biases and "
            "--moe-grouped-gemm alone, where it is one kernel; simulate it"
        )


def _recipe(flags: Flags, capability: Version) -> Recipe | None:
    """Return how linear layers are quantised."""
    is_fp4 = flags.has("--fp4-format")
    if is_fp4 and flags.has("--fp8-format"):
        raise InputError("--fp4-format and --fp8-format do not go together; give one")
    if is_fp4 and flags.has("--fp8-param-gather"):
        raise UnsupportedError("--fp8-param-gather in fp4 has no formula; leave it out")
    if not is_fp4 and not flags.has("--fp8-format"):
        return None
    flag = "--fp4-recipe" if is_fp4 else "--fp8-recipe"
    name = flags.text(flag) or ("nvfp4" if is_fp4 else "delayed")
    since = BLACKWELL if name in _OF_BLACKWELL else _FP8_SINCE
    if capability < since:
        raise UnsupportedError(
            f"{flag} {name} needs capability {since[0]}.{since[1]} and the card has "
            f"{capability[0]}.{capability[1]}; take another recipe, or bf16"
        )
    if "local" in {flags.text("--transformer-impl"), flags.text("--spec")}:
        raise UnsupportedError(
            "fp8 needs Transformer Engine's layers; drop --transformer-impl local"
        )
    modules = _recomputed(flags)["recompute_modules"]
    if {"moe_act", "layernorm"}.intersection(modules):
        raise UnsupportedError(
            f"recomputing {' and '.join(modules)} in fp8 has no formula; simulate it, or leave "
            f"--recompute-modules at core_attn"
        )
    number, ends = flags.first, flags.has("--first-last-layers-bf16")
    return Recipe(
        name=cast("RecipeName", name),
        any_layout=multiplies_any_layout(capability),
        first_plain=number("--num-layers-at-start-in-bf16", default=1) if ends else 0,
        last_plain=number("--num-layers-at-end-in-bf16", default=1) if ends else 0,
        gathers_parameters=_gathers_parameters(flags, name),
    )


def _gathers_parameters(flags: Flags, recipe: str) -> bool:
    """Whether weights in fp8 are the parameters."""
    if not flags.has("--fp8-param-gather"):
        return False
    needed = ["--use-distributed-optimizer"]
    needed += ["--reuse-grad-buf-for-mxfp8-param-ag"] if recipe == "mxfp8" else []
    for flag in needed:
        if not flags.has(flag):
            raise InputError(f"--fp8-param-gather with --fp8-recipe {recipe} needs {flag}; add it")
    return True


def _check_known(flags: Flags, kind: Kind) -> None:
    """Refuse what is missing, and values that have no formula."""
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
    without = [word for word in _modules(flags) if word not in _RECOMPUTED]
    if without:
        raise UnsupportedError(
            f"--recompute-modules {' '.join(without)} of Megatron-LM has no formula (those that "
            f"have: {', '.join(_RECOMPUTED)}); simulate it"
        )
    if "layernorm" in _modules(flags) and flags.has("--multi-latent-attention"):
        raise UnsupportedError(
            "--recompute-modules layernorm with latent attention has no formula; simulate it"
        )
    by_unit = flags.text("--recompute-method") != "block"
    if by_unit and flags.first("--recompute-num-layers", default=1) > 1:
        raise UnsupportedError("recomputed units of several layers have no formula; simulate it")


def _modules(flags: Flags) -> tuple[str, ...]:
    """Return what selective recompute is of; a YAML writes it in brackets."""
    return tuple(flags.text("--recompute-modules").replace(",", " ").strip("[] ").split())


def _check_cuts(at: Layout, flags: Flags) -> None:
    """Refuse numbers that Megatron refuses: what is cut has to be cut evenly."""
    tp, cp, experts = at.tp, at.cp, at.experts
    micro, dp, instances = at.micro_batch, at.dp, at.optimizer_instances
    rows = flags.first("--global-batch-size", default=micro * dp)
    wanted = (
        ("--num-attention-heads", at.heads, tp, f"tp {tp}"),
        ("--num-query-groups", at.groups, 1 if tp % at.groups == 0 else tp, f"tp {tp}"),
        ("queries, keys and values", (at.heads + 2 * at.groups) * at.channels, tp, f"tp {tp}"),
        ("--ffn-hidden-size", at.ffn, tp, f"tp {tp}"),
        ("--num-experts", experts.num, experts.ep, f"ep {experts.ep}"),
        ("--moe-ffn-hidden-size", experts.ffn, experts.etp, f"etp {experts.etp}"),
        ("--global-batch-size", rows, micro * dp, f"micro-batch {micro} x {dp} replicas"),
        ("--seq-length", at.seq_len, 2 * cp if cp > 1 else 1, f"2 x cp {cp}"),
        ("--seq-length", at.seq_len, tp if at.sequence_parallel else 1, f"tp {tp}"),
        ("the replicas", dp * cp, instances, f"{instances} optimizer instances"),
    )
    for what, number, parts, why in wanted:
        if number % parts:
            raise InputError(f"{what} is {number}, no multiple of {parts} ({why}); change one")
    positions = flags.text("--position-embedding-type")
    if at.predicts_more and (at.has_positions or positions == "yarn"):
        raise InputError("--mtp-num-layers needs --position-embedding-type rope or none; give one")
    if flags.has("--tp-comm-overlap") and not (at.sequence_parallel and tp > 1):
        raise InputError("--tp-comm-overlap needs --sequence-parallel and tp over 1; add them")
    for flag in _STAGES if flags.has(LAYOUT) else ():
        if flags.has(flag):
            raise InputError(f"{LAYOUT} and {flag} both say what stages hold; give one")
    if flags.has(deepep.SWITCH) and experts.dispatcher != deepep.DISPATCHER:
        raise InputError(f"{deepep.SWITCH} needs --moe-token-dispatcher-type flex; add it")
    deepep.check(at)
    if experts.num and experts.topk > experts.num:
        raise InputError(f"--moe-router-topk {experts.topk} is over --num-experts {experts.num}")


def _t5(flags: Flags, told: dict[str, Any]) -> Layout:
    """Return an encoder, with its decoder, whose lengths and layers are flags of their own."""
    number = flags.first
    if number("--pipeline-model-parallel-size", default=1) > 1:
        raise UnsupportedError("stages of T5 of Megatron-LM have no formula; simulate it")
    if told["latent"].is_used:
        raise UnsupportedError("latent attention of T5 has no formula; leave it out")
    layers = number("--num-layers", default=1)
    encoder, decoder = (
        told
        | {
            "chunks": ((num,),),
            "seq_len": length,
            "key_len": length,
            "mask": False,
            "windows": (0,) * num,
            "unrotated": (False,) * num,
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
    is_gated = has("--swiglu") or has("--quick-geglu")
    has_bias = not has("--disable-bias-linear")
    multiple = number("--make-vocab-size-divisible-by", default=128)
    multiple *= number("--tensor-model-parallel-size", default=1)
    positions = flags.text("--position-embedding-type") or "learned_absolute"
    if has("--use-rotary-position-embeddings"):  # as older command lines say it
        positions = "rope"
    return {
        "hidden": hidden,
        "heads": heads,
        "groups": number("--num-query-groups", default=1)
        if has("--group-query-attention")
        else heads,
        "channels": number("--kv-channels", default=hidden // heads),
        "ffn": _ffn(flags),
        "is_gated": is_gated,
        "fuses_glu": not (is_gated and has("--no-bias-swiglu-fusion")),
        "is_clamped": has("--activation-func-clamp-value") and has("--quick-geglu"),
        "has_bias": has_bias,
        "qkv_bias": has_bias or has("--add-qkv-bias"),
        "learns_offset": flags.text("--softmax-type") == "learnable",
        "windows": windows(flags, number("--num-layers", default=1)),
        "unrotated": unrotated(flags, number("--num-layers", default=1)),
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
    micro = number("--micro-batch-size", default=1)
    rows = number("--global-batch-size", default=micro * dp)
    return {
        "tp": tp,
        "cp": cp,
        "dp": dp,
        "num_micro": max(1, rows // (micro * dp)),
        "group": number("--microbatch-group-size-per-virtual-pipeline-stage", default=pp),
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
        layers=mixtures(flags, layers, is_any=num > 0),
        route_groups=number("--moe-router-num-groups", default=1),
        route_topk=number("--moe-router-group-topk", default=1),
        dispatch_sms=number("--moe-flex-dispatcher-num-sms", "--moe-deepep-num-sms", default=20),
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


def _switches(flags: Flags, capability: Version) -> dict[str, Any]:
    has = flags.has
    is_local = "local" in {flags.text("--transformer-impl"), flags.text("--spec")}
    # Gradients of bf16 are added up in fp32 unless it is said, those of fp16 only where it is.
    is_wide = not has("--fp16") or has("--accumulate-allreduce-grads-in-fp32")
    is_narrow = has("--grad-reduce-in-bf16") or flags.text("--main-grads-dtype") == "bf16"
    kind = flags.text("--cross-entropy-fusion-impl") or "native"
    return {
        "attention": _attention(flags, capability, is_te=not is_local),
        "hidden_dropout": _drops(flags, "--hidden-dropout"),
        "attention_dropout": _drops(flags, "--attention-dropout"),
        "transformer_engine": not is_local,
        "fuses_wgrad": not has("--no-gradient-accumulation-fusion"),
        "num_deferred": _deferred(flags),
        "is_half": has("--bf16") or has("--fp16"),
        "is_fp16": has("--fp16"),
        "grads_bytes": FLOAT_BYTES if is_wide and not is_narrow else HALF_BYTES,
        "keeps_narrow": has(KEEPS_NARROW),
        **state_types(flags),
        "loss": kind if has("--cross-entropy-loss-fusion") else "none",
        "mask": not has("--no-create-attention-mask-in-dataloader"),
        "counts_zeros": has("--log-num-zeros-in-grad"),
        "fused_softmax": not is_local or not has("--no-masked-softmax-fusion"),
    }


def _deferred(flags: Flags) -> int:
    """Return how many micro-batches wait with the gradient of the output layer's weight."""
    if not flags.has("--defer-embedding-wgrad-compute"):
        return 0
    return flags.first("--wgrad-deferral-limit", default=0) or _ALL


def _recomputed(flags: Flags) -> dict[str, Any]:
    given = flags.text("--recompute-granularity")
    if not given and flags.has("--recompute-activations"):
        given = "selective"
    return {
        "recompute": given,
        "recompute_modules": _modules(flags) or ("core_attn",),
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
