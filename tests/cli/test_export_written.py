"""What a target runs into that cannot be told all of a plan."""

import json

import pytest

ASK = (
    "llama-3.2-1b", "--gpus", "h100-80gb", "--method", "lora", "--seq-len", 8192,
    "--global-batch", 4, "--micro-batch", 4, "--no-proof",
)  # fmt: skip


@pytest.mark.parametrize("chunks", [1, 8])
def test_a_loss_in_chunks_that_a_file_cannot_say_is_counted_whole(brimful, tmp_path, chunks):
    plan = tmp_path / "plan.yaml"
    assert brimful("plan", *ASK, "--loss-chunks", chunks, "--ac", "full", "-o", plan).code == 0
    text = brimful("export", plan, "--to", "llama-factory").out
    told = ("# as planned FITS" in text, "# as written here FITS" in text)
    assert told == (chunks > 1, chunks > 1)


def test_what_a_file_runs_into_is_said_beside_it(brimful, tmp_path):
    plan = tmp_path / "plan.yaml"
    asked = ("--loss-chunks", 32, "--ac", "full", "--memory-limit", "12GiB")
    assert brimful("plan", *ASK, *asked, "-o", plan).code == 0
    found = brimful("export", plan, "--to", "llama-factory")
    assert found.code == 1
    assert "what llama-factory runs does not fit" in found.err
    assert "brimful plan --for llama-factory" in found.err


def test_what_is_written_is_judged_with_what_the_allocator_holds(brimful, tmp_path):
    plan = tmp_path / "plan.yaml"
    asked = ("llama-3.2-1b", "--gpus", "2xrtx-4090", "--loss-chunks", 16, "--ac", "none",
             "--global-batch", 2)  # fmt: skip
    assert brimful("plan", *asked, "--no-proof", "-o", plan).code == 0
    text = brimful("export", plan, "--to", "hf-trainer").out
    assert "# as written here TIGHT" in text
    assert "tensors only" not in text


def test_linear_layers_of_a_classs_own_stay_whole_and_are_said_to(brimful):
    """Falcon's: transformers packs ``nn.Linear`` alone."""
    asked = ("falcon-7b", "--gpus", "rtx-4090", "--method", "qlora", "--seq-len", 512)
    found = json.loads(brimful("estimate", *asked, "--json").out)
    parameters = next(item for item in found["items"] if item["name"] == "parameters")
    assert parameters["num_bytes"] == pytest.approx(13.01 * 2**30, rel=0.001)
    assert "unpacked" in brimful("estimate", *asked).out
