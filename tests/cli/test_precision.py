"""``brimful precision``: what it prints, what it keeps, and what it refuses."""

import json
import xml.etree.ElementTree as ET

import pytest

from brimful.doctor.examination import PRECISION_SCHEMA

pytestmark = pytest.mark.torch

SHORT = ("--seq-len", 32, "--global-batch", 4, "--micro-batch", 2, "--steps", 3)
FP16 = ("tiny.json", "--gpus", "local", "--precision", "fp16-mixed")


def test_it_prints_tables_of_a_hundred_columns_and_keeps_plots(brimful, folder):
    said = brimful("precision", *FP16, "--data", "data.txt", *SHORT, "--out", "seen", "-v")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("weights   random: none were given")
    assert lines.index("Findings") + 1 == lines.index("  none") < lines.index("Advice")
    assert lines.index("Advice") < lines.index("Inputs, with every default")
    told = ["looking: loss scales are tried", *(f"looking: step {n} of 3" for n in (1, 2, 3))]
    assert [line for line in said.err.splitlines() if line in told] == told
    for title in ("Inputs, with every default", "Precision of tiny.json", "Advice"):
        assert title in lines
    assert "steps       3, of which 1 were watched" in lines
    assert {path.name for path in (folder / "seen").iterdir()} >= {
        "exponents.svg", "loss_scale.svg", "precision.json"
    }  # fmt: skip
    for name in ("exponents.svg", "loss_scale.svg"):
        root = ET.parse(folder / "seen" / name).getroot()  # noqa: S314 - our own file
        assert root.tag.endswith("svg")
    kept = json.loads((folder / "seen" / "precision.json").read_text())
    assert kept["schema"] == PRECISION_SCHEMA


@pytest.mark.usefixtures("plan")
def test_json_of_a_plan_with_every_number_worked_out(brimful):
    said = brimful("precision", "plan.yaml", "--data", "data.txt", "--steps", 2, "--json")
    told = json.loads(said.out)
    assert (said.code, told["schema"]) == (0, PRECISION_SCHEMA)
    assert {"job", "strategy", "cluster", "settings", "findings", "advice"} <= told.keys()
    assert len(told["losses"]) == 2
    rows = told["seen"]["ranks"][0]["rows"]
    for row in rows:
        counted = sum(row["exponents"].values()) + row["num_zeros"]
        assert counted + row["num_inf"] + row["num_nan"] == row["num"]
        assert set(row["headroom_doublings"]) == {"bf16", "fp16", "e5m2", "e4m3"}
    assert {row["kind"] for row in rows} >= {"weight", "activation", "gradient", "output-gradient"}
    assert told["seen"]["compared"]["wide"] == "fp64"


def test_a_fault_is_exit_code_1(brimful, folder):
    del folder
    said = brimful(
        "precision", *FP16, "--data", "data.txt", *SHORT, "--steps", 4, "--initial-scale", 2**40
    )
    assert said.code == 1
    assert "scale-too-high: times the loss scale gradients are beyond fp16's largest" in said.out
    assert "-v here" in said.out
    assert "largest of" not in said.out  # no table of modules
    assert "4 of 4 steps were skipped" in " ".join(said.out.split())


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ((), "--data is missing"),
        (("--data", "nowhere.txt"), "nowhere.txt"),
        (("--data", "data.txt", "--watch-every", "0"), "--watch-every 0 is too few; give 1"),
        (("--data", "data.txt", "--overflow-share", "1.5"), "1.5 is out of range; give 0 or more"),
        (("--data", "data.txt", "--engine", "deepspeed"), "deepspeed"),
        (("--data", "data.txt", "--gpus", "2xlocal"), "torchrun"),
    ],
)
def test_bad_input_is_one_sentence(brimful, folder, flags, reason):
    del folder
    said = brimful("precision", "tiny.json", "--precision", "fp32", *SHORT, *flags)
    assert said.code == 2
    assert reason in said.err
    assert said.err.count("\n") == 1
    assert said.err.startswith("brimful: ")
