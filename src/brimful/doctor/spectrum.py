"""How large the numbers of tensors are, counted exactly by powers of two. No torch.

A spectrum tells powers of two from what lies between them, so that every question about a format's
range (what vanishes, what is subnormal, what lies beyond) has an exact answer after the fact, for
any format and any loss scale that is a power of two.
"""

import math
from collections.abc import Sequence

import msgspec

from brimful.doctor.formats import Format

NUM_BINS = 512
"""Bin 0: zeros; 1: subnormals of fp32; 2 (e + 127): exactly 2^e; 2 (e + 127) + 1: between 2^e and
2^(e+1); the last two: Inf, NaN."""
_BIAS, _LEAST = 127, -126
_INF, _NAN = NUM_BINS - 2, NUM_BINS - 1


class Spectrum(msgspec.Struct, frozen=True, kw_only=True):
    """Magnitudes of many numbers.

    Attributes:
        first_bin: Where ``counts`` begins; what lies before it is empty.
        counts: Numbers per bin, as ``NUM_BINS`` says; without empty bins at either end.
    """

    first_bin: int = 0
    counts: tuple[int, ...] = ()

    @property
    def num(self) -> int:
        """All numbers."""
        return sum(self.counts)

    @property
    def num_zeros(self) -> int:
        """Zeros of either sign."""
        return self._between(0, 1)

    @property
    def num_inf(self) -> int:
        """Infinities of either sign."""
        return self._between(_INF, _NAN)

    @property
    def num_nan(self) -> int:
        """What is no number."""
        return self._between(_NAN, NUM_BINS)

    @property
    def num_nonzero(self) -> int:
        """Finite numbers that are not 0."""
        return self._between(1, _INF)

    def vanishing(self, into: Format, *, shift: int = 0) -> int:
        """Count the numbers, none of them 0, that a format rounds to 0.

        ``shift``: numbers are multiplied by two to the power of this first.
        """
        if into.vanish_exponent - shift < _LEAST:  # bin 1 does not say which; none is blamed
            return 0
        return self._between(1, _bin_of(into.vanish_exponent - shift) + 1)

    def subnormal(self, into: Format, *, shift: int = 0) -> int:
        """Count the numbers that a format holds with fewer digits than it has, and not as 0."""
        least = _bin_of(into.least_exponent - shift)
        return self._between(1, least) - self.vanishing(into, shift=shift)

    def below(self, exponent: int) -> int:
        """Count the numbers, none of them 0, that are less than two to a power."""
        return self._between(1, _bin_of(exponent))

    def beyond(self, into: Format, *, shift: int = 0) -> int:
        """Count the finite numbers at or above the power of two that follows a format's largest.

        Those between the two saturate or become Inf as well; ``headroom`` sees them.
        """
        above = math.frexp(into.largest)[1]
        return self._between(_bin_of(above - shift), _INF)

    def exponents(self) -> dict[int, int]:
        """Count finite numbers that are not 0 by the power of two at or below them."""
        found: dict[int, int] = {}
        for place, count in enumerate(self.counts, start=self.first_bin):
            if 1 <= place < _INF and count:
                exponent = place // 2 - _BIAS
                found[exponent] = found.get(exponent, 0) + count
        return found

    def quantile(self, share: float) -> int | None:
        """Return the exponent below which at most this share of the numbers that are not 0 lies."""
        total, seen = self.num_nonzero, 0
        for exponent, count in self.exponents().items():
            seen += count
            if seen >= share * total:
                return exponent
        return None

    def _between(self, start: int, end: int) -> int:
        low, high = (max(0, place - self.first_bin) for place in (start, end))
        return sum(self.counts[low:high])


NOTHING = Spectrum()


def from_counts(counts: Sequence[int]) -> Spectrum:
    """Make a spectrum of counts of all ``NUM_BINS`` bins."""
    filled = [place for place, count in enumerate(counts) if count]
    if not filled:
        return NOTHING
    first, last = filled[0], filled[-1]
    return Spectrum(first_bin=first, counts=tuple(int(x) for x in counts[first : last + 1]))


def added(one: Spectrum, other: Spectrum) -> Spectrum:
    """Count the numbers of both."""
    if not one.counts or not other.counts:
        return one if one.counts else other
    first = min(one.first_bin, other.first_bin)
    end = max(s.first_bin + len(s.counts) for s in (one, other))
    counts = [0] * (end - first)
    for spectrum in (one, other):
        for place, count in enumerate(spectrum.counts, start=spectrum.first_bin - first):
            counts[place] += count
    return Spectrum(first_bin=first, counts=tuple(counts))


def headroom(largest: float, limit: Format) -> float | None:
    """Return how many doublings the largest magnitude is below a format's largest number.

    ``largest``: magnitude; 0: nothing is there. Returns doublings, negative where it lies beyond;
    None for 0 and for what is not finite.
    """
    if not 0 < largest < math.inf:
        return None
    return math.log2(limit.largest / largest)


def _bin_of(exponent: int) -> int:
    """Return the bin of exactly two to a power; the nearest one beyond fp32's range."""
    return min(max(2 * (exponent + _BIAS), 1), _INF)
