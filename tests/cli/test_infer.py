import json
import re

import pytest

pytestmark = pytest.mark.torch

INT8 = ("--weights-format", "int8", "--precision", "fp32")
HERE = ("--gpus", "local", "--seq-len", 48, "--prompt-len", 32)


@pytest.mark.usefixtures("folder")
def test_three_rungs_side_by_side(brimful):
    pytest.importorskip("torchao")
    found = brimful("infer", "tiny.json", *HERE, *INT8, "--json")
    assert found.code == 0, found.err
    told = json.loads(found.out)
    assert told["schema"] == "brimful.inference-run/1"
    assert told["job"]["weights_format"] == "int8"
    measured = told["measurement"]["measured_peak_allocated_bytes"]
    simulated = told["simulation"]["simulated_peak_allocated_bytes"]
    assert measured == pytest.approx(simulated, rel=0.005)
    assert told["estimate"]["predicted_peak_allocated_bytes"] is not None
    assert told["measurement"]["measured_token_s"] > 0
    said = brimful("infer", "tiny.json", *HERE, "-v")
    assert said.code == 0
    assert said.out.startswith("FITS ")
    assert "Three rungs, item by item" in said.out
    assert "random" in said.out
    assert max(map(len, said.out.splitlines())) <= 100


@pytest.mark.usefixtures("folder")
def test_how_fast_it_writes_is_the_answer(brimful):
    said = brimful("infer", "tiny.json", "--gpus", "local", "--seq-len", 48)
    words = " ".join(said.out.split())
    assert re.search(r"speed [\d,.e+]+ tokens/s written at 48 tokens of text", words)
    assert "24 tokens of prompt in" in words
    assert re.search(r"process [\d.]+ .iB at most", words)
    assert len(said.out.splitlines()) <= 12
    silent = brimful("infer", "tiny.json", *HERE[:4], "--prompt-len", 48)
    assert "give a shorter --prompt-len" in " ".join(silent.out.split())


@pytest.mark.usefixtures("folder")
def test_what_does_not_fit_is_said_by_the_exit_code(brimful):
    said = brimful("infer", "tiny.json", *HERE, "--memory-limit", "64KiB")
    assert said.code == 1


@pytest.mark.usefixtures("folder")
def test_bad_input_is_one_sentence(brimful):
    cases = [
        (("--gpus", "h100-80gb"), "measures on a CPU in this version and h100-80gb is a GPU"),
        (("--gpus", "local", "--method", "lora"), "--method lora has no meaning with --task"),
        (("--gpus", "local", "--weights-format", "int3"), "unknown weights-format 'int3'"),
    ]
    for argv, words in cases:
        said = brimful("infer", "tiny.json", *argv)
        assert (said.code, said.out) == (2, "")
        assert words in said.err
        assert len(said.err.splitlines()) == 1
