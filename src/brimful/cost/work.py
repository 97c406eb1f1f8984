"""The work of many strategies at once: the formulas of a profile's runs, added up beforehand.

``step.family_work`` walks over the runs of every family; this does the same sums in another order.
"""

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
from brimful.identity import once_for_each
from brimful.job import Job

Formulas = tuple[tuple[Term, ...], ...]
"""Of FLOPs of products, of attention, bytes moved, operations: the columns of ``StepWork``."""
_AMOUNTS = 4


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
    profile: Profile,
    batches: Sequence[Family],
    dims: Dimensions,
    num_blocks: NDArray[np.int64],
) -> Array:
    """Add up the work of a step: [amounts, batches, counts of blocks].

    Args:
        job: What is trained.
        profile: Its profile.
        batches: Families that run alike, of other micro-batches and chunks.
        dims: Their sizes; B and C are [batches].
        num_blocks: Checkpointed blocks.
    """
    variant = family_variant(job, profile, batches[0])
    sizes = _Sizes(dims, len(batches), {})
    chunks = np.array([family_chunks(job, family) for family in batches], dtype=np.float64)
    first, later = (
        _micro_work(_sums(profile, runs), sizes, chunks, num_blocks, job.model.num_layers)
        for runs in (variant.first, later_runs(variant, batches[0]))
    )
    others = np.array([family_micro_batches(job, family) - 1 for family in batches])
    work: Array = first + others[:, None] * later
    if runs_reference(batches[0].reference):
        sums = _sums(profile, forward_runs(variant.first))
        asked = _micro_work(sums, sizes, chunks, num_blocks, job.model.num_layers)
        work = work + (others + 1)[:, None] * asked
    return work


class _Sizes(NamedTuple):
    """Dimensions of so many batches, and the products of them that were needed so far."""

    dims: Dimensions
    num_batches: int
    known: dict[str, Any]

    def amount(self, terms: tuple[Term, ...]) -> Any:
        """Evaluate a formula; see ``evaluate_terms``."""
        for term in terms:
            if term.factors not in self.known:
                self.known[term.factors] = prod(getattr(self.dims, f) for f in term.factors)
        return sum(term.coefficient * self.known[term.factors] for term in terms)


def _micro_work(
    sums: Sums, sizes: _Sizes, chunks: Array, num_blocks: NDArray[np.int64], num_layers: int
) -> Array:
    counts = {
        "checkpointed": num_blocks[None, :],
        "plain": num_layers - num_blocks[None, :],
        "chunk": chunks[:, None],
    }
    total = _amounts(sums.once, sizes) * np.ones(len(num_blocks))
    for group, num_apart, formulas in sums.each:
        total = total + _amounts(formulas, sizes) * (counts[group] - num_apart)
    return total


def _amounts(formulas: Formulas, sizes: _Sizes) -> Array:
    """Evaluate formulas: [amounts, batches, 1]."""
    amounts = np.zeros((_AMOUNTS, sizes.num_batches, 1))
    for row, terms in enumerate(formulas):
        amounts[row, :, 0] = sizes.amount(terms)
    return amounts


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
    works = [profile.works[run.work] for run in runs]
    ops = (Term("", float(sum(work.num_ops for work in works))),)
    return (
        _merged([work.matrix_flops for work in works]),
        _merged([work.attention_flops for work in works]),
        _merged([work.moved_bytes for work in works]),
        ops,
    )


def _merged(many: Sequence[tuple[Term, ...]]) -> tuple[Term, ...]:
    total: dict[str, float] = {}
    for terms in many:
        for term in terms:
            total[term.factors] = total.get(term.factors, 0.0) + term.coefficient
    return tuple(Term(factors, coefficient) for factors, coefficient in total.items())
