"""What a forward without gradients holds at once beside weights and cache, in closed form.

Nothing is kept for a backward pass, so that the peak lies in the last block, when the cache of all
blocks is there, or at the logits. A block is described by its moments: what its code in
``transformers`` (5.23) holds while one thing is computed, with fused attention; the moment that
holds most counts. ``tests/cost/test_reading.py`` compares with the simulation.

Units: h, f, q, k are widths in numbers per token: of the residual stream, of the MLP, of all query
heads, of all key heads. The block's own input, and the embedding's output, which the model's
``forward`` keeps until it returns, are alive in every moment.
"""

from collections.abc import Iterator
from typing import NamedTuple

from brimful.cost.formats import CHUNK, DYNAMIC, SERVED, Compute, WeightsFormat
from brimful.cost.held import packed_weights, rotary_width
from brimful.cost.kv_cache import cache_layers
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.trained import NF4_BLOCK, has_biases
from brimful.hardware.cluster import AMPERE, Device
from brimful.hardware.cuda_chips import version_of
from brimful.hardware.cuda_libraries import libraries
from brimful.models.architecture import BlockCode
from brimful.models.architectures import named_with, record_of
from brimful.models.config import experts_of
from brimful.models.layout import Parameter
from brimful.models.spec import ModelSpec

KNOWN = tuple(sorted(named_with("code")))
"""Architectures whose forward has a formula."""
_ACTIVATIONS = {"conv1d": ("activation_function", {"gelu_new"})}
_GATED = ("hidden_act", {"silu", "gelu", "gelu_pytorch_tanh", "relu"})
"""Field and values of the activations whose moments are known: for gates, those of one kernel."""
_INDEX_BYTES = 8
_MLP, _ATTENTION = "MLP of the last block", "attention of the last block"


class Sizes(NamedTuple):
    """How much text there is, and in which types.

    Attributes:
        num_sequences: Sequences at once.
        prompt_len: Tokens of each that one forward reads.
        seq_len: Tokens of each in the end.
        element_bytes: Of one number of an activation.
        compute: Its type.
        weights_format: How the weights of linear layers are held.
        fuses_groups: Whether a fused kernel takes fewer key heads than query heads
            (``fuses_groups``); else the scores of all tokens with all are written out.
    """

    num_sequences: int
    prompt_len: int
    seq_len: int
    element_bytes: int
    compute: Compute
    weights_format: WeightsFormat
    fuses_groups: bool


class Moment(NamedTuple):
    """Bytes that are alive beside weights and cache, and when."""

    where: str
    num_bytes: int


class Part(NamedTuple):
    """A moment of a block, before it is known how many tokens there are.

    Attributes:
        where: What is computed.
        width: Numbers per token that are alive beside the block's input and the embedding.
        product: Name of the weight that is multiplied by; empty where none is.
    """

    where: str
    width: int
    product: str = ""


def fuses_groups(device: Device, *, element_bytes: int) -> bool:
    """Whether fused attention on a device takes grouped heads, as ``enable_gqa`` asks for.

    FlashAttention and cuDNN do, in 16 bits; the memory-efficient kernel does not, so that fp32
    writes the scores out. On a CPU its one fused kernel does.

    Source: ``use_gqa_in_sdpa`` of transformers; ``sdp_utils.cpp`` of PyTorch.
    """
    if device.kernels != "cuda":
        return True
    return element_bytes < FP32_BYTES


def missing_reading(spec: ModelSpec, sizes: Sizes, device: Device) -> str:
    """Say why a forward has no formula; empty where it has one."""
    if sizes.weights_format in SERVED:
        return ""
    reasons = (*_missing_on(spec, sizes, device), *_missing_of(spec, sizes))
    return reasons[0] if reasons else ""


def _missing_on(spec: ModelSpec, sizes: Sizes, device: Device) -> Iterator[str]:
    if device.kernels == "cuda" and device.capability < AMPERE:
        yield f"attention on a card of compute capability {device.capability} has no formula"
    if device.kernels == "cpu" and sizes.weights_format == "llm-int8":
        yield "LLM.int8() on CPU kernels has no formula: what it takes hangs on outliers"
    if sizes.weights_format in DYNAMIC:
        yield f"rounding the inputs of {sizes.weights_format} has no formula"
    if device.kernels == "cpu" and _code(spec).is_wide:
        yield f"the forward of {spec.model_type} on CPU kernels has no formula"


