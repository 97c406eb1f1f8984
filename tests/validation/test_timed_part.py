"""How well a median is known, and what is said where it is not."""

import random
import statistics

import pytest
import timed_part
from evidence import TimedRow
from median_interval import half_width, median_interval


def test_six_readings_hold_a_median_and_five_do_not():
    assert median_interval([1, 2, 3, 4, 5]) is None
    assert median_interval([6, 1, 5, 2, 4, 3]) == (1, 6)
    # Binomial, n = 9: 1 - 2 (1 + 9) / 512 = 96.1 % between the second and the second to last.
    assert median_interval(list(range(9))) == (1, 7)


def test_the_interval_holds_the_median_as_often_as_it_says():
    rng = random.Random(7)  # noqa: S311 - readings, not secrets
    held = 0
    for _ in range(2000):
        low, high = median_interval([rng.expovariate(1) for _ in range(25)])
        held += low <= 0.6931 <= high
    assert 0.95 <= held / 2000 <= 0.975


def test_more_readings_know_it_better():
    rng = random.Random(7)  # noqa: S311 - as above
    readings = [rng.gauss(1, 0.05) for _ in range(80)]
    widths = [half_width(readings[:n], statistics.median(readings[:n])) for n in (9, 25, 80)]
    assert widths == sorted(widths, reverse=True)
    assert half_width(readings[:5], 1.0) == float("inf")


def rows(*, spread, predicted=1.0):
    case = timed_part._case(timed_part.TIMINGS[0])
    return [TimedRow(
        case=case, predicted_step_s=predicted, measured_steps_s=(1.0,) * 9, measured_step_s=1.0,
        measured_low_s=1 - spread, measured_high_s=1 + spread, step_error=predicted - 1,
        others_load=0.0,
    )]  # fmt: skip


@pytest.fixture
def quiet():
    class Quiet:
        others_load = 0.0

    return Quiet()


def test_a_median_that_is_not_known_is_a_missed_bar(quiet):
    assert timed_part.summarize(rows(spread=0.029), quiet).missed == ()
    (missed,) = timed_part.summarize(rows(spread=0.05), quiet).missed
    assert missed.startswith("median known to 5.0% after 9 steps, not 3%")
    (missed,) = timed_part.summarize(rows(spread=0.01, predicted=1.3), quiet).missed
    assert missed.startswith("step time +30.0%")
    quiet.others_load = 0.2
    (missed,) = timed_part.summarize(rows(spread=0.01), quiet).missed
    assert missed.startswith("disturbed")
