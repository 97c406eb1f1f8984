"""The work of many strategies at once: the formulas of a profile's runs, added up beforehand.

``step.family_work`` walks over the runs of every family; this does the same sums in another order.
"""

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.family import Family, family_chunks, family_micro_batches, family_variant
from brimful.cost.leaving import later_runs
from brimful.cost.preference import forward_runs, runs_reference
from brimful.cost.profiles import Dimensions, Group, Profile, Run, Term
from brimful.cost.trajectory import Array, num_special
from brimful.identity import once_for_each
from brimful.job import Job

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

    Args:
        job: What is trained.
        profiles: The profile of the family, or one of each count of checkpointed blocks.
        batches: Families that run alike, of other micro-batches and chunks.
        dims: Their sizes; B and C are [batches].
        num_blocks: Checkpointed blocks.
    """
    sizes = _Sizes(dims, len(batches), {})
    chunks = np.array([family_chunks(job, family) for family in batches], dtype=np.float64)
    others = np.array([family_micro_batches(job, family) - 1 for family in batches])[:, None]

    def work(profile: Profile, counts: NDArray[np.int64]) -> Array:
        def micro_work(runs: tuple[Run, ...]) -> Array:
            num_layers = job.model.num_layers
            return _micro_work(_sums(profile, runs), sizes, chunks, counts, num_layers)

        variant = family_variant(job, profile, batches[0])
        later = micro_work(later_runs(variant, batches[0]))
        total: Array = micro_work(variant.first) + others * later
        if runs_reference(batches[0].reference):
            total = total + (others + 1) * micro_work(forward_runs(variant.first))
        return total

    apart = np.split(num_blocks, len(profiles))
    return np.concatenate([work(*each) for each in zip(profiles, apart, strict=True)], axis=2)


class _Sizes(NamedTuple):
    """Dimensions of so many batches, and the products of them that were needed so far."""

    dims: Dimensions
    num_batches: int
    known: dict[tuple[str, ...], Array]

    def amounts(self, formulas: Formulas) -> Array:
        """Evaluate formulas: [amounts, batches, 1]; see ``evaluate_terms``."""
        products = formulas.products
        if products not in self.known:
            values = np.ones((len(products), self.num_batches))
            for row, factors in enumerate(products):
                values[row] = prod(getattr(self.dims, f) for f in factors)
            self.known[products] = values
        found: Array = (formulas.times @ self.known[products])[..., None]
        return found


def _micro_work(
    sums: Sums, sizes: _Sizes, chunks: Array, num_blocks: NDArray[np.int64], num_layers: int
) -> Array:
    counts = {
        "checkpointed": num_blocks[None, :],
        "plain": num_layers - num_blocks[None, :],
        "chunk": chunks[:, None],
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