def _missing_of(spec: ModelSpec, sizes: Sizes) -> Iterator[str]:
    if record_of(spec.model_type).code is None:
        yield f"the forward of {spec.model_type} has no formula"
        return
    field, known = _ACTIVATIONS.get(_code(spec).matrices, _GATED)
    activation = spec.hf_config.get(field)
    if activation is not None and activation not in known:
        yield f"the forward of {spec.model_type} with {field}={activation} has no formula"
    shortest = min(layer.window or sizes.seq_len for layer in cache_layers(spec))
    if shortest < sizes.seq_len:
        yield (
            f"a window of {shortest} is shorter than {sizes.seq_len} tokens, and what its mask "
            f"and its kernel take has no formula"
        )


def prefill_transient(spec: ModelSpec, sizes: Sizes) -> Moment:
    """Return what the forward over whole prompts holds at most beside weights and cache."""
    if sizes.weights_format in SERVED:
        return _chunk(spec, sizes, num_tokens=min(CHUNK, sizes.num_sequences * sizes.prompt_len))
    return _most(_moments(spec, sizes, length=sizes.prompt_len, total=sizes.prompt_len))


def decode_transient(spec: ModelSpec, sizes: Sizes) -> Moment:
    """Return what the last token's forward holds at most.

    The cache of the last block is copied to make room: the old values beside the new ones. Known
    error: bitsandbytes has kernels that make no copy of a 4-bit weight for few rows, on some cards;
    the copy is counted.
    """
    if sizes.weights_format in SERVED:
        return _chunk(spec, sizes, num_tokens=sizes.num_sequences)
    layer, element = cache_layers(spec)[-1], sizes.element_bytes
    h, q = spec.hidden_size, spec.num_heads * spec.head_dim
    old = layer.value_width * (sizes.seq_len - 1)
    joined = _code(spec).matrices == "conv1d"
    block = _base(spec) + (4 * h if joined else h + q + 2 * layer.key_width)
    num_bytes = sizes.num_sequences * (old + block) * element
    grown = Moment("values of the last block are copied to make room for a token", num_bytes)
    return _most((*_moments(spec, sizes, length=1, total=sizes.seq_len), grown))


def _chunk(spec: ModelSpec, sizes: Sizes, *, num_tokens: int) -> Moment:
    """Bound what an engine's forward over some tokens holds, whose kernels are not known here.

    Every number that a block makes of a token, as if all were alive at once and in fp32: the stream
    and its norm, queries twice, keys, values, attention's result, the router's scores, and of every
    chosen expert its gates, its inner values and its result.
    """
    experts, h = experts_of(spec), spec.hidden_size
    heads = 3 * spec.num_heads * spec.head_dim + 2 * spec.num_kv_heads * spec.head_dim
    routed = experts.num_experts_per_token * (3 * experts.width + h)
    width = 3 * h + heads + experts.num_experts + routed
    logits = spec.vocab_size * sizes.num_sequences * (sizes.element_bytes + FP32_BYTES)
    return Moment(
        f"at most, {num_tokens:,} tokens a forward", width * num_tokens * FP32_BYTES + logits
    )


def workspace_bytes(spec: ModelSpec, weights_format: WeightsFormat, device: Device) -> int:
    """Return what cuBLAS keeps for the one thread that runs forward.

    Linear layers with biases have cuBLASLt's beside it, but for LLM.int8(), which adds them itself.
    """
    if device.kernels != "cuda":
        return 0
    cublas = libraries().cublas_bytes(version_of(device.capability))
    is_fused = has_biases(spec) and weights_format != "llm-int8"
    return cublas + is_fused * min(libraries().cublas_lt_bytes, cublas)


def _code(spec: ModelSpec) -> BlockCode:
    return record_of(spec.model_type).block


def _most(moments: Iterator[Moment] | tuple[Moment, ...]) -> Moment:
    return max(moments, key=lambda moment: moment.num_bytes)


def _base(spec: ModelSpec) -> int:
    """Return the widths that every moment of a block holds: its input, and the embedding."""
    return spec.hidden_size * (2 if spec.num_layers > 1 else 1)


