"""The parameters of a model, in order: names, shapes and kinds. Knows no torch and no architecture.

One layout per architecture is what every count, every list of shapes and every active parameter
derives from. Tested equal to what ``transformers`` builds, in the order of ``Module.parameters()``.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from math import prod
from typing import Literal, NamedTuple

from brimful.models.spec import ParameterCount

Shape = tuple[int, ...]
Kind = Literal[
    "embedding", "linear", "own-linear", "conv1d", "norm", "bias", "router", "experts", "other"
]
"""What a parameter is.

``linear`` is the weight of an ``nn.Linear``, [outputs, inputs], which a quantised base and LoRA's
``all-linear`` act on (but for the head); ``own-linear`` of a class of its own that computes the
same (Falcon's), or of several that share it (Zamba's), which adapters go beside and which
transformers leaves as it is where it quantises a base; ``conv1d`` is GPT-2's, [inputs, outputs].
``router`` is what picks experts, bias included. ``experts`` is whatever only the tokens use that
were sent to one expert: a stack [experts, ...] of weights or biases, or, where ``transformers``
keeps experts apart, one matrix of one of them. ``other`` is none of these, such as attention sinks.
"""


class Parameter(NamedTuple):
    """One parameter.

    Attributes:
        name: As in ``named_parameters()``; within a block, relative to the block.
        shape: Its sizes.
        kind: What it is.
        learns: Whether a gradient comes to it: none does to what a class keeps for inputs that no
            text has, such as LUKE's entities; it has an optimizer's state all the same.
        wide: Whether its class keeps it in fp32 where the others are in bf16.
        holders: Of a linear layer, how many share it: each has an adapter of its own.
        idle: How many of these adapters no gradient comes to.
    """

    name: str
    shape: Shape
    kind: Kind
    learns: bool = True
    wide: bool = False
    holders: int = 1
    idle: int = 0

    @property
    def num_elements(self) -> int:
        """Numbers in it."""
        return prod(self.shape)


Parameters = tuple[Parameter, ...]


class Blocks(NamedTuple):
    """Blocks with the same parameters that follow one another.

    Attributes:
        prefix: The list of blocks that they stand in, such as ``model.layers``.
        first: The place of the first of them in that list.
        num_blocks: How many they are.
        parameters: Those of each block, named relative to it.
        after: What follows the last of them before the next stack begins, named in full: the final
            norm of an encoder that a decoder follows.
    """

    prefix: str
    first: int
    num_blocks: int
    parameters: Parameters
    after: Parameters = ()


class Layout(NamedTuple):
    """Every parameter of a model, a tied one once, in order.

    Attributes:
        embedding: What comes before the first block, named in full; of a body that is no row of
            blocks all of it.
        blocks: Runs of equal blocks.
        final: What follows the last block: the final norm, a pooler; named in full.
        head: The output layer where it is not tied to the embedding; named in full.
    """

    embedding: Parameters
    blocks: tuple[Blocks, ...]
    final: Parameters
    head: Parameters


def num_in_first_list(layout: Layout) -> int:
    """Count the blocks of the first list that blocks stand in: those of an encoder that read."""
    if not layout.blocks:
        return 0
    first = layout.blocks[0].prefix
    return sum(run.num_blocks for run in layout.blocks if run.prefix == first)


def all_parameters(layout: Layout) -> Iterator[Parameter]:
    """Yield every parameter under its full name, in the order of ``Module.parameters()``."""
    yield from layout.embedding
    for run in layout.blocks:
        for index in range(run.first, run.first + run.num_blocks):
            for parameter in run.parameters:
                yield parameter._replace(name=f"{run.prefix}.{index}.{parameter.name}")
        yield from run.after
    yield from layout.final
    yield from layout.head


def adaptable(layout: Layout) -> Iterator[tuple[Parameters, int]]:
    """Yield the parameters that adapters may be beside, with how often they are there.

    They are those of blocks; of a body that is no row of blocks all but the head's.
    """
    if not layout.blocks:
        yield layout.embedding, 1
    for run in layout.blocks:
        yield run.parameters, run.num_blocks


def unnamed_parameters(layout: Layout) -> Iterator[Parameter]:
    """Yield every parameter in the same order; names do not tell blocks apart."""
    for parameters, times in parts(layout):
        for _ in range(times):
            yield from parameters


def parts(layout: Layout) -> Iterator[tuple[Parameters, int]]:
    """Yield every parameter once with how often it is there; names do not tell blocks apart."""
    yield layout.embedding, 1
    for run in layout.blocks:
        yield run.parameters, run.num_blocks
        yield run.after, 1
    yield layout.final, 1
    yield layout.head, 1


def num_elements(parameters: Iterable[Parameter]) -> int:
    """Count the numbers in parameters."""
    return sum(parameter.num_elements for parameter in parameters)


def count_parameters(layout: Layout) -> ParameterCount:
    """Count a model's parameters by where they are; ``block`` is the kind that there is most of.

    Of kinds that are equally many the last is taken, which is the decoder's.
    """
    sizes = [(num_elements(run.parameters), run.num_blocks) for run in layout.blocks]
    common = max(range(len(sizes)), key=lambda place: (sizes[place][1], place), default=-1)
    block, num_blocks = sizes[common] if sizes else (0, 0)
    after = sum(num_elements(run.after) for run in layout.blocks)
    return ParameterCount(
        embedding=num_elements(layout.embedding),
        block=block,
        num_blocks=num_blocks,
        other_blocks=sum(size * count for size, count in sizes) - block * num_blocks,
        final=num_elements(layout.final) + after,
        head=num_elements(layout.head),
    )


def without_gradients(layout: Layout, silent: Mapping[str, int], *, beside: bool) -> Layout:
    """Return a layout in which some parameters get no gradient, or some adapters beside them.

    ``silent``: how many, by name; of one in blocks with ``*`` in the place of the block's number.
    """

    def told(parameters: Parameters, prefix: str = "") -> Parameters:
        found = ((p, silent.get(f"{prefix}{p.name}", 0)) for p in parameters)
        if beside:  # which not all layers have
            return tuple(p._replace(idle=max(p.idle, num)) for p, num in found)
        return tuple(p._replace(learns=not num) for p, num in found)

    return Layout(
        embedding=told(layout.embedding),
        blocks=tuple(
            run._replace(parameters=told(run.parameters, f"{run.prefix}.*."), after=told(run.after))
            for run in layout.blocks
        ),
        final=told(layout.final),
        head=told(layout.head),
    )


def runs(prefix: str, blocks: Iterable[Parameters]) -> tuple[Blocks, ...]:
    """Join blocks with the same parameters that follow one another."""
    found: list[Blocks] = []
    first = 0
    for parameters, equal in groupby(blocks):
        count = sum(1 for _ in equal)
        found.append(Blocks(prefix, first, count, parameters))
        first += count
    return tuple(found)


def followed(blocks: tuple[Blocks, ...], after: Parameters) -> tuple[Blocks, ...]:
    """Return the blocks of a stack, with what follows them before the next one begins."""
    *others, last = blocks
    return (*others, last._replace(after=after))


def embedding(name: str, num_rows: int, width: int) -> Parameters:
    """Lay out an ``nn.Embedding``: [rows, width]."""
    return (Parameter(f"{name}.weight", (num_rows, width), "embedding"),)


def linear(name: str, num_inputs: int, num_outputs: int, *, bias: bool = False) -> Parameters:
    """Lay out an ``nn.Linear``: [outputs, inputs], and [outputs] where it has a bias."""
    weight = Parameter(f"{name}.weight", (num_outputs, num_inputs), "linear")
    return (weight, *_bias(name, num_outputs)) if bias else (weight,)


def conv1d(name: str, num_inputs: int, num_outputs: int) -> Parameters:
    """Lay out GPT-2's ``Conv1D``: [inputs, outputs] and a bias of [outputs]."""
    weight = Parameter(f"{name}.weight", (num_inputs, num_outputs), "conv1d")
    return (weight, *_bias(name, num_outputs))


def _bias(name: str, num_outputs: int) -> Parameters:
    return (Parameter(f"{name}.bias", (num_outputs,), "bias"),)


def rms_norm(name: str, width: int) -> Parameters:
    """Lay out an RMSNorm: [width]."""
    return (Parameter(f"{name}.weight", (width,), "norm"),)


def layer_norm(name: str, width: int) -> Parameters:
    """Lay out an ``nn.LayerNorm``: a weight and a bias of [width], both of the kind ``norm``."""
    return (*rms_norm(name, width), Parameter(f"{name}.bias", (width,), "norm"))
