"""Magnitudes counted by powers of two: exact for every format that can be asked about."""

import math

import pytest

from brimful.doctor.formats import BF16, E4M3, E5M2, FORMATS, FP16, FP32
from brimful.doctor.spectrum import NOTHING, NUM_BINS, Spectrum, added, from_counts, headroom

BIAS = 127


def spectrum_of(**bins):
    counts = [0] * NUM_BINS
    for place, count in bins.items():
        counts[int(place[1:])] += count
    return from_counts(counts)


def exactly(exponent):
    return f"b{2 * (exponent + BIAS)}"


def above(exponent):
    return f"b{2 * (exponent + BIAS) + 1}"


def test_limits_are_the_formats_own():
    assert (FP16.largest, E5M2.largest, E4M3.largest) == (65504.0, 57344.0, 448.0)
    assert (FP16.smallest, E5M2.smallest, E4M3.smallest) == (2.0**-24, 2.0**-16, 2.0**-9)
    assert (FP32.smallest, BF16.smallest) == (2.0**-149, 2.0**-133)


def test_half_of_the_smallest_number_vanishes_and_what_is_more_does_not():
    assert spectrum_of(**{exactly(-25): 3}).vanishing(FP16) == 3
    assert spectrum_of(**{above(-25): 3}).vanishing(FP16) == 0
    assert spectrum_of(**{above(-26): 3}).vanishing(FP16) == 3
    assert spectrum_of(b0=5).vanishing(FP16) == 0  # a zero was one before


def test_a_scale_moves_what_vanishes():
    spectrum = spectrum_of(**{above(-30): 7})
    assert spectrum.vanishing(FP16) == 7
    assert spectrum.vanishing(FP16, shift=5) == 0
    assert spectrum.subnormal(FP16, shift=5) == 7
    assert spectrum.subnormal(FP16, shift=16) == 0


def test_bad_numbers_and_zeros_are_told_apart():
    spectrum = spectrum_of(b0=1, b1=2, b510=3, b511=4)
    told = (spectrum.num_zeros, spectrum.num_nonzero, spectrum.num_inf, spectrum.num_nan)
    assert told == (1, 2, 3, 4)
    assert spectrum.num == 10
    assert spectrum.beyond(FP16) == 0


def test_what_lies_beyond_is_counted_from_the_next_power_on():
    assert spectrum_of(**{above(15): 2, exactly(16): 3}).beyond(FP16) == 3
    assert spectrum_of(**{above(8): 2, exactly(9): 3}).beyond(E4M3) == 3


def test_sums_are_of_both():
    one, other = spectrum_of(**{exactly(-3): 2}), spectrum_of(**{above(4): 5, exactly(-3): 1})
    both = added(one, other)
    assert both.exponents() == {-3: 3, 4: 5}
    assert added(both, NOTHING) == added(NOTHING, both) == both
    assert from_counts([0] * NUM_BINS) == NOTHING == Spectrum()


def test_quantiles_are_of_numbers_that_are_not_zero():
    spectrum = spectrum_of(b0=100, **{exactly(-5): 10, exactly(2): 9})
    assert (spectrum.quantile(0.5), spectrum.quantile(1.0)) == (-5, 2)
    assert NOTHING.quantile(0.5) is None


@pytest.mark.parametrize("name", FORMATS)
def test_headroom_is_in_doublings(name):
    limit = FORMATS[name]
    assert headroom(limit.largest / 8, limit) == pytest.approx(3.0)
    if name in {"fp16", "e4m3"}:
        assert headroom(limit.largest * 2, limit) == pytest.approx(-1.0)
    for none in (0.0, math.inf, math.nan):
        assert headroom(none, limit) is None