def _moments(spec: ModelSpec, sizes: Sizes, *, length: int, total: int) -> Iterator[Moment]:
    """Yield the moments of a forward over ``length`` tokens that see ``total`` of each sequence."""
    tokens, element = sizes.num_sequences * length, sizes.element_bytes
    beside = _INDEX_BYTES * (tokens + length) + _position_width(spec, element) * length * element
    beside += tokens * _routing_bytes(spec, element)
    weights = {p.name: p for p in packed_weights(spec, sizes.weights_format, sizes.compute)}
    for part in (*_attention(spec, element), *_mlp(spec, element)):
        weight = weights.get(f"{part.product}.weight")
        copied = 0 if weight is None else _product_bytes(weight, sizes, tokens=tokens)
        yield Moment(part.where, (_base(spec) + part.width) * tokens * element + copied + beside)
    if spec.num_kv_heads < spec.num_heads and not sizes.fuses_groups:
        if length == 1:
            # What the same holds for one token: values, keys and scaled keys for every head.
            width = 3 * spec.num_heads * spec.head_dim
            num_bytes = sizes.num_sequences * total * width * sizes.element_bytes
            yield Moment(f"{_ATTENTION}: keys and values for every head", num_bytes)
        else:
            yield _scores(spec, sizes, length=length, beside=beside)
    hidden = spec.hidden_size * tokens * element
    logits = spec.vocab_size * sizes.num_sequences * (element + FP32_BYTES)
    yield Moment("logits of the last token and their fp32 copy", hidden + logits)


def _scores(spec: ModelSpec, sizes: Sizes, *, length: int, beside: int) -> Moment:
    """Return what attention holds that writes out all scores of a prompt.

    Keys and values stand there for every query head, the scores twice and as a mask.

    Source: ``_scaled_dot_product_attention_math`` in ``aten/src/ATen/native/transformers``.
    """
    width = _base(spec) + _before_scores(spec) + 4 * spec.num_heads * spec.head_dim
    scores = (2 * FP32_BYTES + 1) * spec.num_heads * sizes.num_sequences + FP32_BYTES
    held = width * sizes.num_sequences * length * sizes.element_bytes
    return Moment(f"{_ATTENTION}: scores written out", held + scores * length**2 + beside)


def _before_scores(spec: ModelSpec) -> int:
    """Return what a block holds beside queries, keys and values: its normed input, if any."""
    if not _code(spec).is_normed_before:
        return 0
    if _code(spec).matrices == "joined":
        key_width = spec.num_kv_heads * spec.head_dim
        return spec.hidden_size + spec.num_heads * spec.head_dim + 2 * key_width
    return spec.hidden_size


