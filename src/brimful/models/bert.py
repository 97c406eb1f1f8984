"""BERT type encoders: LayerNorm after each part, learned positions, GELU, and a head.

Source: ``transformers.models.bert``; Devlin et al. 2018, arXiv:1810.04805.
"""

from typing import Any

from brimful.models.architecture import Architecture
from brimful.models.layout import (
    Layout,
    Parameter,
    Parameters,
    embedding,
    layer_norm,
    linear,
    runs,
)
from brimful.models.masked import has_masked_head
from brimful.models.score import num_labels
from brimful.models.spec import ModelSpec

MODEL_TYPE = "bert"
_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}


def read(name: str, config: dict[str, Any]) -> ModelSpec:
    """Take the dimensions out of a configuration, with the defaults of ``BertConfig``."""
    sizes = {**_DEFAULTS, **config}
    return ModelSpec(
        name=name,
        model_type=MODEL_TYPE,
        hidden_size=sizes["hidden_size"],
        intermediate_size=sizes["intermediate_size"],
        num_layers=sizes["num_hidden_layers"],
        num_heads=sizes["num_attention_heads"],
        num_kv_heads=sizes["num_attention_heads"],
        head_dim=sizes["hidden_size"] // sizes["num_attention_heads"],
        vocab_size=sizes["vocab_size"],
        max_seq_len=sizes["max_position_embeddings"],
        # a classifier has no output layer to tie
        tied_embeddings=has_masked_head(config) and bool(sizes.get("tie_word_embeddings", True)),
        hf_config=config,
    )


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters: 4 (h^2 + h) attention, 2 h f + f + h MLP, norms 2 h each.

    A classifier's pooler is h^2 + h, its head h + 1 for every class. Before hidden tokens are told
    stand h^2 + 3 h, and a bias for every word; the words' weight is the embedding's.
    """
    hidden, is_masked = spec.hidden_size, has_masked_head(spec.hf_config)
    pooler = linear("bert.pooler.dense", hidden, hidden, bias=True)
    classes = linear("classifier", hidden, num_labels(spec.hf_config), bias=True)
    return Layout(
        embedding=_embedding(spec),
        blocks=runs("bert.encoder.layer", [_block(spec)] * spec.num_layers),
        final=_telling(spec) if is_masked else pooler,
        head=_words(spec) if is_masked else classes,
    )


def _telling(spec: ModelSpec) -> Parameters:
    """Lay out what stands before the words' scores, with the bias that they have where tied."""
    hidden, head = spec.hidden_size, "cls.predictions"
    return (
        Parameter(f"{head}.bias", (spec.vocab_size,), "other", learns=spec.tied_embeddings),
        *linear(f"{head}.transform.dense", hidden, hidden, bias=True),
        *layer_norm(f"{head}.transform.LayerNorm", hidden),
    )


def _words(spec: ModelSpec) -> Parameters:
    """Lay out the words' weight, and its bias, where it is not the embedding's."""
    decoder = linear("cls.predictions.decoder", spec.hidden_size, spec.vocab_size, bias=True)
    return () if spec.tied_embeddings else decoder


def _embedding(spec: ModelSpec) -> Parameters:
    hidden = spec.hidden_size
    num_types = {**_DEFAULTS, **spec.hf_config}["type_vocab_size"]
    return (
        *embedding("bert.embeddings.word_embeddings", spec.vocab_size, hidden),
        *embedding("bert.embeddings.position_embeddings", spec.max_seq_len, hidden),
        *embedding("bert.embeddings.token_type_embeddings", num_types, hidden),
        *layer_norm("bert.embeddings.LayerNorm", hidden),
    )


def _block(spec: ModelSpec) -> Parameters:
    hidden, width = spec.hidden_size, spec.intermediate_size
    return (
        *linear("attention.self.query", hidden, hidden, bias=True),
        *linear("attention.self.key", hidden, hidden, bias=True),
        *linear("attention.self.value", hidden, hidden, bias=True),
        *linear("attention.output.dense", hidden, hidden, bias=True),
        *layer_norm("attention.output.LayerNorm", hidden),
        *linear("intermediate.dense", hidden, width, bias=True),
        *linear("output.dense", width, hidden, bias=True),
        *layer_norm("output.LayerNorm", hidden),
    )


ARCHITECTURE = Architecture(
    model_type=MODEL_TYPE,
    read=read,
    layout=layout,
    task="sequence-classification",
    heads_cut_stream=True,
)
