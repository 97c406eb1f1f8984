"""210 of the drawn command lines, always the same; the evidence draws over 10,000 others."""

import pytest
from fuzz_checks import judge, wrong_numbers
from fuzz_part import KINDS, row_of, summarize

SHARE = {"strategies": 4, "flags": 51, "config.json": 35, "plan files": 20, "job files": 15,
         "price files": 10, "DeepSpeed files": 7, "searches": 2, "exported plans": 30,
         "run folders": 8, "published runs": 18, "calibrations": 10}  # fmt: skip
SEEDS = {"config.json": 1, "strategies": 3}
"""Where others are drawn than by 6, by which a model of 3B parameters is traced."""


def test_some_of_every_kind():
    assert set(SHARE) == set(KINDS)
    assert sum(SHARE.values()) == 210


@pytest.mark.parametrize("kind", KINDS)
def test_every_property_holds(kind, monkeypatch, tmp_path):
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path))
    row = row_of(kind, SHARE[kind], seed=SEEDS.get(kind, 6))
    assert row.faults == ()
    assert row.num_examples == row.num_fit + row.num_unfit + row.num_refused > 0
    assert row.num_fit + row.num_unfit > 0, "all were refused: nothing was looked at"
    assert sum(reason.num_examples for reason in row.reasons) <= row.num_refused
    assert summarize([row]).num_drawn == row.num_examples


WRONG = {
    "negative": ({"items_bytes": -1}, "negative"),
    "above 100 %": ({"mfu": 1.01}, "at most 1"),
    "no MFU at all": ({"mfu": 0.0}, "above 0"),
    "not a sum": (
        {"items": [{"num_bytes": 1}], "predicted_peak_allocated_bytes": 2},
        "add up to 1 and the peak is 2",
    ),
    "a band the wrong way": ({"x": {"low": 2, "high": 1}}, "band"),
    "no time": ({"cluster": [{"predicted_step_s": 0.0}]}, "not above 0"),
}


@pytest.mark.parametrize(("told", "fault"), WRONG.values(), ids=WRONG)
def test_every_wrong_number_is_found(told, fault):
    assert fault in " ".join(wrong_numbers(told))


SPOILT = [
    ((3, "", ""), "exit code"),
    ((2, "", "Traceback (most recent call last)"), "traceback"),
    ((2, "", "no sentence"), "not one sentence"),
    ((2, "{}", "brimful: x\n"), "also answers"),
    ((2, "", "brimful: \x1b[31m\n"), "control character"),
    ((0, '{"x": NaN}', ""), "not strict JSON"),
    ((1, "{", ""), "not strict JSON"),
]


@pytest.mark.parametrize(("printed", "fault"), SPOILT)
def test_every_wrong_output_is_found(printed, fault):
    assert fault in " ".join(judge(*printed))
