"""Published runs are predicted as well as when the evidence was committed, or better."""

from pathlib import Path

import msgspec
import published_predicted_part as part
import pytest
from evidence import read_evidence
from scoreboard import compared_boards, read_best, worse

from brimful.published.compare import compare_all
from brimful.published.rows import published_runs
from brimful.published.scoreboard import scoreboard

FOLDER = Path(__file__).parents[2] / "validation"
A_POINT = 0.01


@pytest.fixture(scope="module")
def evidence():
    if not (FOLDER / "published_predicted.json").is_file():
        pytest.fail("validation/published_predicted.json is missing; make it with: make prove")
    return read_evidence("published_predicted", FOLDER)


@pytest.fixture(scope="module", params=[4, pytest.param(1, marks=pytest.mark.long)])
def compared(request):
    """Every so manieth run as it is predicted now; all of them in ``make test-all``."""
    return compare_all(published_runs()[:: request.param])


@pytest.fixture(scope="module")
def now(compared):
    return scoreboard(compared)


@pytest.fixture(scope="module")
def before(compared, evidence):
    """The same runs as they were committed."""
    ids = {row.id for row in compared}
    rows = [row for row in evidence.rows if row.id in ids]
    assert len(rows) > 0.9 * len(compared)
    return scoreboard(rows)


def test_no_median_is_worse_than_committed_by_more_than_a_point(before, now):
    for figure in ("memory", "speeds"):
        old, new = part.medians(getattr(before, figure)), part.medians(getattr(now, figure))
        worse = {
            key: (old[key], new.get(key)) for key in old if new.get(key, 1) > old[key] + A_POINT
        }
        assert not worse, figure


@pytest.mark.long  # medians of families are of all their runs; those of some are above
def test_no_family_is_worse_than_its_best():
    assert not worse(compared_boards(compare_all(published_runs())), read_best())


def test_no_run_has_lost_its_prediction(before, now):
    assert now.num_predicted >= before.num_predicted


def test_the_summary_is_that_of_the_rows(evidence):
    assert part.summarize(evidence.rows) == evidence.summary


def test_missed_bars_are_said(compared):
    rows = [row for row in compared if row.family == "fms" and row.has_bar and not row.reason]
    assert not [m for m in part.summarize(rows).missed if m.startswith("median error of alloc")]
    worse = [
        msgspec.structs.replace(row, predicted_allocated_gib=2 * row.published_allocated_gib)
        for row in rows
    ]
    missed = part.summarize(worse).missed
    assert "median error of allocated 100.0% > 3%" in missed
    assert "p90 error of allocated 100.0% > 8%" in missed
    narrow = [
        msgspec.structs.replace(
            row, predicted_process_gib=msgspec.structs.replace(row.predicted_process_gib, high=0.1)
        )
        for row in rows
    ]
    assert any(m.startswith("bands hold 0% of the process") for m in part.summarize(narrow).missed)
