"""What of a model trains and what is frozen: shapes and bytes, by the model's layout.

With adapters every linear layer of a block has two more matrices, A of [rank, inputs] and B of
[outputs, rank] (Hu et al. 2021, arXiv:2106.09685; PEFT's ``all-linear``), with DoRA a vector too,
and all else is frozen.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from math import prod
from typing import Literal, NamedTuple

from msgspec.structs import replace

from brimful.cost.pieces import piece_shape
from brimful.cost.programs import HALF
from brimful.cost.recipes import RECIPES, Recipe
from brimful.cost.shapes import Shape, parameter_shapes
from brimful.models.config import buffers_of, idle_shapes, layout_of, parameter_count
from brimful.models.layout import (
    Layout,
    Parameter,
    Parameters,
    adaptable,
    all_parameters,
    parts,
    unnamed_parameters,
)
from brimful.models.module_paths import lies_in
from brimful.models.spec import ModelSpec
from brimful.models.targets import LINEAR, PACKED, is_target, takes_adapters
from brimful.techniques.optimizers import OPTIMIZERS, Updated
from brimful.values.job import QUANTIZED, Base, Job

HALF_BYTES = 2
_WIDE_BYTES = 4
DOUBLE: Base = "nf4-double"
NF4_BLOCK, NF4_NESTED_BLOCK = 64, 256
"""Weights that share a scale and scales that share one; tested equal to ``build.quantize.nf4``."""
_CODE_BYTES, _NESTED_CODE_BYTES, _OFFSET_BYTES, _SCALE_BYTES = 16 * 4, 256 * 4, 4, 4


class Frozen(NamedTuple):
    """Bytes of a base that does not train.

    Attributes:
        parameters: Of its weights.
        constants: Of what a quantised weight cannot be read without.
    """

    parameters: int
    constants: int


def trained_shapes(job: Job, tp: int = 1) -> list[Shape]:
    """List the shape of every parameter that trains, in the order of ``Module.parameters()``.

    ``tp``: devices that share every matrix; the shapes are those of the first one's pieces.
    """
    if job.adapter is None:
        every = parts(layout_of(job.model))
        pieces = (([piece_shape(p, tp) for p in some], times) for some, times in every)
        return [shape for some, times in pieces for shape in some * times]
    return _beside(job)


def _beside(job: Job, *, learning: bool = False) -> list[Shape]:
    """List the shape of every adapter's parameter.

    ``learning``: of those alone that a gradient comes to.
    """
    beside = (
        [shape for p in some for shape in adapter_shapes_of(job, p, learning=learning)] * times
        for some, times in adaptable(layout_of(job.model))
    )
    return [shape for run in beside for shape in run]


def learning_shapes(job: Job, tp: int = 1) -> list[Shape]:
    """List the shape of every parameter that a gradient comes to, in the order of the others.

    ``tp``: as of ``trained_shapes``.
    """
    if job.adapter is not None:
        return _beside(job, learning=True)
    every = unnamed_parameters(layout_of(job.model))
    return [piece_shape(p, tp) for p in every if p.learns]


def wide_shapes(job: Job, tp: int = 1) -> list[Shape]:
    """List the shapes of what a class holds in fp32 beside parameters that train in 16 bits.

    ``job``: what is trained; of adapters nothing is. ``tp``: as of ``trained_shapes``.
    """
    recipe = trained_recipe(job)
    if job.adapter is not None or recipe.parameter == _WIDE_BYTES or recipe.master:
        return []
    every = unnamed_parameters(layout_of(job.model))
    return [piece_shape(p, tp) for p in every if p.wide]


def num_whole(job: Job) -> int:
    """Count the numbers of a model's own that train beside adapters: of ``trained_modules``.

    ``job``: what is trained, of a model that has a layout.
    """
    named = () if job.adapter is None else job.adapter.trained_modules
    return sum(
        parameter.num_elements
        for parameter in (all_parameters(layout_of(job.model)) if named else ())
        if lies_in(parameter.name.rpartition(".")[0], named)
    )


def trained_parameters(job: Job, tp: int = 1) -> list[Updated]:
    """List what trains as an optimizer sees it, in the order of ``trained_shapes``."""
    if job.adapter is not None:
        return [told_beside(job, shape) for shape in trained_shapes(job, tp)]
    layout = layout_of(job.model)
    blocks = {id(some) for some, _ in adaptable(layout)}
    every = (
        [told(job, each, piece_shape(each, tp), in_block=id(some) in blocks) for each in some]
        * times
        for some, times in parts(layout)
    )
    return [each for some in every for each in some]


def told(job: Job, parameter: Parameter, shape: Shape, *, in_block: bool) -> Updated:
    """Return a parameter that trains in full as an optimizer sees it.

    ``shape``: of what a device has of it. ``in_block``: whether it is a block's.
    """
    tells = in_block and OPTIMIZERS[job.optimizer].tells_hidden
    whole = () if shape == parameter.shape else parameter.shape
    is_matrix = len(shape) > 1 and parameter.kind != "embedding"
    is_bias = parameter.name.endswith("bias")  # of experts: a stack of vectors
    return Updated(shape, tells and is_matrix and not is_bias, whole)


def told_beside(job: Job, shape: Shape) -> Updated:
    """Return an adapter's parameter, which is a block's, as an optimizer sees it."""
    return Updated(shape, OPTIMIZERS[job.optimizer].tells_hidden and len(shape) > 1)


def trained_recipe(job: Job) -> Recipe:
    """Return the bytes of what trains: adapters may be wider than their base."""
    is_wide = job.adapter is not None and job.adapter.dtype == "fp32"
    return RECIPES["fp32" if is_wide else job.precision]


def _packed_layers(job: Job) -> list[Parameter]:
    every = adaptable(layout_of(job.model))
    layers = [[p for p in some if p.kind in PACKED] * times for some, times in every]
    return [layer for run in layers for layer in run]


Status = Literal["frozen", "trained", "packed"]


class Part(NamedTuple):
    """Shapes of parameters that are gathered together.

    Attributes:
        every: Of all of them, adapters too, packed weights apart.
        trained: Of those that gradients come to.
        packed: Of what holds weights in 4 bits: a byte an element.
        order: Which of these each parameter is, in the order of modules; empty: the rest of
            ``every``, then those that train.
    """

    every: list[Shape]
    trained: list[Shape]
    packed: Sequence[Shape] = ()
    order: tuple[Status, ...] = ()


def trained_parts(job: Job, tp: int = 1, *, apart: bool = False) -> tuple[Part, ...]:
    """Return the parameters of a block, of each that holds others, and of what is in no block.

    ``tp``: devices that share every matrix; the shapes are those of the first one's pieces.
    ``apart``: whether a block's experts are left out, which devices part among them.
    """
    layout = layout_of(job.model)
    kinds = tuple(block_kinds(job.model))
    around = (layout.embedding, *(run.after for run in layout.blocks), layout.final, layout.head)
    rest = [p for part in around for p in part]
    kept = [[p for p in each if not (apart and p.kind == "experts")] for each in kinds]
    if job.adapter is not None:
        frozen = Part([piece_shape(p, tp) for p in rest], [])
        around_blocks = frozen if layout.blocks else _unit(job, layout)
        return *(_adapted_block(job, parameters) for parameters in kept), around_blocks
    return tuple(_learning(parameters, tp) for parameters in (*kept, rest))


def _learning(parameters: Sequence[Parameter], tp: int) -> Part:
    """Return parameters that train, but for those that no gradient comes to."""
    order: list[Status] = ["trained" if p.learns else "frozen" for p in parameters]
    idle, learning = (
        [piece_shape(p, tp) for p in parameters if p.learns == learns] for learns in (False, True)
    )
    return Part([*idle, *learning], learning, order=tuple(order) if idle else ())


def _unit(job: Job, layout: Layout) -> Part:
    """Return the parameters of an adapted model whose body is one unit, with its head."""
    body, head = _adapted_block(job, layout.embedding), [p.shape for p in layout.head]
    num = len(body.every) - len(body.trained)
    every = [*body.every[:num], *head, *body.trained]
    behind: list[Status] = ["frozen" for _ in head]
    return body._replace(every=every, order=(*body.order, *behind))


def block_kinds(spec: ModelSpec) -> dict[Parameters, int]:
    """Return the parameters of every kind of block, in order, and how many blocks hold them.

    Of a body that is one unit there is one kind of block, which none is of.
    """
    found: dict[Parameters, int] = {}
    for run in layout_of(spec).blocks:
        found[run.parameters] = found.get(run.parameters, 0) + run.num_blocks
    return found or {(): 0}


def first_blocks(spec: ModelSpec, num_blocks: int | None = None) -> Iterator[Parameters]:
    """Yield the parameters of blocks, from the first on.

    ``num_blocks``: of how many; None: of all.
    """
    every = (run.parameters for run in layout_of(spec).blocks for _ in range(run.num_blocks))
    return islice(every, num_blocks)


def _adapted_block(job: Job, parameters: Iterable[Parameter]) -> Part:
    assert job.adapter is not None
    shapes: dict[Status, list[Shape]] = {"frozen": [], "trained": [], "packed": []}
    order: list[Status] = []
    for module in modules_of(parameters):
        for parameter in module:
            is_packed = job.adapter.base in QUANTIZED and parameter.kind in PACKED
            order.append("packed" if is_packed else "frozen")
            shapes[order[-1]].append(packed_shape(parameter) if is_packed else parameter.shape)
        num_learning = len(adapter_shapes_of(job, module[0], learning=True))
        for place, shape in enumerate(adapter_shapes_of(job, module[0])):
            order.append("trained" if place < num_learning else "frozen")
            shapes[order[-1]].append(shape)
    trained = shapes["trained"]
    return Part([*shapes["frozen"], *trained], trained, shapes["packed"], tuple(order))


def modules_of(parameters: Iterable[Parameter]) -> Iterator[list[Parameter]]:
    """Yield the parameters of every module; adapters of one stand behind all of them."""
    for _, some in groupby(parameters, lambda parameter: parameter.name.rpartition(".")[0]):
        yield list(some)


def in_order(job: Job) -> Iterable[tuple[Parameter, bool]]:
    """Yield every parameter of a model, and whether it is a block's; of one unit its body's."""
    layout = layout_of(job.model)
    for parameter in layout.embedding:
        yield parameter, not layout.blocks
    for run in layout.blocks:
        for _ in range(run.num_blocks):
            for parameter in run.parameters:
                yield parameter, True
        for parameter in run.after:
            yield parameter, False
    for parameter in (*layout.final, *layout.head):
        yield parameter, False


def untied_job(job: Job) -> Job:
    """Return the job whose ends are two weights, as they are in a pipeline."""
    model = job.model
    if not model.tied_embeddings:
        return job
    config = {**model.hf_config, "tie_word_embeddings": False}
    return replace(job, model=replace(model, tied_embeddings=False, hf_config=config))


class QuantizedBase(NamedTuple):
    """Shapes of a quantised base.

    Attributes:
        plain: Of what is not quantised.
        packed: As ``Part.packed``.
    """

    plain: list[Shape]
    packed: list[Shape]


def quantized_base(job: Job) -> QuantizedBase | None:
    """Return the shapes of all of a base; None where nothing of it is quantised."""
    if job.adapter is None or job.adapter.base not in QUANTIZED:
        return None
    left = list(parameter_shapes(job.model))
    layers = _packed_layers(job)
    for layer in layers:
        left.remove(layer.shape)
    return QuantizedBase(left, [packed_shape(layer) for layer in layers])


def packed_shape(layer: Parameter) -> Shape:
    """Return the shape of a weight in 4 bits: a byte an element."""
    return (-(-layer.num_elements // 2), 1)


def has_biases(spec: ModelSpec) -> bool:
    """Whether linear layers of the blocks add a bias."""
    return any(p.kind == "bias" for some, _ in adaptable(layout_of(spec)) for p in some)


def adapter_shapes_of(job: Job, layer: Parameter, *, learning: bool = False) -> tuple[Shape, ...]:
    """Return the shapes of the adapters beside a parameter of a block; none beside most.

    A, B, and of DoRA the length of every row of the weight (Liu et al. 2024, arXiv:2402.09353);
    these once for each module that holds it.

    ``learning``: of those alone that a gradient comes to.
    """
    adapter = job.adapter
    if adapter is None or layer.kind not in LINEAR or not is_target(layer.name, adapter.targets):
        return ()
    if not takes_adapters(job.model.model_type, layer.name):
        return ()
    first, last = layer.shape
    inputs, outputs = (first, last) if layer.kind == "conv1d" else (last, first)
    lengths = ((outputs,),) if job.method == "dora" else ()
    num = layer.holders - layer.idle * learning
    return ((adapter.rank, inputs), (outputs, adapter.rank), *lengths) * num


def num_trained(job: Job) -> int:
    """Count the numbers that train."""
    if job.adapter is None:
        return parameter_count(job.model).total
    return sum(map(prod, trained_shapes(job)))


def num_learning(job: Job) -> int:
    """Count the numbers that gradients come to."""
    if job.adapter is not None:
        return sum(map(prod, learning_shapes(job)))
    every = unnamed_parameters(layout_of(job.model))
    return sum(parameter.num_elements for parameter in every if parameter.learns)


def loaded_element(job: Job) -> int:
    """Return the bytes of a parameter of the base as it is loaded, before it is quantised."""
    return HALF_BYTES if _is_half(job) else RECIPES[job.precision].parameter


def frozen_element(job: Job) -> int:
    """Return the bytes of a parameter of the base that is not quantised, trained or frozen."""
    is_wide = job.adapter is not None and job.adapter.upcast == "all"
    return _WIDE_BYTES if is_wide else loaded_element(job)


def frozen_bytes(job: Job) -> Frozen:
    """Return what the frozen base takes; nothing where everything trains."""
    if job.adapter is None:
        return Frozen(0, 0)
    element = frozen_element(job)
    total = parameter_count(job.model).total
    widened = (_WIDE_BYTES - element) * _num_norms(job) if job.adapter.upcast == "norms" else 0
    if job.adapter.base not in QUANTIZED:
        return Frozen(total * element + widened, 0)
    sizes = [layer.num_elements for layer in _packed_layers(job)]
    packed = sum(-(-size // 2) for size in sizes)
    is_double = job.adapter.base == DOUBLE
    constants = sum(nf4_constants(size, is_double=is_double) for size in sizes)
    return Frozen((total - sum(sizes)) * element + widened + packed, constants)


def constants_of(job: Job) -> tuple[int, ...]:
    """List the bytes of what a model holds whole and never trains: buffers, and what is idle."""
    element = trained_recipe(job).parameter if job.adapter is None else frozen_element(job)
    idle = (prod(shape) * element for shape in idle_shapes(job.model))
    return *idle, *buffers_of(job.model, is_narrow=loaded_element(job) < _WIDE_BYTES)


def _num_norms(job: Job) -> int:
    parameters = all_parameters(layout_of(job.model))
    return sum(p.num_elements for p in parameters if p.kind == "norm")


def _is_half(job: Job) -> bool:
    """Whether what is not quantised of a base is held in 16 bits though adapters are fp32."""
    return job.adapter is not None and job.adapter.base != "same" and job.precision in HALF


def nf4_constants(num_weights: int, *, is_double: bool = True) -> int:
    """Return the bytes of the scales of one 4-bit weight and of the tables that decode it.

    With double quantisation a scale is a byte, with a scale of its own for ``NF4_NESTED_BLOCK``.

    Source: ``QuantState`` of ``bitsandbytes/functional.py``; Dettmers et al. 2023,
    arXiv:2305.14314.
    """
    num_scales = -(-num_weights // NF4_BLOCK)
    if not is_double:
        return num_scales * _SCALE_BYTES + _CODE_BYTES
    nested = -(-num_scales // NF4_NESTED_BLOCK) * _SCALE_BYTES
    return num_scales + nested + _OFFSET_BYTES + _NESTED_CODE_BYTES + _CODE_BYTES
