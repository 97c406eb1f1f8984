"""``brimful plan`` proves its plan by simulating it, and ends as that says."""

import json

import pytest

from brimful.cli.main import parser_of
from brimful.cli.proof import proven_code
from brimful.plan import read_plan
from brimful.simulate.proof import Proof

pytestmark = pytest.mark.torch
NEAR = (
    "llama-3.2-1b", "--gpus", "h100-80gb", "--precision", "bf16", "--seq-len", "2048",
    "--global-batch", "4", "--micro-batch", "4", "--ac", "selective", "--loss-chunks", "1",
)  # fmt: skip


@pytest.fixture
def near(brimful):
    """Limits above what its tensors take alive: close to it, and with room to spare."""
    said = brimful("plan", *NEAR, "--no-proof", "--json")
    made = json.loads(said.out)
    assert made["proof"] is None
    peak = made["best"]["peak_bytes"]
    return {"close": peak + 2**30, "roomy": 2 * peak + 2**30}


def test_a_plan_near_the_brim_is_simulated_and_the_file_holds(brimful, near, tmp_path):
    limit = f"{near['close'] / 2**30:.4f}GiB"
    said = brimful("plan", *NEAR, "--memory-limit", limit, "-o", tmp_path / "plan.yaml")
    words = " ".join(said.out.split())
    assert f"plan written to {tmp_path}" in words
    said_of_it = [each in words for each in ("proven: simulated", "TIGHT: ", "does not hold: ")]
    assert sum(said_of_it) == 1, words
    assert said.code == (not said_of_it[0])
    strategy = read_plan(tmp_path / "plan.yaml").strategy
    simulated = brimful("simulate", tmp_path / "plan.yaml", "--json")
    reserved = json.loads(simulated.out)["reserved"]
    assert reserved["allocator"] == strategy.allocator
    assert (reserved["outcome"] == "fits" and not reserved["num_retries"]) == (said.code == 0)


def test_with_room_to_spare_nothing_is_simulated(brimful, near):
    said = brimful("plan", *NEAR, "--memory-limit", f"{near['roomy'] / 2**30:.4f}GiB", "--json")
    assert json.loads(said.out)["proof"] is None
    assert said.code == 0


def test_a_program_reads_the_proof(brimful, near):
    said = brimful("plan", *NEAR, "--memory-limit", f"{near['close'] / 2**30:.4f}GiB", "--json")
    made = json.loads(said.out)
    assert made["proof"]["word"] in {"fits", "tight", "no"}
    trial = made["proof"]["trials"][-1]
    assert trial["reserved"]["capacity_bytes"] == made["usable_bytes"]
    assert said.code == (made["proof"]["word"] != "fits")


@pytest.mark.parametrize(
    ("word", "flags", "code"),
    [
        ("fits", (), 0), ("tight", (), 1), ("tight", ("--accept-tight",), 0), ("no", (), 1),
        ("no", ("--accept-tight",), 1), ("unproven", (), 0),
    ],
)  # fmt: skip
def test_the_exit_code_is_what_was_proven(word, flags, code):
    args = parser_of("plan").parse_args(["llama-3.2-1b", *flags])
    assert proven_code(args, Proof(word=word, trials=(), num_passed_over=0, why="")) == code
