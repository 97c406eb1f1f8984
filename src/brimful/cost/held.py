"""What a model's weights take when it is loaded to write text, in every format, by item.

What each library quantises: the weights of linear layers in blocks, never the output layer, norms,
embeddings, biases, routers, and not the experts that transformers 5 holds in one stack. So in a
mixture most bytes stay as they are, whatever the format; but for MXFP4, which packs those alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from brimful.cost.formats import BITSANDBYTES, COMPUTE_BYTES, SERVED, Compute, WeightsFormat
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.trained import nf4_constants
from brimful.models.architecture import LATENT_ROTARY
from brimful.models.architectures import record_of
from brimful.models.config import buffers_of, experts_of, has_parameter_count, layout_of
from brimful.models.layout import Parameter, num_elements, parts
from brimful.models.spec import ModelSpec
from brimful.models.traced import find_built
from brimful.techniques.quantization import GROUP_SIZE

INT4_GROUP = 128
"""Weights of a row that share a scale: torchao's default. Rows that it does not divide stay."""
MXFP4_GROUP = 32
"""Weights that share a scale of a byte: "4.25 bits per parameter" of OpenAI's model card."""


class Held(NamedTuple):
    """Bytes of a loaded model.

    Attributes:
        quantized: Of weights that are quantised, packed.
        constants: Of what they cannot be read without: scales, zero points, tables.
        whole: Of all other parameters.
        buffers: Of what is no parameter: frequencies of rotary positions, balances of routers.
    """

    quantized: int
    constants: int
    whole: int
    buffers: int

    @property
    def total(self) -> int:
        """Of all."""
        return sum(self)


class Packed(NamedTuple):
    """Bytes of one quantised weight: its own, and of its constants."""

    weight: int
    constants: int


def held_bytes(spec: ModelSpec, weights_format: WeightsFormat, compute: Compute) -> Held:
    """Compute what a model takes once it is loaded.

    Tested equal to what transformers, bitsandbytes and torchao make on a CPU, storage by storage;
    ``int4`` by torchao's CPU layout, which holds as many bytes as its plain one on GPUs (its
    ``tile_packed_to_4d`` pads rows to 1024 beyond that).

    ``weights_format``: how the weights of linear layers in blocks are held. ``compute``: type of
    all else. Raises UnsupportedError: the architecture has no layout.
    """
    packed = packed_weights(spec, weights_format, compute)
    element = COMPUTE_BYTES[compute]
    quantized = constants = whole = 0
    for parameter, times in _in_place(spec):
        if (made := packed.get(parameter)) is not None:
            quantized += times * made.weight
            constants += times * made.constants
        else:
            whole += times * parameter.num_elements * element
    whole += _kept_in_fp32(spec, compute) + _wide_biases(spec, weights_format, compute)
    return Held(quantized, constants, whole, buffer_bytes(spec, compute))


def packed_weights(
    spec: ModelSpec, weights_format: WeightsFormat, compute: Compute
) -> dict[Parameter, Packed]:
    """Return the weights of blocks that are quantised, and what each then takes."""
    if weights_format in COMPUTE_BYTES:
        return {}
    found = {p for run in layout_of(spec).blocks for p in run.parameters}
    made = {p: pack(p, weights_format, compute) for p in found}
    return {p: packed for p, packed in made.items() if packed is not None}


def pack(parameter: Parameter, weights_format: WeightsFormat, compute: Compute) -> Packed | None:
    """Return what a weight of a block takes once quantised; None where it stays as it is.

    Source: ``quantize_4bit`` and ``int8_vectorwise_quant`` of ``bitsandbytes/functional.py``
    (0.50); ``Int8Tensor`` and ``Int4Tensor`` of ``torchao/quantization`` (0.18).
    """
    if weights_format in SERVED:
        return _mxfp4(parameter) if is_stack(parameter) else None
    kinds = {"linear", "conv1d"} if weights_format in BITSANDBYTES else {"linear"}
    if parameter.kind not in kinds or weights_format not in _PACKED:
        return None
    first, last = parameter.shape
    rows, columns = (last, first) if parameter.kind == "conv1d" else (first, last)
    return _PACKED[weights_format](rows, columns, COMPUTE_BYTES[compute])


def pack_experts(spec: ModelSpec, weights_format: WeightsFormat, compute: Compute) -> int:
    """Return the bytes that packing experts too would save, as checkpoints of others do.

    Each expert's matrix as a linear layer of its size (``pack``): a bound, as theirs differ in how
    many weights share a scale.
    """
    saved = 0
    for parameter, times in _in_place(spec):
        if is_stack(parameter) and weights_format in _PACKED:
            num_experts, rows, columns = parameter.shape
            made = _PACKED[weights_format](rows, columns, COMPUTE_BYTES[compute])
            if made is not None:
                whole = parameter.num_elements * COMPUTE_BYTES[compute]
                saved += times * (whole - num_experts * sum(made))
    return saved


def is_stack(parameter: Parameter) -> bool:
    """Whether a parameter is a stack of experts' matrices, and not of their biases."""
    return parameter.kind == "experts" and len(parameter.shape) > 2  # noqa: PLR2004 - no bias


