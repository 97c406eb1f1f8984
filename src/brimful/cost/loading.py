"""What loading holds at once: a weight is quantised where it lies, with its full copy beside it.

What is not quantised is there first, then one weight after the other is made, in order. The moment
that holds most is mostly the last large one, or the end. ``tests/cost/test_loading.py`` compares
with the simulation, to the byte.

Units: n and r are numbers and rows of the weight, e the bytes of a number that is computed with.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from brimful.cost.formats import COMPUTE_BYTES, Compute, WeightsFormat
from brimful.cost.held import INT4_GROUP, Held, Packed, held_bytes, packed_weights
from brimful.cost.recipes import FP32_BYTES
from brimful.cost.trained import NF4_BLOCK
from brimful.models.config import layout_of
from brimful.models.layout import Parameter
from brimful.models.spec import ModelSpec
from brimful.techniques.quantization import GROUP_SIZE, ROW

_FP16_BYTES, _TABLE_BYTES, _NESTED_TABLE_BYTES = 2, 16 * 4, 256 * 4
_BOUNDS_BYTES = _TABLE_BYTES + 16 * 8 + 15 * 4
"""The values of nf4, their order and what lies between them, on a CPU."""
ALL_LOADED = "all weights are there"


class Loading(NamedTuple):
    """The moment of loading that holds most.

    Attributes:
        held: What is there of the model by then.
        transient: Bytes beside it.
        where: What happens.
    """

    held: Held
    transient: int
    where: str

    @property
    def total(self) -> int:
        """Of all."""
        return self.held.total + self.transient


class _Weight(NamedTuple):
    """What is being quantised; ``copy`` are the bytes of a copy that has rows first, if any."""

    numbers: int
    rows: int
    element: int
    is_fp16: bool
    copy: int
    packed: Packed


class _Moment(NamedTuple):
    """Bytes there beside the full weight: of the packed one, its constants, and all else."""

    weight: int
    constants: int
    transient: int


def largest_load(
    spec: ModelSpec, weights_format: WeightsFormat, compute: Compute, *, kernels: str
) -> Loading:
    """Return the moment of loading that holds most.

    Where quantising has no formula (``has_load_formula``) it is the end.

    ``weights_format``: how the weights of linear layers in blocks are held. ``compute``: type of
    all else, and of the weight that is quantised. ``kernels``: whose they are: ``cuda`` or ``cpu``.
    Raises UnsupportedError: the architecture has no layout.
    """
    held = held_bytes(spec, weights_format, compute)
    end = Loading(held, 0, ALL_LOADED)
    quantize = _QUANTIZING.get((weights_format, kernels))
    packed = packed_weights(spec, weights_format, compute)
    if quantize is None or not packed:
        return end
    most, done = end, held._replace(quantized=0, constants=0)
    for run in layout_of(spec).blocks:
        made = [(p, packed[p]) for p in run.parameters if p in packed]
        # Of equal blocks the last finds most there.
        done = _add(done, (each for _, each in made), times=run.num_blocks - 1)
        for parameter, each in made:
            found = _moments(done, parameter, _weight(parameter, each, compute), quantize)
            most = max(most, *found, key=lambda moment: moment.total)
            done = _add(done, (each,), times=1)
    return most


def has_load_formula(weights_format: WeightsFormat, *, kernels: str) -> bool:
    """Whether what loading holds at once is known."""
    return weights_format in COMPUTE_BYTES or (weights_format, kernels) in _QUANTIZING


def _add(held: Held, packed: Iterable[Packed], *, times: int) -> Held:
    """Return what is there once some weights are made, each a number of times."""
    for each in packed:
        held = held._replace(
            quantized=held.quantized + times * each.weight,
            constants=held.constants + times * each.constants,
        )
    return held


def _weight(parameter: Parameter, packed: Packed, compute: Compute) -> _Weight:
    is_transposed = parameter.kind == "conv1d"
    return _Weight(
        numbers=parameter.num_elements,
        rows=parameter.shape[-1 if is_transposed else 0],
        element=COMPUTE_BYTES[compute],
        is_fp16=compute == "fp16",
        copy=is_transposed * parameter.num_elements * COMPUTE_BYTES[compute],
        packed=packed,
    )


def _moments(
    done: Held, parameter: Parameter, weight: _Weight, quantize: "_Quantize"
) -> Iterator[Loading]:
    where = f"{parameter.name.removesuffix('.weight')} of the last block is quantised"
    for moment in quantize(weight):
        there = _add(done, (Packed(moment.weight, moment.constants),), times=1)
        yield Loading(there, weight.numbers * weight.element + moment.transient, where)


def _int8(weight: _Weight, *, widened: int) -> tuple[_Moment, ...]:
    """Products of numbers and scales in fp32, and rounded; on a CPU a row's zeros widened."""
    wide = 2 * FP32_BYTES * weight.numbers + widened * FP32_BYTES * weight.rows
    return (_Moment(0, weight.packed.constants, wide),)


