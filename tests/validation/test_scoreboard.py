"""No family of comparisons becomes worse by more than a point without a reason on the page."""

import itertools

import msgspec
import pytest
import scoreboard
from scoreboard import Board, Said, boards, kept, read_best, scores, worse, write_best
from scoreboard_plot import board_svg, marks, scale_of

from brimful.errors import FileFormatError, InputError

RUNS = tuple(Said("tiny", f"run {n}", error) for n, error in enumerate((0.02, 0.01, 0.03)))
BOARD = Board("Runs", "runs", RUNS)


@pytest.fixture
def best():
    return kept([BOARD], scoreboard.BestOfAll(schema="brimful.scoreboard/1", families={}))


def shifted(by):
    return Board("Runs", "runs", tuple(one._replace(error=one.error + by) for one in RUNS))


def test_committed_evidence_is_no_worse_than_it_was():
    assert not worse(boards(), read_best())


def test_every_family_has_a_best():
    keys = {f"{board.key}: {one.family}" for board in boards() for one in scores(board)}
    assert keys == set(read_best().families)


def test_a_family_is_summed_up_by_hand():
    (one,) = scores(BOARD)
    assert (one.num_runs, one.bias, one.median, one.p90) == (3, 0.02, 0.02, 0.03)
    assert (one.worst, one.worst_name, one.near_share) == (0.03, "run 2", 1.0)


def test_less_than_a_point_worse_is_taken_and_the_best_stays(best):
    assert not worse([shifted(0.009)], best)
    assert kept([shifted(0.009)], best) == best


def test_more_than_a_point_worse_is_refused(best):
    with pytest.raises(InputError, match=r"runs: tiny .* it was .*--because"):
        kept([shifted(0.03)], best)


def test_a_family_that_is_gone_is_told(best):
    gone = Board("Runs", "runs", ())
    assert worse([gone], best) == {"runs: tiny": "has no comparison any more"}


def test_a_reason_is_kept_until_the_family_is_as_good_again(best):
    excused = kept([shifted(0.03)], best, why="a kernel changed", date="2026-11-23")
    assert excused.families["runs: tiny"].excuse.why == "a kernel changed"
    assert excused.families["runs: tiny"].median == best.families["runs: tiny"].median
    assert not worse([shifted(0.03)], excused)
    assert worse([shifted(0.06)], excused)
    assert kept([BOARD], excused).families["runs: tiny"].excuse is None


def test_rows_of_a_gpu_are_boards_of_their_own(tmp_path):
    (tmp_path / "gpu").mkdir()
    errors = {"simulated_to_allocated": 0.001, "simulated_to_reserved": -0.02}
    rows = [{"case": {"name": "8b", "family": "full"}, "errors": errors}]
    for name, schema in (("nvidia-h200", "brimful.gpu/1"), ("programs", "of others")):
        document = {"schema": schema, "rows": rows if name == "nvidia-h200" else [{"name": "x"}]}
        (tmp_path / "gpu" / f"{name}-2026-12.json").write_bytes(msgspec.json.encode(document))
    allocated, reserved = boards(tmp_path)
    assert allocated.says == (Said("full", "8b", 0.001),)
    assert reserved.says == (Said("full", "8b", -0.02),)


def test_better_runs_raise_the_bar(best):
    better = kept([Board("Runs", "runs", (Said("tiny", "run", 0.0),))], best)
    assert worse([shifted(0)], better)


def test_the_file_is_read_again_and_others_are_refused(tmp_path, best):
    path = tmp_path / "best" / "scoreboard.json"
    write_best(best, path)
    assert read_best(path) == best
    path.write_bytes(msgspec.json.encode({"schema": "other/1", "families": {}}))
    with pytest.raises(FileFormatError, match="other/1"):
        read_best(path)
    path.write_text("[]")
    with pytest.raises(FileFormatError, match="no scoreboard"):
        read_best(path)


def test_a_plot_has_a_dot_for_each_run_and_names_it():
    drawn = board_svg(BOARD)
    assert drawn.count("<circle") == 3
    assert "run 2: +3 %" in drawn


def test_marks_are_symmetric_and_have_room():
    scale = scale_of(RUNS)
    found = marks(scale)
    assert [-error for error in reversed(found)] == found
    places = [scale.place(error) for error in found]
    assert min(b - a for a, b in itertools.pairwise(places)) > 45
