"""What was found by drawing, once each."""

import json
import os

import pytest
from tests.cli.conftest import brimful, folder  # noqa: F401 - fixtures

GPU = ("estimate", "gpt2", "--gpus", "h100-80gb")


def test_a_limit_below_the_context_leaves_nothing_and_not_less(brimful):  # noqa: F811
    said = brimful(*GPU, "--memory-limit", "500MiB", "--json")
    assert said.code == 1
    assert json.loads(said.out)["usable_bytes"] == 0


@pytest.mark.parametrize("flag", ["--gpus", "--network", "--vocab-size", "--precision"])
def test_two_dashes_are_no_value(brimful, flag):  # noqa: F811
    said = brimful(*GPU, f"{flag}=--")
    assert said.code == 2
    assert f"{flag} is given as --, which is no value" in said.err


@pytest.mark.parametrize("price", ["1" + "0" * 400, "1.0e+300", ".inf", "-1"])
def test_no_price_is_too_large_for_sums(brimful, folder, price):  # noqa: F811
    (folder / "prices.yaml").write_text(f"h100-80gb: {price}\n")
    said = brimful(*GPU, "--prices", "prices.yaml")
    assert said.code == 2
    assert "0 to 1000000000" in said.err


def test_deepspeeds_json_is_no_bomb(brimful, folder):  # noqa: F811
    for content in ("[" * 100_000, '{"train_batch_size": ' + "9" * 9999 + "}"):
        (folder / "ds.json").write_text(content)
        said = brimful("plan", *GPU[1:], "--from", "ds.json")
        assert said.code == 2
        assert "thousands of" in said.err


def test_a_control_character_in_a_plan_reaches_no_terminal(brimful, folder):  # noqa: F811
    assert brimful("plan", *GPU[1:], "-o", "plan.yaml").code == 0
    text = (folder / "plan.yaml").read_text()
    (folder / "plan.yaml").write_text(text.replace("name: gpt2", 'name: "\\x1b[31mgpt2"'))
    said = brimful("estimate", "plan.yaml")
    assert said.code == 2
    assert "a control character" in said.err
    assert "\x1b" not in said.err + said.out


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_said_to_be_one(brimful, folder):  # noqa: F811
    (folder / "prices.yaml").write_text("h100-80gb: 1")
    (folder / "prices.yaml").chmod(0)
    assert "cannot be read" in brimful(*GPU, "--prices", "prices.yaml").err


RUN = {
    "id": "mine", "family": "x", "implementation": "hf", "model": "gpt2", "gpu": "h100-80gb",
    "num_devices": 1, "method": "full", "precision": "fp32", "optimizer": "adamw", "seq_len": 64,
    "micro_batch": 1, "checkpointing": "none", "source": "me", "versions": "torch 2.13.0",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_devices": 0}, "num_devices is 0"),
        ({"seq_len": -1}, "seq_len is -1"),
        ({"usable_gib": 1e308}, "usable_gib is 1e+308"),
        ({"tokens_per_s": -1.0}, "tokens_per_s is -1"),
        ({"devices_per_node": 2}, "devices_per_node is 2 and num_devices 1"),
    ],
)
def test_a_published_run_that_cannot_be_is_refused(brimful, folder, changes, says):  # noqa: F811
    (folder / "runs.jsonl").write_text(json.dumps({**RUN, **changes}))
    said = brimful("validate", "--file", "runs.jsonl")
    assert said.code == 2
    assert says in said.err


def test_a_file_of_no_runs_is_said_to_be_one(brimful, folder):  # noqa: F811
    (folder / "runs.jsonl").write_text("\n")
    said = brimful("validate", "--file", "runs.jsonl")
    assert said.code == 2
    assert "holds no runs" in said.err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "changes",
    [
        {"copy_bytes_per_s": -5.0},
        {"op_overhead_s": 1e308},
        {"memory_bytes_per_s": 1e-308},
        {"matrix_flops_per_s": {"fp32": 1e10, "bf16": -1}},
        {"spread": -1.0},
        {"num_threads": 0},
        {"date": "\x1b[31m"},
    ],
)
def test_a_calibration_of_no_machine_is_not_believed(changes):
    from fuzz_files import _calibration

    from brimful.errors import FileFormatError
    from brimful.hardware.calibration import calibration_path, load_calibration

    sound = _calibration()
    path = calibration_path(sound["machine"])
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(sound))
    assert load_calibration(sound["machine"]) is not None
    path.write_text(json.dumps({**sound, **changes}))
    with pytest.raises(FileFormatError, match="calibrate again"):
        load_calibration(sound["machine"])
