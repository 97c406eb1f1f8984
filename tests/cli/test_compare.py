"""``brimful precision --compare``: what it prints, keeps, and refuses."""

import json
import signal
import xml.etree.ElementTree as ET

import msgspec
import pytest

from brimful.cli import compare
from brimful.compare.record import COMPARISON_SCHEMA, Comparison

pytestmark = pytest.mark.torch

TINY = ("tiny.json", "--gpus", "local", "--data", "data.txt", "--seq-len", 32)
SHORT = (*TINY, "--global-batch", 4, "--micro-batch", 2, "--steps", 4, "--precision", "fp32")
PLAIN = ("--compare", "fp32,tf32,bf16-mixed", "--seeds", 1)


def test_a_table_and_a_folder(brimful, folder):
    said = brimful("precision", *SHORT, *PLAIN, "--out", "made")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= 100
    assert "After 4 steps, 1 seed; losses in nats per token; peak memory" in lines
    names = [line.split()[0] for line in lines if line.split()[:1]]
    assert {"fp32", "tf32", "bf16-mixed"} <= set(names)
    assert "bf16-mixed, seed 0: held-out loss" in said.err
    kept = msgspec.json.decode((folder / "made" / "comparison.json").read_bytes(), type=Comparison)
    assert kept.schema == COMPARISON_SCHEMA
    assert kept.job.num_steps == 4
    root = ET.parse(folder / "made" / "comparison.svg").getroot()  # noqa: S314 - our own file
    assert root.tag.endswith("svg")


@pytest.mark.usefixtures("plan")
def test_json_of_a_plan_whose_steps_are_shortened(brimful):
    flags = ("--compare", "fp32", "--seeds", "1", "--steps", "2", "--json")
    said = brimful("precision", "plan.yaml", "--data", "data.txt", *flags)
    assert said.code == 0, said.err
    made = msgspec.json.decode(said.out, type=Comparison)
    assert (made.schema, made.job.num_steps) == (COMPARISON_SCHEMA, 2)
    (row,) = made.rows
    assert row.measured_step_s is None  # both steps are warm-up
    assert {"predicted", "simulated", "measured"} <= {
        name.partition("_")[0] for name in msgspec.structs.asdict(row) if name.endswith("bytes")
    }


@pytest.mark.long  # test_precision.py ends so, compare/test_run.py finds the cause
def test_nothing_that_ends_well_is_exit_code_1(brimful, folder):
    del folder
    wild = ("--epsilon", "1e-8", "--optimizer", "adamw-foreach")
    said = brimful("precision", *SHORT, *wild, "--compare", "fp16", "--seeds", 1)
    assert said.code == 1
    assert "failed, step 2" in said.out
    assert "The doctor: epsilon: in" in said.out


def test_ctrl_c_keeps_what_was_done(brimful, folder, monkeypatch):
    """As it is pressed when two runs are done; of a process test_bad_inputs.py presses it."""
    write = compare._write

    def press(out, made):
        write(out, made)
        if len(made.rows[0].runs) == 2:
            monkeypatch.setattr(compare, "_write", write)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(compare, "_write", press)
    flags = ("--compare", "fp32", "--seeds", 50, "--out", "made")
    said = brimful("precision", *SHORT, *flags)
    assert said.code == 130
    assert "interrupted, up to 48 runs were not made" in said.err
    assert " left)" in said.err
    assert "held-out loss" in said.out  # what there is, is compared
    made = json.loads((folder / "made" / "comparison.json").read_text())
    assert len(made["rows"][0]["runs"]) == 2


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--compare", "fp31"), "unknown recipe 'fp31'; did you mean fp32"),
        (("--compare", ""), "unknown recipe"),
        (("--seeds", "3"), "--seeds 3 has no meaning without --compare"),
        (("--compare", "fp32", "--seeds", "0"), "--seeds 0 is too few; give 1"),
        (("--compare", "fp32", "--watch-every", "2"), "--watch-every 2 has no meaning with"),
        (("--compare", "fp32", "--data", "nowhere.txt"), "nowhere.txt"),
        (("--compare", "fp32", "--gpus", "2xlocal"), "the plan is for 2"),
    ],
)
def test_bad_input_is_one_sentence(brimful, folder, flags, reason):
    del folder
    said = brimful("precision", *SHORT, *flags)
    assert said.code == 2
    assert reason in said.err
    assert said.err.count("\n") == 1 + said.err.startswith("comparing ...")


def test_ctrl_c_within_a_mode_of_pytorchs_is_an_interrupt(brimful, folder, monkeypatch):
    """What an interrupt ends may fail itself: torch.device's mode did, seldom."""
    del folder

    def interrupted(_arguments):
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("trying to pop from empty mode stack")

    monkeypatch.setattr("brimful.cli.main._dispatch", interrupted)
    said = brimful("precision", *SHORT)
    assert said.code == 130
    assert "interrupted" in said.err


def test_no_other_error_is_taken_for_an_interrupt(brimful, folder, monkeypatch):
    del folder

    def failing(_arguments):
        raise RuntimeError("of a program")

    monkeypatch.setattr("brimful.cli.main._dispatch", failing)
    with pytest.raises(RuntimeError, match="of a program"):
        brimful("precision", *SHORT)
