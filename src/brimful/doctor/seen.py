"""Everything that findings and advice are drawn from, as one value. No torch."""

import math

import msgspec

from brimful.doctor.formats import FormatName
from brimful.doctor.records import GRADIENTS, FirstBad, Kind, Row, Watched, earliest

Place = tuple[str, Kind]
"""A module, or a parameter, and what of it."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """Steps that were run at one loss scale, without an update.

    Attributes:
        scale: A power of two.
        num: Steps.
        num_bad: Those whose gradients held an Inf or NaN.
    """

    scale: float
    num: int
    num_bad: int

    @property
    def bad_share(self) -> float:
        """Steps that would have been skipped, among all."""
        return self.num_bad / self.num


NOISE: dict[FormatName, int] = {"fp64": 44, "fp32": 18}
"""Doublings below a tensor's largest number from where on there is only what rounding leaves of
sums that come to 0: digits of the format, less what sums of some hundred numbers lose."""


ROUNDING: dict[FormatName, float] = {"fp64": 2.0**-52, "fp32": 2.0**-23}
"""What of a number is lost when it is rounded: what is smaller than that of the largest number of
its kind is a sum that comes to 0."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One and the same step as the recipe runs it and in a wide format, without an update.

    A number has vanished that is 0 in the recipe and not in the wide format. What is counted is the
    zeros of each tensor in both runs: of a tensor with more zeros in the recipe's, the difference.
    In the wide run what is smaller than ``NOISE`` counts as 0.

    Attributes:
        recipe: Rows of the recipe's run, with its loss scale.
        plain: Rows in the wide format without a loss scale.
        wide: The wide format.
    """

    recipe: tuple[Row, ...]
    plain: tuple[Row, ...]
    wide: FormatName

    def vanished(self) -> dict[Place, float]:
        """Return the share of numbers that have vanished, in the order in which they were met.

        A tensor that is rounding altogether is left out: a gradient that is 0 in exact arithmetic,
        as that of a key's bias, has zeros of its own in every run.
        """
        largest = self._largest_by_kind()
        plain = {
            (row.name, row.kind): row
            for row in self.plain
            if not 0 < row.largest <= largest[row.kind] * ROUNDING[self.wide]
        }
        found: dict[Place, float] = {}
        for row in self.recipe:
            other = plain.get((row.name, row.kind))
            if other is not None:
                num = row.spectrum.num_zeros - self._num_zeros(other)
                found[row.name, row.kind] = max(num, 0) / max(row.spectrum.num, 1)
        return found

    def _largest_by_kind(self) -> dict[Kind, float]:
        found: dict[Kind, float] = {}
        for row in self.plain:
            found[row.kind] = max(row.largest, found.get(row.kind, 0.0))
        return found

    def _num_zeros(self, row: Row) -> int:
        if row.largest == 0:
            return row.spectrum.num_zeros
        exponent = math.frexp(row.largest)[1] - 1
        return row.spectrum.num_zeros + row.spectrum.below(exponent - NOISE[self.wide])


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What watching some steps has come to.

    Attributes:
        ranks: What each process saw, by rank; one of a process that trains alone.
        first_bad: The first Inf or NaN that no smaller loss scale would have avoided.
        compared: A step beside fp32; None where it cannot be run in fp32.
        trials: Loss scales that were tried; empty where the loss is not scaled.
        grad_norms: Of the steps that were not skipped, before the clip and without the scale.
        is_scaled: Whether the loss is scaled.
        are_alike: Whether processes hold the same modules and differ in their samples only.
    """

    ranks: tuple[Watched, ...]
    first_bad: FirstBad | None = None
    compared: Compared | None = None
    trials: tuple[Trial, ...] = ()
    grad_norms: tuple[float, ...] = ()
    is_scaled: bool = False
    are_alike: bool = True


def seen_in_loop(*ranks: Watched) -> Seen:
    """Return what watchers of any loop have seen, where nothing was tried beside."""
    bads = [bad for watched in ranks for bad in watched.bads]
    is_scaled = any(row.scale != 1 for watched in ranks for row in watched.rows)
    held = [bad for bad in bads if not (is_scaled and bad.kind in GRADIENTS)]
    return Seen(ranks=ranks, first_bad=earliest(held), is_scaled=is_scaled)
