"""Switch Transformers: T5 whose every few blocks route each token to one expert of many.

Source: ``transformers.models.switch_transformers``; Fedus et al. 2021, arXiv:2101.03961.
"""

from typing import Any

from brimful.models import t5
from brimful.models.architecture import Architecture
from brimful.models.experts import Experts
from brimful.models.layout import Kind, Layout, Parameters, linear
from brimful.models.spec import ModelSpec

MODEL_TYPE = "switch_transformers"
DEFAULTS = {
    "d_model": 768,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 12,
    "num_sparse_encoder_layers": 3,
    "num_decoder_layers": 12,
    "num_sparse_decoder_layers": 3,
    "num_heads": 12,
    "num_experts": 8,
    "expert_capacity": 64,
    "router_bias": False,
    "vocab_size": 32128,
    "relative_attention_num_buckets": 32,
}


def read(name: str, config: dict[str, Any]) -> ModelSpec:
    """Take the dimensions out of a configuration, with the defaults of its class."""
    return t5.read_stacks(name, config, model_type=MODEL_TYPE, defaults=DEFAULTS)


def sparse_blocks(num_blocks: int, *, num_asked: int) -> tuple[int, ...]:
    """List the blocks with experts among a stack's, as ``transformers`` places them.

    Every ``num_blocks // num_asked``-th block is sparse, the second of each group; where that is
    every block, all are.
    """
    step = num_blocks // num_asked if num_asked > 0 else num_blocks
    if step <= 0:
        return ()
    return tuple(i for i in range(num_blocks) if step == 1 or i % step == 1)


def experts(spec: ModelSpec) -> Experts:
    """Read the experts: each token is sent to one; the decoder's blocks follow the encoder's."""
    sizes = t5.sizes_of(spec.hf_config, DEFAULTS)
    num_encoder = sizes["num_layers"]
    encoder, decoder = _sparse_blocks(sizes)
    return Experts(
        num_experts=sizes["num_experts"],
        num_experts_per_token=1,
        width=spec.intermediate_size,
        num_shared_experts=0,
        sparse_blocks=(*encoder, *(num_encoder + i for i in decoder)),
    )


def layout(spec: ModelSpec) -> Layout:
    """Lay out the parameters: T5's, and in a sparse block a router of E (h + bias) and E MLPs.

    The router stays in fp32 (``build/switch.py``).
    """
    sizes = t5.sizes_of(spec.hf_config, DEFAULTS)
    encoder, decoder = _sparse_blocks(sizes)
    dense, sparse = _mlp(spec, "mlp", "linear"), _sparse_mlp(spec, sizes)
    return t5.stacks_layout(
        spec,
        sizes,
        encoder=[sparse if i in encoder else dense for i in range(sizes["num_layers"])],
        decoder=[sparse if i in decoder else dense for i in range(t5.num_decoder_blocks(sizes))],
        # transformers 5 unties the two stacks' embeddings along with the output layer.
        own_embeddings=not spec.tied_embeddings,
    )


def _sparse_blocks(sizes: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (
        sparse_blocks(sizes["num_layers"], num_asked=sizes["num_sparse_encoder_layers"]),
        sparse_blocks(t5.num_decoder_blocks(sizes), num_asked=sizes["num_sparse_decoder_layers"]),
    )


def _sparse_mlp(spec: ModelSpec, sizes: dict[str, Any]) -> Parameters:
    num_experts = sizes["num_experts"]
    name, bias = "mlp.router.classifier", bool(sizes["router_bias"])
    matrices = linear(name, spec.hidden_size, num_experts, bias=bias)
    return (
        *(part._replace(kind="router", wide=True) for part in matrices),
        *(
            part
            for i in range(num_experts)
            for part in _mlp(spec, f"mlp.experts.expert_{i}", "experts")
        ),
    )


def _mlp(spec: ModelSpec, name: str, kind: Kind) -> Parameters:
    hidden, width = spec.hidden_size, spec.intermediate_size
    matrices = (*linear(f"{name}.wi", hidden, width), *linear(f"{name}.wo", width, hidden))
    return tuple(part._replace(kind=kind) for part in matrices)


ARCHITECTURE = Architecture(
    model_type=MODEL_TYPE,
    read=read,
    layout=layout,
    experts=experts,
    task="seq2seq",
    depth_field="num_layers",
    bias_kernels=("eager",),
    balances_rows=True,
)
