"""The work of many strategies at once: the formulas of a profile's runs, added up beforehand.

``step.family_work`` walks over the runs of every family; this does the same sums in another order.
"""

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.family import Family, family_chunks, family_micro_batches, family_variant
from brimful.cost.leaving import later_runs
from brimful.cost.preference import forward_runs, runs_reference
from brimful.cost.profiles import Dimensions, Group, Profile, Run, Term
from brimful.cost.trajectory import Array, num_special
from brimful.files.remembered import once_for_each
from brimful.values.job import Job

_AMOUNTS = 4
"""FLOPs of products, of attention, bytes moved, operations: the columns of ``StepWork``."""


class Formulas(NamedTuple):
    """Of each amount, how often each product of dimensions is in it.

    Attributes:
        products: Of dimensions, e.g. ``BSH``.
        times: [amounts, products].
    """

    products: tuple[str, ...]
    times: Array


class Sums(NamedTuple):
    """The work of a micro-batch.

    Attributes:
        once: What happens once.
        each: What every middle member of a group does, and how many are not middle.
    """

    once: Formulas
    each: tuple[tuple[Group, int, Formulas], ...]


def grid_work(
    job: Job,
    profiles: Sequence[Profile],
    batches: Sequence[Family],
    dims: Dimensions,
    num_blocks: NDArray[np.int64],
) -> Array:
    """Add up the work of a step: [amounts, batches, counts of blocks].

    ``profiles``: the profile of the family, or one of each count of checkpointed blocks.
    ``batches``: families that run alike, of other micro-batches and chunks. ``dims``: their sizes;
    B and C are [batches].
    """
    chunks = np.array([family_chunks(job, family) for family in batches], dtype=np.float64)
    sizes = _Sizes(dims, chunks, job.model.num_layers, {})
    apart = zip(profiles, np.split(num_blocks, len(profiles)), strict=True)
    return np.concatenate([_step_work(job, *each, batches, sizes) for each in apart], axis=2)


def _step_work(
    job: Job,
    profile: Profile,
    num_blocks: NDArray[np.int64],
    batches: Sequence[Family],
    sizes: "_Sizes",
) -> Array:
    """Add up the work of a step of one profile: see ``grid_work``."""
    variant = family_variant(job, profile, batches[0])
    others = np.array([family_micro_batches(job, family) - 1 for family in batches])[:, None]
    first, later = (
        _micro_work(_sums(profile, runs), sizes, num_blocks)
        for runs in (variant.first, later_runs(variant, batches[0]))
    )
    work: Array = first + others * later
    if runs_reference(batches[0].reference):
        asked = _micro_work(_sums(profile, forward_runs(variant.first)), sizes, num_blocks)
        work = work + (others + 1) * asked
    return work


class _Sizes(NamedTuple):
    """What of many batches formulas are of.

    Attributes:
        dims: Their dimensions.
        chunks: [batches], pieces of the loss.
        num_layers: Blocks of the model.
        known: Products of dimensions that were needed so far: numbers, or [batches].
    """

    dims: Dimensions
    chunks: Array
    num_layers: int
    known: dict[str, Any]

    def amounts(self, formulas: Formulas) -> Array:
        """Evaluate formulas: [amounts, batches, 1]; see ``evaluate_terms``."""
        values = np.empty((len(formulas.products), len(self.chunks)))
        for row, factors in enumerate(formulas.products):
            if factors not in self.known:
                self.known[factors] = prod(getattr(self.dims, f) for f in factors)
            values[row] = self.known[factors]
        found: Array = (formulas.times @ values)[..., None]
        return found


def _micro_work(sums: Sums, sizes: _Sizes, num_blocks: NDArray[np.int64]) -> Array:
    counts = {
        "checkpointed": num_blocks[None, :],
        "plain": sizes.num_layers - num_blocks[None, :],
        "chunk": sizes.chunks[:, None],
    }
    total = sizes.amounts(sums.once) * np.ones(len(num_blocks))
    for group, num_apart, formulas in sums.each:
        total = total + sizes.amounts(formulas) * (counts[group] - num_apart)
    return total


@once_for_each
def _sums(profile: Profile, runs: tuple[Run, ...]) -> Sums:
    middle = [run for run in runs if run.role == "middle"]
    groups = dict.fromkeys(run.group for run in middle)
    return Sums(
        once=_added(profile, [run for run in runs if run.role != "middle"]),
        each=tuple(
            (
                group,
                num_special(group, runs),
                _added(profile, [r for r in middle if r.group == group]),
            )
            for group in groups
        ),
    )


def _added(profile: Profile, runs: Sequence[Run]) -> Formulas:
    times: list[dict[str, float]] = [{} for _ in range(_AMOUNTS)]
    for number, num in Counter(run.work for run in runs).items():
        work = profile.works[number]
        ops = (Term("", float(work.num_ops)),)
        amounts = work.matrix_flops, work.attention_flops, work.moved_bytes, ops
        for total, terms in zip(times, amounts, strict=True):
            for term in terms:
                total[term.factors] = total.get(term.factors, 0.0) + num * term.coefficient
    products = tuple(sorted(set().union(*times)))
    found = np.array([[total.get(each, 0.0) for each in products] for total in times])
    return Formulas(products, found)
