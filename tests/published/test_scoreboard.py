"""Sums over rows whose answers are known."""

import pytest

from brimful.published.compare import Compared
from brimful.published.rows import split_of, splits
from brimful.published.scoreboard import p90, scoreboard
from brimful.values.plan import Band


def row(name, **changes):
    fields = {
        "id": name,
        "family": "fms",
        "label": "hf",
        "has_bar": True,
        "source": "a",
        "sweep": "one",
    }
    return Compared(**{**fields, **changes})


def sized(name, published, predicted, **changes):
    return row(
        name, published_allocated_gib=published, predicted_allocated_gib=predicted, **changes
    )


def timed(name, published, predicted, **changes):
    return row(name, published_tokens_per_s=published, predicted_tokens_per_s=predicted, **changes)


def test_errors_are_signed_and_the_worst_is_named():
    rows = [sized("a", 10, 12), sized("b", 10, 9.5), sized("c", 10, 10.1), sized("d", 4, None)]
    (errors,) = scoreboard(rows).memory
    assert (errors.num_runs, errors.num_predicted) == (4, 3)
    assert errors.median == pytest.approx(0.01)
    assert errors.median_size == pytest.approx(0.05)
    assert errors.p90_size == pytest.approx(0.2)
    assert (errors.worst, errors.worst_id) == (pytest.approx(0.2), "a")
    assert errors.near_share == pytest.approx(2 / 3)


def test_programs_are_never_pooled_and_those_with_a_bar_come_first():
    rows = [sized("a", 10, 20, label="litgpt", has_bar=False), sized("b", 10, 10)]
    first, second = scoreboard(rows).memory
    assert (first.label, second.label) == ("hf", "litgpt")
    assert (first.worst, second.worst) == (0, 1)


def test_a_group_without_predictions_says_so():
    (errors,) = scoreboard([sized("a", 10, None, reason="GPTQ base")]).memory
    assert (errors.num_runs, errors.num_predicted, errors.median) == (1, 0, None)
    assert errors.worst_id == ""


def test_coverage_counts_both_sides_of_every_split():
    sources = {split_of(source): source for source in splits()}
    assert set(sources) == {"fit", "validation", "test"}
    band = Band(low=10, high=14)
    rows = [
        row(name, source=source, published_reserved_gib=gib, predicted_reserved_gib=band)
        for source in sources.values()
        for name, gib in (("a", 9), ("b", 12), ("c", 15), ("d", 14))
    ]
    for coverage in scoreboard(rows).bands:
        assert (coverage.num_figures, coverage.num_below, coverage.num_above) == (4, 1, 1)
        assert coverage.num_within == 2
        assert coverage.median_width == pytest.approx((4 / 12 + 4 / 14) / 2, rel=0.05)
    assert {band.split for band in scoreboard(rows).bands} == set(sources)


def test_the_order_of_a_sweep():
    def tau(*pairs):
        (order,) = scoreboard([timed(str(n), *pair) for n, pair in enumerate(pairs)]).orders
        return order.tau, order.num_pairs

    assert tau((1, 10), (2, 20), (3, 30)) == (1, 3)
    assert tau((1, 30), (2, 20), (3, 10)) == (-1, 3)
    assert tau((1, 10), (2, 10), (3, 30)) == (pytest.approx(2 / 3), 3)
    assert tau((1, 10), (1, 20), (3, 30)) == (1, 2)


def test_two_runs_are_no_sweep():
    rows = [timed("a", 1, 1), timed("b", 2, 2), timed("c", 3, 3, sweep="other")]
    assert scoreboard(rows).orders == ()


def test_reasons_are_counted():
    rows = [row("a", reason="x"), row("b", reason="y"), row("c", reason="y"), row("d")]
    board = scoreboard(rows)
    assert [(m.reason, m.num_runs) for m in board.missing] == [("y", 2), ("x", 1)]
    assert (board.num_runs, board.num_predicted) == (4, 1)


def test_nine_in_ten():
    assert p90([1]) == 1
    assert p90(list(range(10))) == 8
    assert p90(list(range(20))) == 17