def _position_width(spec: ModelSpec, element: int) -> int:
    """Return the width of what all blocks know of a position: cosine and sine, or an embedding."""
    width = rotary_width(spec)
    if not width:
        return spec.hidden_size
    return 2 * width * (FP32_BYTES // element if _code(spec).is_wide else 1)


def _routing_bytes(spec: ModelSpec, element: int) -> int:
    """Return what routing holds of a token: its scores twice, its experts, and their order."""
    experts = experts_of(spec)
    chosen = FP32_BYTES + 3 * _INDEX_BYTES
    return (element + FP32_BYTES) * experts.num_experts + chosen * experts.num_experts_per_token


def _product_bytes(weight: Parameter, sizes: Sizes, *, tokens: int) -> int:
    """Return what a product with a quantised weight holds beyond its input and its output.

    4 bits: the weight anew, and with double quantisation its scales in fp32. torchao's int8: the
    weight anew, then the output unscaled and scaled. LLM.int8(): the input in int8, the output in
    int32 and in fp16, or, before, the input in fp16, its magnitudes and which are outliers.
    torchao's int4 has a kernel that reads it packed.

    Source: ``gemm_4bit`` and ``int8_mixed_scaled_mm`` of ``bitsandbytes/backends``;
    ``int8_tensor.py`` of torchao.
    """
    first, last = weight.shape
    inputs, outputs = (first, last) if weight.kind == "conv1d" else (last, first)
    whole = weight.num_elements * sizes.element_bytes
    if sizes.weights_format == "nf4":
        return whole
    if sizes.weights_format == "nf4-double":
        return whole + -(-weight.num_elements // NF4_BLOCK) * FP32_BYTES
    if sizes.weights_format == "int8":
        return max(whole, outputs * tokens * sizes.element_bytes)
    if sizes.weights_format == "llm-int8":
        wide = 4 if sizes.compute == "fp16" else 6
        quantizing = wide * inputs - sizes.element_bytes * outputs
        return tokens * max(inputs + FP32_BYTES + wide * outputs, quantizing)
    return 0


def _norm(width: int, element: int) -> int:
    """Return what an RMSNorm holds beside its input: fp32 copies, or in fp32 the new values."""
    return 2 * width if element == FP32_BYTES else 4 * width


def _attention(spec: ModelSpec, element: int) -> Iterator[Part]:
    """Yield the moments of attention, less the keys and values that the cache has to come.

    Before the cache is extended the block's own part of it is not there, but is counted in it.
    """
    q, k = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    code = _code(spec)
    if code.matrices != "apart":
        yield from _conv1d_attention(spec) if code.matrices == "conv1d" else _joined_attention(spec)
        return
    h = spec.hidden_size if code.is_normed_before else 0
    yield Part(_ATTENTION, h + q - 2 * k, "self_attn.q_proj")
    if code.norms_heads:
        last = element < FP32_BYTES and code.is_wide
        yield Part(_ATTENTION, h + q + _norm(q, element) + last * q - 2 * k)
        yield Part(_ATTENTION, h + q + k + _norm(k, element) + last * k - 2 * k)
    yield Part(_ATTENTION, h + q + k - 2 * k, "self_attn.k_proj")
    yield Part(_ATTENTION, h + q + 2 * k - 2 * k, "self_attn.v_proj")
    # The moments at which queries, then keys, are rotated: x cos + rotated x sin.
    is_wide = code.is_wide and element < FP32_BYTES
    where = f"{_ATTENTION}: rotation"
    if is_wide:
        yield Part(where, h + 7 * q)
        yield Part(where, h + 3 * q + 6 * k)
    else:
        yield Part(where, h + 4 * q)
        yield Part(where, h + 2 * q + 3 * k)
    yield Part(_ATTENTION, h + 2 * q + FP32_BYTES * spec.num_heads // element)
    yield Part(_ATTENTION, h + 2 * q + spec.hidden_size, "self_attn.o_proj")


def _conv1d_attention(spec: ModelSpec) -> Iterator[Part]:
    h = spec.hidden_size
    yield Part(_ATTENTION, h + 3 * h - 2 * h, "attn.c_attn")
    yield Part(_ATTENTION, h + 3 * h + h + h, "attn.c_proj")


def _joined_attention(spec: ModelSpec) -> Iterator[Part]:
    """Yield the moments of attention whose queries, keys and values are views of one product."""
    h, q, k = spec.hidden_size, spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    yield Part(_ATTENTION, h + q, "self_attn.qkv_proj")
    yield Part(f"{_ATTENTION}: rotation", h + q + 3 * q)
    # cuDNN returns heads before tokens, so that the result is copied.
    yield Part(f"{_ATTENTION}: result in the order of tokens", h + q + 2 * k + 3 * q)
    yield Part(_ATTENTION, h + q + 2 * k + q + q + h, "self_attn.o_proj")


def _mlp(spec: ModelSpec, element: int) -> Iterator[Part]:
    """Yield the moments of the MLP, of which the residual stream and its norm are part."""
    h, f = spec.hidden_size, spec.intermediate_size
    code = _code(spec)
    if not code.is_normed_before:
        yield from _gated(h, f, outputs=h)
        yield Part("norm of the last block", 2 * h + _norm(h, element) + h)
        return
    yield Part("norm of the last block", h + _norm(h, element))
    if code.matrices == "conv1d":
        # What attention returned lives as long as the block.
        yield Part(_MLP, 3 * h + f, "mlp.c_fc")
        yield Part(f"{_MLP}: GELU written out", 3 * h + 4 * f)
        yield Part(_MLP, 3 * h + f + h, "mlp.c_proj")
    elif code.matrices == "joined":
        yield Part(_MLP, 2 * h + 2 * f, "mlp.gate_up_proj")
        yield Part(f"{_MLP}: gate times up", 2 * h + 4 * f)
        yield Part(_MLP, 2 * h + 3 * f + h, "mlp.down_proj")
    elif experts_of(spec).num_experts:
        yield from _experts(spec, element)
    else:
        yield from _gated(2 * h, f, outputs=h)


def _gated(beside: int, width: int, *, outputs: int) -> Iterator[Part]:
    yield Part(_MLP, beside + width, "mlp.gate_proj")
    yield Part(_MLP, beside + 2 * width, "mlp.up_proj")
    yield Part(f"{_MLP}: gate times up", beside + 3 * width)
    yield Part(_MLP, beside + width + outputs, "mlp.down_proj")


def _experts(spec: ModelSpec, element: int) -> Iterator[Part]:
    """Yield the moments of experts that run as one grouped product over tokens x top k rows.

    Where shares of the experts are fp32 the results are, too, once multiplied by them.

    Source: ``grouped_mm_experts_forward`` of ``transformers/integrations/moe.py``.
    """
    h, experts = spec.hidden_size, experts_of(spec)
    top_k, width = experts.num_experts_per_token, experts.width
    wide = FP32_BYTES // element if _code(spec).wide_shares else 1
    yield Part("experts of the last block: gate times up", 2 * h + top_k * (h + 4 * width))
    yield Part(
        "experts of the last block: results put in order", 2 * h + top_k * (2 + 2 * wide) * h
    )
