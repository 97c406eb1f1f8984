"""A model as arguments of Megatron-LM's ``pretrain_gpt.py``.

What a configuration says is read from it, field by field, under the names that transformers has for
it; what its classes do beside that, from ``classes.py``. What no argument says is refused by its
field where it changes the model's operations, and told where it changes numbers alone.

Source: ``megatron/training/arguments.py`` and ``core/transformer/transformer_config.py`` of
Megatron-LM 0.20; the fields and their arguments beside ``CONFIG_MAPPING`` in
``models/conversion/model_bridge.py`` of Megatron-Bridge.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from brimful.cost.kv_cache import windows
from brimful.megatron import rotary
from brimful.megatron.by_layer import every_nth, listed
from brimful.megatron.classes import Facts, facts_of, unsaid
from brimful.megatron.routed import routed_words
from brimful.models.architectures import ARCHITECTURES, record_of
from brimful.models.spec import ModelSpec

_PLAIN: Mapping[str, str] = {
    **dict.fromkeys(
        ("rms_norm_eps", "norm_eps", "norm_epsilon", "layer_norm_eps", "layer_norm_epsilon"),
        "--norm-epsilon",
    ),
    "initializer_range": "--init-method-std",
}
"""Fields of numbers that stand in an argument as they are."""
_GATED = {"silu": "--swiglu"}
_UNGATED = {"gelu_new": "", "gelu_pytorch_tanh": "", "relu2": "--squared-relu"}
"""Activations that arguments say; Megatron's own is GELU by its tangent."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "attn_logit_softcapping": (None,),
    "clip_qkv": (None,),
    "embedding_multiplier": (1,),
    "final_logit_softcapping": (None,),
    "llama_4_scaling_beta": (None, 0),
    "logits_scaling": (1,),
    "qk_layernorm": (False,),
    "residual_multiplier": (1,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "use_parallel_residual": (False,),
}
"""Fields that no argument says, with the values that change nothing."""
_NOT_KNOWN = (
    ("rope", "--rotary-base", "rope_theta", "10000"),
    ("sigmoid", "--moe-router-topk-scaling-factor", "routed_scaling_factor", "1"),
)
"""Arguments that change no byte, and are not known of a model whose sizes alone are: of a rotation
or a router of what kind, the field of its config.json, and what is taken where they are not
given."""
_NORMED_TWICE = (
    "queries without a latent are normed once more by --qk-layernorm, without which latents of "
    "keys are not"
)
"""Source: ``_resolve_mla_qk_layernorm`` in ``core/transformer/mla_qk_norm_config.py``."""
_PREDICTS_MORE = (
    "the module that predicts a token more (num_nextn_predict_layers), as transformers leaves it "
    "out; --mtp-num-layers 1 adds it"
)


class Said(NamedTuple):
    """A model in Megatron-LM's words.

    Attributes:
        words: Its arguments.
        not_known: Others that change no byte, which its configuration leaves out: a sentence each.
        left_out: What of it these do not say: a sentence each. It changes next to no byte and
            operation, or transformers' own class leaves it out too.
        num_more: Parameters that these make beside those that its classes count; fewer are
            negative.
    """

    words: tuple[str, ...]
    not_known: tuple[str, ...]
    left_out: tuple[str, ...]
    num_more: int


def model_arguments(model: ModelSpec) -> Said:
    """Say a model.

    Raises UnsupportedError: Megatron-LM's arguments do not make it.
    """
    facts = facts_of(model)
    record = record_of(model.model_type)
    fields = record.sizes({**facts.filled, **model.hf_config})
    _check_fields(model, fields)
    turned, told = rotary.words(model, facts, fields)
    routed, unlike, num_more = routed_words(model, facts, fields)
    words = [
        "--num-layers", model.num_layers, "--hidden-size", model.hidden_size,
        "--num-attention-heads", model.num_heads, "--ffn-hidden-size", model.intermediate_size,
        "--kv-channels", model.head_dim, *_activation(model, facts, fields), *facts.words,
        *_biases(model, facts, fields), *_norms(facts, fields),
    ]  # fmt: skip
    if model.num_kv_heads != model.num_heads and not facts.is_latent:
        words += ["--group-query-attention", "--num-query-groups", model.num_kv_heads]
    if not model.tied_embeddings:
        words.append("--untie-embeddings-and-output-weights")
    for field, flag in _PLAIN.items():
        words += [flag, fields[field]] if fields.get(field) is not None else []
    words += [
        *turned,
        *routed,
        *(_latent(fields) if facts.is_latent else ()),
        *_windows(model, fields),
    ]
    if facts.is_latent and not fields.get("q_lora_rank"):
        num_more += model.num_layers * model.hidden_size
        unlike.append(_NORMED_TWICE)
    unlike += [_PREDICTS_MORE] if fields.get("num_nextn_predict_layers") else []
    not_known = tuple(
        f"{flag}, which is {field} in its config.json (else {default})"
        for kind, flag, field, default in _NOT_KNOWN
        if kind in {facts.router, *facts.words}
        and flag not in words
        and field not in fields
        and (kind != facts.router or "--num-experts" in words)
    )
    return Said(tuple(map(str, words)), not_known, (*told, *unlike), num_more)


