"""Bytes of shards, gathers and reduce buffers: closed forms, for many numbers of devices at once.

FSDP2 cuts every parameter by rows, ``ceil(rows / devices)`` to each; gathers and reduce buffers are
of whole cuts, so that what does not divide is padded. ZeRO-1 gives each device whole parameters.

Source: ``torch/distributed/fsdp/_fully_shard/_fsdp_param.py`` and
``torch/distributed/optim/zero_redundancy_optimizer.py``.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.additions import NUM_PIECES, Piece
from brimful.cost.embedding import embedding_workspace
from brimful.cost.expert_shards import PIECES, expert_pieces, part_experts
from brimful.cost.family import Family, family_shards, family_tokens
from brimful.cost.programs import HALF
from brimful.cost.recipes import RECIPES
from brimful.cost.shapes import Shape, groups_of
from brimful.cost.trained import Part, frozen_element, trained_parts, trained_recipe
from brimful.techniques.optimizers import Updated
from brimful.values.job import Job, Precision

Array = NDArray[np.float64]
Cut = Callable[[Sequence[Shape], Array], Array]
"""Counts the numbers of parameters, padded, by their shapes and over how many devices they lie."""
HALF_BYTES = 2
_COPIES = {
    Piece.BLOCK_GATHERED: Piece.BLOCK,
    Piece.REST_GATHERED: Piece.REST,
    Piece.BLOCK_COPY: Piece.BLOCK,
    Piece.REST_COPY: Piece.REST,
    Piece.BLOCK_BUFFER_COPY: Piece.BLOCK_BUFFER,
    Piece.REST_BUFFER_COPY: Piece.REST_BUFFER,
    Piece.BLOCK_ADDED: Piece.BLOCK_FLAT,
    Piece.REST_ADDED: Piece.REST_FLAT,
}
ROWS = [Piece.ROW_SUMS, Piece.ROW_GRADIENT]
"""Pieces that hang on the batch, and not on the number of shards."""


def computed_bytes(precision: Precision) -> int:
    """Return the bytes of a parameter where it is gathered, and of its gradient there."""
    return HALF_BYTES if precision in HALF else RECIPES[precision].parameter


def padded(shapes: Sequence[Shape], num_shards: Array) -> Array:
    """Count the numbers of parameters cut by rows into equal shards: [strategies].

    ``num_shards``: [strategies].
    """
    alike = Counter(shapes)
    rows = np.array([shape[0] for shape in alike], dtype=np.float64)
    width = np.array([prod(shape[1:]) * num for shape, num in alike.items()], dtype=np.float64)
    each: Array = np.ceil(rows[:, None] / num_shards) * width[:, None]
    total: Array = each.sum(0) * num_shards
    return total


def first_shard(shape: Shape, num_shards: int) -> Shape:
    """Return what the first device holds of a parameter."""
    return (-(-shape[0] // num_shards), *shape[1:])


def piece_bytes(job: Job, family: Family) -> Array:
    """Return the bytes of every piece: [pieces, strategies]."""
    return part_pieces(job, family, trained_parts(job, family.tp, apart=family.ep > 1))


def part_pieces(job: Job, family: Family, parts: Sequence[Part]) -> Array:
    """Return the same of these parts: blocks that hold other parameters each, and the rest.

    The rest's pieces, which is in no block, are among those of the first.
    """
    *blocks, rest = parts
    none = Part([], [])
    every = [
        _block_pieces(job, family, (block, none if place else rest))
        for place, block in enumerate(blocks)
    ]
    if family.ep > 1:
        for sizes, stacks in zip(every, part_experts(job, family.ep), strict=True):
            if stacks:
                sizes[list(PIECES)] = expert_pieces(job, family, stacks)
    return np.concatenate(every)


def _block_pieces(job: Job, family: Family, parts: tuple[Part, Part]) -> Array:
    num_shards = family_shards(family)
    sizes = np.zeros((NUM_PIECES, len(num_shards)))
    block, rest = parts
    for first, part in ((Piece.BLOCK_CAST, block), (Piece.REST_CAST, rest)):
        sizes[first : first + 6] = _part_bytes(job, family, part)
    if family.is_flat:
        sizes[[Piece.BLOCK_FLAT, Piece.REST_FLAT]] = (
            sizes[[Piece.BLOCK_BUFFER, Piece.REST_BUFFER]]
            * min(computed_bytes(job.precision), trained_recipe(job).gradient)
            / trained_recipe(job).gradient
        )
    sizes[ROWS] = row_bytes(job, family)[:, None]
    has_replicas = family.num_data_parallel > num_shards
    sizes[[Piece.BLOCK_AMONG, Piece.REST_AMONG]] = (
        sizes[[Piece.BLOCK_SHARD, Piece.REST_SHARD]] * has_replicas
    )
    for piece, copied in _COPIES.items():
        sizes[piece] = sizes[copied]
    return sizes


def evenly(shapes: Sequence[Shape], num_shards: Array) -> Array:
    """Count the numbers of parameters that FSDP1 cuts into equal shards, padded: [strategies].

    ``shapes``: of the parameters of one unit; of several, the padding of all but one is left out.
    ``num_shards``: [strategies].
    """
    total: Array = np.ceil(sum(map(prod, shapes)) / num_shards) * num_shards
    return total


def cut_of(family: Family) -> Cut:
    """Return how a family's FSDP cuts what it shards."""
    return evenly if family.is_flat else padded