def packed_bytes(spec: ModelSpec, weights_format: WeightsFormat, compute: Compute) -> int:
    """Return the bytes of a loaded model whose experts are packed as other weights are."""
    held = held_bytes(spec, weights_format, compute).total
    return held - pack_experts(spec, weights_format, compute)


def _mxfp4(parameter: Parameter) -> Packed | None:
    """Two weights a byte, a scale of a byte for each group of inputs: either side of a matrix.

    Source: ``Mxfp4GptOssExperts`` of ``transformers/integrations/mxfp4.py`` (5.23).
    """
    size = parameter.num_elements
    if any(side % MXFP4_GROUP for side in parameter.shape[1:]):
        return None
    return Packed(size // 2, size // MXFP4_GROUP)


def _wide_biases(spec: ModelSpec, weights_format: WeightsFormat, compute: Compute) -> int:
    """Return what experts' biases take beyond their type: beside MXFP4 they are fp32."""
    if weights_format not in SERVED:
        return 0
    biases = sum(
        times * parameter.num_elements
        for parameter, times in _in_place(spec)
        if parameter.kind == "experts" and not is_stack(parameter)
    )
    return biases * (FP32_BYTES - COMPUTE_BYTES[compute])


def _nf4(rows: int, columns: int, _element: int) -> Packed:
    size = rows * columns
    return Packed(-(-size // 2), nf4_constants(size, is_double=False))


def _nf4_double(rows: int, columns: int, _element: int) -> Packed:
    size = rows * columns
    return Packed(-(-size // 2), nf4_constants(size))


def _llm_int8(rows: int, columns: int, _element: int) -> Packed:
    return Packed(rows * columns, rows * FP32_BYTES)


def _int8(rows: int, columns: int, _element: int) -> Packed:
    return Packed(rows * columns, rows * (FP32_BYTES + 1))


def _int4(rows: int, columns: int, element: int) -> Packed | None:
    if columns % INT4_GROUP:
        return None
    return Packed(rows * columns // 2, 2 * (rows * columns // INT4_GROUP) * element)


def _int8_dynamic(rows: int, columns: int, element: int) -> Packed:
    return Packed(rows * columns, rows * (element + 1))


def _int4_dynamic(rows: int, columns: int, element: int) -> Packed | None:
    if columns % GROUP_SIZE:
        return None
    return Packed(rows * columns, rows * columns // GROUP_SIZE * (element + 1))


_PACKED: dict[WeightsFormat, Callable[[int, int, int], Packed | None]] = {
    "nf4": _nf4,
    "nf4-double": _nf4_double,
    "llm-int8": _llm_int8,
    "int8": _int8,
    "int4": _int4,
    "int8-dynamic": _int8_dynamic,
    "int4-dynamic": _int4_dynamic,
}
"""Of (rows, numbers in a row, bytes of an activation): what a weight takes; None: it stays."""


def _in_place(spec: ModelSpec) -> list[tuple[Parameter, int]]:
    """List every parameter with how often it is there; those of no block under their full names."""
    return [(parameter, times) for group, times in parts(layout_of(spec)) for parameter in group]


def _kept_in_fp32(spec: ModelSpec, compute: Compute) -> int:
    """Return what norms take beyond 16 bits where a class keeps them in fp32 beside fp16."""
    if compute != "fp16" or not record_of(spec.model_type).fp32_norms:
        return 0
    norms = num_elements(
        p for p, times in _in_place(spec) for _ in range(times) if p.kind == "norm"
    )
    return norms * (FP32_BYTES - COMPUTE_BYTES[compute])


def buffer_bytes(spec: ModelSpec, compute: Compute) -> int:
    """Return what buffers take.

    Rotary frequencies are held twice, as they are used and as they were, d / 2 fp32 numbers each.
    Some routers have a balance for every expert, fp32; some embeddings a scale. Of an architecture
    that no file here describes they are those of the model as it was built.

    Source: the rotary embedding of every class of ``transformers/models``; 5.23.
    """
    if not has_parameter_count(spec) and find_built(spec) is not None:
        return sum(buffers_of(spec, is_narrow=COMPUTE_BYTES[compute] < FP32_BYTES))
    buffers = 2 * (rotary_width(spec) // 2) * FP32_BYTES
    record = record_of(spec.model_type)
    if record.balanced_router:
        experts = experts_of(spec)
        buffers += experts.num_experts * len(experts.sparse_blocks) * FP32_BYTES
    if record.scaled_embedding:
        buffers += COMPUTE_BYTES[compute]
    return buffers


def rotary_width(spec: ModelSpec) -> int:
    """Return how many numbers of a head are rotated; 0 without rotary positions."""
    record = record_of(spec.model_type)
    if not record.rotates:
        return 0
    if record.is_latent:
        width: int = spec.hf_config.get(LATENT_ROTARY, 64)
        return width
    rotary: Any = spec.hf_config.get("rope_parameters")
    named = rotary if isinstance(rotary, dict) else {}
    share = spec.hf_config.get("partial_rotary_factor", named.get("partial_rotary_factor"))
    return int(spec.head_dim * (1.0 if share is None else share))