def _check_fields(model: ModelSpec, fields: Mapping[str, Any]) -> None:
    """Refuse what a configuration asks for and no argument says."""
    for field, value in {**fields, **rotary.parameters(fields)}.items():
        neutral = _NEUTRAL.get(field, (value,))
        if field == "attention_multiplier":
            neutral = (model.head_dim**-0.5,)
        if value not in neutral:
            raise unsaid(model, f"no argument of pretrain_gpt.py says {field}={value}")


def _activation(model: ModelSpec, facts: Facts, fields: Mapping[str, Any]) -> tuple[str, ...]:
    if "--quick-geglu" in facts.words:
        return ()
    named = next(
        (fields[each] for each in ("hidden_act", "activation_function") if fields.get(each)),
        facts.activation,
    )
    known = _GATED if facts.is_gated else _UNGATED
    if named not in known:
        what = f"a gate of {named}" if facts.is_gated else named
        raise unsaid(model, f"no argument of pretrain_gpt.py says {what} (hidden_act)")
    return (known[named],) if known[named] else ()


def _biases(model: ModelSpec, facts: Facts, fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Say which products have biases: all of them, queries, keys and values alone, or none."""
    has = [each is True or bool(each and fields.get(each)) for each in facts.biases]
    queries, out, mlp = has
    if all(has):
        return ()
    if out or mlp or (queries and facts.is_latent):
        named = " and ".join(
            dict.fromkeys(
                str(field) for field, is_there in zip(facts.biases, has, strict=True) if is_there
            )
        )
        raise unsaid(
            model,
            f"biases of {named} alone have no argument (those of every product have one, and those "
            f"of queries, keys and values)",
        )
    return ("--disable-bias-linear", *(("--add-qkv-bias",) if queries else ()))


def _norms(facts: Facts, fields: Mapping[str, Any]) -> tuple[str, ...]:
    is_normed = facts.is_latent or facts.norms_heads is True or fields.get(str(facts.norms_heads))
    return ("--qk-layernorm",) if is_normed else ()


def _latent(fields: Mapping[str, Any]) -> list[object]:
    query = ["--q-lora-rank", fields["q_lora_rank"]] if fields.get("q_lora_rank") else []
    return [
        "--multi-latent-attention", *query, "--kv-lora-rank", fields["kv_lora_rank"],
        "--qk-head-dim", fields["qk_nope_head_dim"], "--qk-pos-emb-head-dim",
        fields["qk_rope_head_dim"], "--v-head-dim", fields["v_head_dim"],
    ]  # fmt: skip


def _windows(model: ModelSpec, fields: Mapping[str, Any]) -> list[object]:
    """Say how far back tokens see, and in which layers they see all; a token sees itself, too."""
    each = [window or 0 for window in windows(model)]
    if model.model_type not in ARCHITECTURES and "layer_types" not in fields:
        first = fields.get("max_window_layers", 0)
        is_off = fields.get("use_sliding_window") is False
        each = [0 if is_off or i < first else window for i, window in enumerate(each)]
    has = [0 < window < model.max_seq_len for window in each]
    if not any(has):
        return []
    width = next(window for window, is_there in zip(each, has, strict=True) if is_there)
    words: list[object] = ["--window-size", f"{width - 1},0"]
    if not all(has):
        n = every_nth([not is_there for is_there in has])
        words += ["--window-attn-skip-freq", n or listed(has)]
    return words