def _int4(weight: _Weight) -> tuple[_Moment, ...]:
    """Numbers less the least of their group, divided; or clamped, then as int32."""
    n, e = weight.numbers, weight.element
    scales = e * (n // INT4_GROUP)
    divided, whole = 2 * e * n + 3 * scales, (e + FP32_BYTES) * n + 2 * scales
    return _Moment(0, 0, divided), _Moment(0, 0, whole)


def _nf4_written_out(weight: _Weight, *, double: bool) -> tuple[_Moment, ...]:
    """Numbers in fp32, scaled, as int32 places in the table, as bytes, and half of these shifted.

    Source: ``quantize_4bit`` in ``bitsandbytes/backends/default/ops.py`` (0.50).
    """
    n, scales = weight.numbers, _scale_bytes(weight)
    widened = FP32_BYTES * n if weight.element < FP32_BYTES else 0
    beside = weight.copy + widened + 2 * FP32_BYTES * n + n + weight.packed.weight + _BOUNDS_BYTES
    constants = 0 if double else scales
    return (_Moment(weight.packed.weight, constants, beside + scales - constants),)


def _nf4(weight: _Weight) -> tuple[_Moment, ...]:
    """One kernel."""
    return (_Moment(weight.packed.weight, weight.packed.constants, weight.copy),)


def _nf4_double(weight: _Weight) -> tuple[_Moment, ...]:
    """One kernel, then scales in fp32, the same less their mean, and a copy of the table."""
    packed, scales = weight.packed, _scale_bytes(weight)
    return (
        _Moment(packed.weight, 0, weight.copy + scales),
        _Moment(packed.weight, packed.constants, 2 * scales + _NESTED_TABLE_BYTES),
    )


def _scale_bytes(weight: _Weight) -> int:
    return -(-weight.numbers // NF4_BLOCK) * FP32_BYTES


def _llm_int8(weight: _Weight) -> tuple[_Moment, ...]:
    """One kernel, which takes fp16."""
    packed, half = weight.packed, _FP16_BYTES * weight.numbers
    if weight.is_fp16:
        return (_Moment(packed.weight, packed.constants, weight.copy),)
    return _Moment(0, 0, weight.copy + half), _Moment(packed.weight, packed.constants, half)


def _dynamic(weight: _Weight, *, group: int, widened: int) -> tuple[_Moment, ...]:
    """As ``_int8`` in the type of the weight, whose zeros stand for a row or for a group."""
    zeros = weight.numbers // group if group else weight.rows
    wide = 2 * weight.element * weight.numbers + widened * weight.element * zeros
    return (_Moment(0, weight.packed.constants, wide),)


_Quantize = Callable[[_Weight], tuple[_Moment, ...]]
_QUANTIZING: dict[tuple[WeightsFormat, str], _Quantize] = {
    ("int8", "cpu"): partial(_int8, widened=1),
    ("int8", "cuda"): partial(_int8, widened=0),
    ("int4", "cpu"): _int4,
    ("nf4", "cpu"): partial(_nf4_written_out, double=False),
    ("nf4", "cuda"): _nf4,
    ("nf4-double", "cpu"): partial(_nf4_written_out, double=True),
    ("nf4-double", "cuda"): _nf4_double,
    ("llm-int8", "cuda"): _llm_int8,
    ("int8-dynamic", "cpu"): partial(_dynamic, group=ROW, widened=1),
    ("int8-dynamic", "cuda"): partial(_dynamic, group=ROW, widened=0),
    ("int4-dynamic", "cpu"): partial(_dynamic, group=GROUP_SIZE, widened=1),
    ("int4-dynamic", "cuda"): partial(_dynamic, group=GROUP_SIZE, widened=0),
}
"""What quantising one weight holds, moment by moment; torchao's int4 on CUDA is not known."""
