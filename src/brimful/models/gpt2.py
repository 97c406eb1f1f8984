"""GPT-2 type decoders: LayerNorm, learned positions, GELU, multi-head attention with one fused qkv.

Source: ``transformers.models.gpt2``; Radford et al. 2019.
"""

from typing import Any

from brimful.models.architecture import ONE_KERNEL_GELU, Architecture, BlockCode, Shipped, Traced
from brimful.models.layout import Layout, Parameters, conv1d, embedding, layer_norm, linear, runs
from brimful.models.small_sizes import SmallSizes
from brimful.models.spec import ModelSpec

MODEL_TYPE = "gpt2"
_ALIASES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
}
_DEFAULTS = {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}


def read(name: str, config: dict[str, Any]) -> ModelSpec:
    """Take the dimensions out of a configuration, with the defaults of ``GPT2Config``."""
    config = {**config, **{k: config[v] for k, v in _ALIASES.items() if v in config}}
    config = {k: v for k, v in config.items() if k not in _ALIASES.values()}
    sizes = {**_DEFAULTS, **config}
    return ModelSpec(
        name=name,
        model_type=MODEL_TYPE,
        hidden_size=sizes["n_embd"],
        intermediate_size=sizes.get("n_inner") or 4 * sizes["n_embd"],
        num_layers=sizes["n_layer"],
        num_heads=sizes["n_head"],
        num_kv_heads=sizes["n_head"],
        head_dim=sizes["n_embd"] // sizes["n_head"],
        vocab_size=sizes["vocab_size"],
        max_seq_len=sizes["n_positions"],
        tied_embeddings=config.get("tie_word_embeddings", True),
        hf_config=config,
    )


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters: attention is 4 h^2 + 4 h, the MLP 2 h f + f + h, a LayerNorm 2 h."""
    hidden, vocab = spec.hidden_size, spec.vocab_size
    return Layout(
        embedding=(
            *embedding("transformer.wte", vocab, hidden),
            *embedding("transformer.wpe", spec.max_seq_len, hidden),
        ),
        blocks=runs("transformer.h", [_block(hidden, spec.intermediate_size)] * spec.num_layers),
        final=layer_norm("transformer.ln_f", hidden),
        head=() if spec.tied_embeddings else linear("lm_head", hidden, vocab),
    )


def _block(hidden: int, width: int) -> Parameters:
    return (
        *layer_norm("ln_1", hidden),
        *conv1d("attn.c_attn", hidden, 3 * hidden),
        *conv1d("attn.c_proj", hidden, hidden),
        *layer_norm("ln_2", hidden),
        *conv1d("mlp.c_fc", hidden, width),
        *conv1d("mlp.c_proj", width, hidden),
    )


def _small(sizes: SmallSizes, num_layers: int) -> dict[str, Any]:
    return {
        "n_layer": num_layers,
        "n_embd": sizes.heads * sizes.head_dim,
        "n_head": sizes.heads,
        "n_inner": sizes.intermediate,
        "vocab_size": sizes.vocab,
        "n_positions": sizes.positions,
    }


ARCHITECTURE = Architecture(
    model_type=MODEL_TYPE,
    read=read,
    layout=layout,
    depth_field="n_layer",
    heads_cut_stream=True,
    fused_matrices="c_attn",
    code=BlockCode(matrices="conv1d"),
    traced_as=MODEL_TYPE,
    traced={"activation_function": Traced("gelu_new", ("gelu_new", *ONE_KERNEL_GELU))},
    small=_small,
    shipped=Shipped(
        variants=("tied", "gelu-tied"),
        published=("gelu-tied",),
        before_ampere=("tied",),
        on_cpu=True,
        adapters=True,
    ),
)
