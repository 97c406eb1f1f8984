"""``brimful plan`` proves its plan by simulating it, and ends as that says."""

import io
import json
from contextlib import redirect_stdout
from types import SimpleNamespace

import pytest

from brimful.cli.main import main, parser_of
from brimful.cli.plan_told import told_step_s
from brimful.cli.proof import word_code
from brimful.values.plan import read_plan

pytestmark = pytest.mark.torch
NEAR = (
    "llama-3.2-1b", "--gpus", "h100-80gb", "--precision", "bf16", "--seq-len", "2048",
    "--global-batch", "4", "--micro-batch", "4", "--ac", "selective", "--loss-chunks", "1",
    "--offload", "none",
)  # fmt: skip


CARDS = {"no": 2**30 * 7 // 10, "tight": 2**30, "fits": 2**32}
"""What a card has above the live bytes of the plan, and what simulating says of it then."""


@pytest.fixture(scope="module")
def peak_bytes():
    """What the one plan takes alive, asked once."""
    said = io.StringIO()
    with redirect_stdout(said):
        main(["plan", *NEAR, "--no-proof", "--json"])
    made = json.loads(said.getvalue())
    assert made["proof"] is None
    return made["best"]["peak_bytes"]


@pytest.fixture
def alone(monkeypatch):
    """Nothing else is proven: what would fit instead is told after the plan."""
    monkeypatch.setattr("brimful.cli.plan.tell_ways_out", lambda *_args: ())


@pytest.mark.usefixtures("alone")
@pytest.mark.few(only=["tight"])
@pytest.mark.parametrize("word", CARDS)
def test_what_plan_says_simulate_says(brimful, peak_bytes, tmp_path, word):
    card = f"{peak_bytes + CARDS[word]}B"
    said = brimful("plan", *NEAR, "--card-memory", card, "-o", tmp_path / "plan.yaml")
    words = " ".join(said.out.split())
    first = {"no": "NO ", "tight": "TIGHT ", "fits": "FITS "}[word]
    assert said.out.startswith(first), "what is read first is what is proven"
    assert not [line for line in said.out.splitlines()[1:] if line.startswith(("FITS ", "NO "))]
    assert "predicted, being proven: " in said.err
    assert f"plan written to {tmp_path}" in words
    told = {"no": "does not hold: ", "tight": "simulated TIGHT: ", "fits": "proven simulated"}[word]
    assert told in words
    assert said.code == (word != "fits")
    simulated = brimful("simulate", tmp_path / "plan.yaml", "--json")
    told = json.loads(simulated.out)
    assert (told["word"], told["fits"]) == (word, word == "fits")
    assert simulated.code == said.code
    assert told["reserved"]["allocator"] == read_plan(tmp_path / "plan.yaml").strategy.allocator
    if word == "tight":
        assert brimful("simulate", tmp_path / "plan.yaml", "--accept-tight").code == 0


@pytest.mark.usefixtures("alone")
def test_a_limit_is_held_to_what_the_allocator_holds(brimful, peak_bytes, tmp_path):
    """The card stays as it is: what it gives beyond the limit is cached, and is too much."""
    limit = f"{peak_bytes + 2**30}B"
    said = brimful("plan", *NEAR, "--memory-limit", limit, "--json", "-o", tmp_path / "plan.yaml")
    made = json.loads(said.out)
    assert (said.code, made["proof"]["word"]) == (1, "no")
    reserved = made["proof"]["trials"][-1]["reserved"]
    assert reserved["outcome"] == "over the limit"
    assert reserved["limit_bytes"] == made["usable_bytes"] < reserved["capacity_bytes"]
    over_bytes = reserved["simulated_peak_reserved_bytes"] - reserved["limit_bytes"]
    assert reserved["short_bytes"] == over_bytes > 0
    simulated = brimful("simulate", tmp_path / "plan.yaml")
    assert simulated.code == 1
    assert simulated.out.startswith("NO ")


def test_with_room_to_spare_nothing_is_simulated(brimful, peak_bytes):
    said = brimful("plan", *NEAR, "--memory-limit", f"{2 * peak_bytes + 2**30}B", "--json")
    assert json.loads(said.out)["proof"] is None
    assert said.code == 0


@pytest.mark.parametrize(
    ("word", "flags", "code"),
    [
        ("fits", (), 0), ("tight", (), 1), ("tight", ("--accept-tight",), 0), ("no", (), 1),
        ("no", ("--accept-tight",), 1), ("unproven", (), 0),
    ],
)  # fmt: skip
def test_the_exit_code_is_what_was_proven(word, flags, code):
    args = parser_of("plan").parse_args(["llama-3.2-1b", *flags])
    assert word_code(args, word) == code


@pytest.mark.long  # show/test_answers.py has a plan that is tight without a proof
def test_without_a_proof_the_replay_of_the_prediction_decides(brimful):
    job = ("llama-3.1-8b", "--seq-len", "8192", "--global-batch", "8", "--gpus", "h200")
    job += ("--micro-batch", "1", "--ac", "full", "--loss-chunks", "32")  # the leanest
    said = brimful("plan", *job, "--no-proof")
    assert said.code == 1
    assert said.out.startswith("TIGHT ")
    assert "completes only by emptying the allocator's cache 3 times" in said.out
    assert brimful("plan", *job, "--no-proof", "--accept-tight").code == 0


@pytest.mark.parametrize(("told", "step_s"), [("found", 1.0), ("nearest", 2.0)])
def test_the_speed_is_of_the_settings_that_are_told(told, step_s):
    """Where simulating says NO those that lack least are told, and had the other's speed."""
    found = SimpleNamespace(
        plan=SimpleNamespace(strategy=told, estimate=SimpleNamespace(predicted_step_s=2.0)),
        record=SimpleNamespace(rows=[SimpleNamespace(strategy="found", step_s=1.0)]),
    )
    assert told_step_s(found) == step_s
