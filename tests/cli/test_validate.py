"""``brimful validate``: says how near predictions of published runs come, fast and to the width."""

import json
import subprocess
import sys

import msgspec
import pytest

from brimful.hardware.compared import compared
from brimful.hardware.datasheets import datasheets
from brimful.published.rows import families, published_runs

WIDTH = 100


@pytest.mark.parametrize(
    "argv", [("--runs", "--family", "simumax"), pytest.param(("--runs",), marks=pytest.mark.long)]
)
def test_it_fits_the_terminal(brimful, argv):
    said = brimful("validate", *argv)
    assert (said.code, said.err) == (0, "")
    assert max(map(len, said.out.splitlines())) <= WIDTH
    assert "Peak allocated memory" in said.out
    assert "No formula" in said.out


def test_a_summary_comes_first_and_tables_when_asked_for(brimful):
    out = brimful("validate", "--family", "simumax").out
    lines = out.splitlines()
    assert lines[0].startswith("ANSWER    14 published runs, 14 of them predicted")
    assert "peak allocated bytes of 14 runs: half are within 0.0%, nine" in out
    assert len(lines) <= 8
    assert max(map(len, lines)) <= 80


def test_a_gpu_says_whether_runs_of_it_were_compared(brimful):
    none = next(name for name in datasheets() if name not in compared().gpus)
    assert "no run of this GPU was compared" in brimful("gpus", none).out
    assert "off in" in brimful("gpus", "h100-80gb").out


def test_it_says_what_has_no_formula(brimful):
    out = brimful("validate", "--family", "fsdp-qlora", "-v").out
    assert "10 published runs, 7 of them predicted" in out
    assert "CPU offload" in out


@pytest.mark.parametrize("family", ["fsdp-qlora", pytest.param("", marks=pytest.mark.long)])
def test_json_holds_every_run(brimful, family):
    only = ("--family", family) if family else ()
    told = json.loads(brimful("validate", *only, "--json").out)
    assert told["schema"] == "brimful.validate/1"
    assert [run["id"] for run in told["runs"]] == [run.id for run in published_runs(family)]
    scores = told["scores"]
    assert scores["num_runs"] == len(told["runs"])
    assert scores["num_predicted"] == sum("reason" not in run for run in told["runs"])
    assert sum(m["num_runs"] for m in scores["missing"]) + scores["num_predicted"] == len(
        told["runs"]
    )


@pytest.mark.few(only=["hf-docs"])
@pytest.mark.parametrize("family", families())
def test_one_family(brimful, family):
    told = json.loads(brimful("validate", "--family", family, "--json").out)
    assert {run["family"] for run in told["runs"]} == {family}


def test_an_unknown_family_names_all_and_those_with_runs_of_a_method(brimful):
    said = brimful("validate", "--family", "lora")
    assert said.code == 2
    assert ", ".join(families()) in said.err
    told = said.err.partition("runs of lora are in ")[2]
    assert all((f"{name} (" in told) == _has_lora(name) for name in families())


def _has_lora(family):
    return any(run.method == "lora" for run in published_runs(family))


def test_an_unknown_family_is_bad_input(brimful):
    said = brimful("validate", "--family", "fsm")
    assert said.code == 2
    assert "did you mean fms" in said.err


def test_runs_of_ones_own(brimful, tmp_path):
    run = msgspec.structs.replace(published_runs("fms")[8], id="mine", family="ours")
    path = tmp_path / "runs.jsonl"
    path.write_bytes(msgspec.json.encode(run) + b"\n\n")
    told = json.loads(brimful("validate", "--file", path, "--json").out)
    assert [(row["id"], row["family"]) for row in told["runs"]] == [("mine", "ours")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"id": "a"}\n', "line 1 is not a published run"),
        (b'{"name": "a"}\n', "it has to say id, family, implementation, model, gpu, num_devices, "),
        (b'{"name": "a"}\n', "one figure or more of allocated_gib, active_gib, reserved_gib, "),
        (b"\n{\n", "line 2 is not a published run"),
        (b"\xff\n", "line 1 is not a published run"),
    ],
)
def test_a_broken_line_is_named(brimful, tmp_path, content, message):
    path = tmp_path / "runs.jsonl"
    path.write_bytes(content)
    said = brimful("validate", "--file", path)
    assert said.code == 2
    assert message in said.err


def test_a_missing_file_and_two_sources_are_bad_input(brimful, tmp_path):
    said = brimful("validate", "--file", tmp_path / "none.jsonl")
    assert (said.code, "cannot be read" in said.err) == (2, True)
    said = brimful("validate", "--file", tmp_path / "none.jsonl", "--family", "fms")
    assert (said.code, "either --family or --file" in said.err) == (2, True)


def test_a_model_that_nobody_knows_is_a_reason(brimful, tmp_path):
    run = msgspec.structs.replace(published_runs("fms")[8], model="no-such-model")
    path = tmp_path / "runs.jsonl"
    path.write_bytes(msgspec.json.encode(run))
    (row,) = json.loads(brimful("validate", "--file", path, "--json").out)["runs"]
    assert "no-such-model" in row["reason"]


@pytest.mark.long  # test_layers.py imports its modules without torch
def test_it_needs_no_torch():
    code = (
        "import sys; from brimful.cli.main import main; "
        "main(['validate', '--family', 'fms', '--json']); "
        "print([m for m in ('torch', 'transformers') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.torch
def test_what_does_not_ship_is_traced_where_asked_for(brimful):
    said = json.loads(brimful("validate", "--family", "hf-docs", "--trace", "--json").out)
    rows = {row["id"]: row for row in said["runs"]}
    assert len(rows) == 4
    assert not any(row.get("reason") for row in rows.values())
    band = rows["hf_bertlarge_vanilla"]["predicted_process_gib"]
    published = rows["hf_bertlarge_vanilla"]["published_process_gib"]
    assert band["low"] <= published <= band["high"]
