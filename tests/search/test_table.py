"""How strategies are ordered: every rule of ``rank`` decides a case that no other one does."""

from itertools import permutations

import numpy as np
import pytest

from brimful.search.table import TIE, Table, columns_of, rank
from samples import make_strategy

STEP_S = 2.0


def table_of(*rows):
    """Make a table of (seconds, peak, fits), of strategies that differ in their micro-batch."""
    seconds, peaks, fits = zip(*rows, strict=True)
    strategies = [make_strategy(micro_batch=n) for n in range(1, len(rows) + 1)]
    return Table(
        **columns_of(strategies, num_layers=2),
        peak_bytes=np.array(peaks, dtype=float),
        step_s=np.array(seconds, dtype=float),
        fits=np.array(fits),
    )


def ordered(rows, objective):
    """Return the rows, best first, which is the same however the table lists them."""
    found = {
        tuple(listed[i] for i in rank(table_of(*listed), objective=objective))
        for listed in permutations(rows)
    }
    assert len(found) == 1
    return list(found.pop())


@pytest.mark.parametrize("objective", ["time", "cost"])
def test_of_equal_times_the_smaller_peak_wins(objective):
    small, middle, large = ((STEP_S, peak, True) for peak in (10, 20, 30))
    assert ordered([large, small, middle], objective) == [small, middle, large]


def test_times_of_one_step_of_the_scale_are_equal_and_of_two_are_not():
    scale = np.log1p(TIE)
    near, end = (float(np.exp((100 + part) * scale)) for part in (-0.4, 0.4))
    beyond = float(np.exp(100.6 * scale))
    slow_small, fast_large, slower = (end, 10, True), (near, 20, True), (beyond, 5, True)
    assert ordered([fast_large, slower, slow_small], "time") == [slow_small, fast_large, slower]


def test_of_equal_peaks_the_shorter_time_wins():
    fast, slow, small = (1.0, 20, True), (STEP_S, 20, True), (3.0, 10, True)
    assert ordered([slow, fast, small], "memory") == [small, fast, slow]
    assert ordered([slow, fast, small], "time") == [fast, slow, small]


@pytest.mark.parametrize("objective", ["time", "memory"])
def test_what_fits_comes_first_and_then_the_least_shortfall(objective):
    fits, near, far = (9.0, 10, True), (5.0, 20, False), (1.0, 30, False)
    assert ordered([far, near, fits], objective) == [fits, near, far]
    quicker = (4.0, 20, False)
    assert ordered([near, quicker], objective) == [quicker, near]


def test_where_a_rate_is_unknown_less_work_wins_whatever_the_peak():
    """Larger micro-batches are less work; of one strategy twice the smaller peak wins."""
    table = table_of((np.nan, 10, True), (np.nan, 30, True), (1.0, 20, True))
    assert rank(table, objective="time").tolist() == [2, 1, 0]
    same = table._replace(micro_batch=np.array([1, 1, 1]))
    assert rank(same, objective="time").tolist() == [0, 2, 1]