def _part_bytes(job: Job, family: Family, part: Part) -> Array:
    """Return bytes in the order of ``Piece``: cast, whole, buffer, shard, gradients, held.

    What is held in the type that computes already, as a base in 16 bits is, is not cast.
    """
    recipe, narrows = trained_recipe(job), job.precision in HALF
    computed = HALF_BYTES if narrows else recipe.parameter
    own, num_shards = frozen_element(job), family_shards(family)
    cut = cut_of(family)
    gradients = cut(part.trained, num_shards)
    frozen = cut(part.every, num_shards) - gradients
    packed = cut(part.packed, num_shards)
    num_trained = sum(map(prod, part.trained)) * np.ones_like(num_shards)
    num_cast = gradients * (recipe.parameter > computed) + frozen * (narrows and own > HALF_BYTES)
    return np.stack([
        num_cast * HALF_BYTES / num_shards,
        gradients * computed + frozen * (HALF_BYTES if narrows else own) + packed,
        gradients * recipe.gradient,
        gradients * recipe.gradient / num_shards,
        num_trained * computed,
        num_trained * recipe.gradient,
    ])  # fmt: skip


def row_bytes(job: Job, family: Family) -> Array:
    """Return the partial sums of the embedding's rows, and what is there beside them: [2]."""
    model, tokens = job.model, family_tokens(job, family)
    vocab_size = -(-model.vocab_size // family.tp)
    taken = embedding_workspace(
        num_tokens=tokens, vocab_size=vocab_size, hidden_size=model.hidden_size
    )
    if not taken or job.adapter is not None:
        return np.zeros(2)
    rows = tokens + model.tied_embeddings * vocab_size
    return np.array([taken, rows * model.hidden_size * computed_bytes(job.precision)], dtype=float)


class Share(NamedTuple):
    """What one device keeps states of where each keeps those of whole parameters (ZeRO-1).

    Attributes:
        rank: Which device.
        parameters: Its own.
    """

    rank: int
    parameters: list[Updated]


def largest_share(parameters: Sequence[Updated], num_devices: int) -> Share:
    """Return the share of the device that holds most, the first of several.

    An optimizer's groups are handed out one after the other, each from the largest down to whoever
    has least, by the sizes of whole parameters where devices have pieces.
    """
    sizes = [(0, rank) for rank in range(num_devices)]
    heapify(sizes)
    shares: list[list[Updated]] = [[] for _ in range(num_devices)]
    for group in groups_of(parameters):
        whole = [(prod(each.whole or each.shape), each) for each in group]
        for num, each in sorted(whole, key=lambda one: one[0], reverse=True):
            size, rank = sizes[0]
            heapreplace(sizes, (size + num, rank))
            shares[rank].append(each)
    rank = max(range(num_devices), key=lambda rank: sum(each.num for each in shares[rank]))
    return Share(rank, shares[rank])
