"""A job that no shipped profile covers, as the command line answers it."""

import json

import pytest

from samples import TRACED_PHI

ASKED = ("phi.json", "--gpus", "2xa100-40gb", "--seq-len", 512, "--precision", "bf16")
FIXED = ("--ac", "none", "--loss-chunks", 1, "--global-batch", 8)


@pytest.fixture
def phi(folder):
    (folder / "phi.json").write_text(json.dumps(TRACED_PHI))


@pytest.mark.torch
@pytest.mark.usefixtures("phi")
def test_it_is_traced_once_and_the_answer_says_so(brimful, monkeypatch):
    first = brimful("estimate", *ASKED)
    assert first.code == 0
    assert "no formula covers model_type=phi: a profile of phi.json is traced here" in first.err
    assert "traced by torch" in brimful("estimate", *ASKED, "-v").out
    monkeypatch.setattr("brimful.simulate.on_demand.with_variants", None)
    second = brimful("estimate", *ASKED)
    assert (second.code, second.out, second.err) == (0, first.out, "")


@pytest.mark.torch
@pytest.mark.usefixtures("phi")
def test_it_is_searched_by_formulas(brimful):
    found = brimful("plan", *ASKED, *FIXED, "--no-proof", "--json")
    answer = json.loads(found.out)
    assert (found.code, found.err, answer["rung"]) == (0, "", "predicted")
    assert {row["strategy"]["zero"] for row in [answer["best"], *answer["runners_up"]]} > {3}
    assert answer["untried"] is None


@pytest.mark.torch  # transformers reads the configuration
@pytest.mark.usefixtures("phi")
def test_without_torch_it_says_what_to_install(brimful, monkeypatch):
    monkeypatch.setattr("brimful.cli.on_demand.find_spec", lambda _name: None)
    for verb in ("estimate", "plan"):
        said = brimful(verb, *ASKED, "--attention", "eager")
        assert (said.code, said.out) == (2, "")
        assert "tracing one needs torch" in said.err
        assert "pip install 'brimful[train]'" in said.err


@pytest.mark.torch
@pytest.mark.usefixtures("phi")
def test_what_would_make_it_fit_is_traced_too(brimful):
    asked = ("phi.json", "--gpus", "a100-40gb", "--seq-len", 512, "--precision", "fp32")
    said = brimful("estimate", *asked, "--micro-batch", 4, "--memory-limit", "690MiB")
    assert said.code == 1
    assert "all 4 layers checkpointed" in " ".join(said.out.split())


@pytest.mark.torch
@pytest.mark.usefixtures("phi")
def test_what_is_fixed_to_recompute_is_traced_first(brimful):
    asked = ("phi.json", "--gpus", "a100-40gb", "--seq-len", 512, "--precision", "fp32")
    found = brimful("plan", *asked, "--ac", "full", "--micro-batch", 2, "--no-proof", "--json")
    assert (found.code, json.loads(found.out)["rung"]) == (0, "predicted")


@pytest.mark.torch
@pytest.mark.usefixtures("phi")
def test_nothing_is_advised_where_what_takes_less_was_not_traced(brimful, monkeypatch):
    monkeypatch.setattr("brimful.cost.profiles._own", {})  # what other tests traced
    monkeypatch.setattr("brimful.cli.on_demand.MOST_LEANER_S", -1.0)
    asked = ("phi.json", "--gpus", "a100-40gb", "--seq-len", 512, "--precision", "fp32")
    said = brimful("estimate", *asked, "--micro-batch", 4, "--memory-limit", "690MiB")
    told = " ".join(said.out.split())
    assert said.code == 1
    assert "not tried settings of phi.json that take less were not all traced here yet" in told
    assert "instead" not in told
    assert "would fit" not in told


@pytest.mark.torch
@pytest.mark.usefixtures("phi")
@pytest.mark.parametrize(("most", "is_told"), [(-1.0, True), (2.0, False)])
def test_what_is_between_is_not_traced_once_time_is_short_and_something_fits(
    brimful, monkeypatch, most, is_told
):
    monkeypatch.setattr("brimful.cost.profiles._own", {})  # what other tests traced
    monkeypatch.setattr("brimful.cli.stages.MOST_TRACED", most)
    asked = ("phi.json", "--gpus", "a100-40gb", "--seq-len", 512, "--precision", "fp32")
    found = brimful(
        "plan", *asked, "--global-batch", 64, "--micro-batch", 4, "--memory-limit", "730MiB",
        "--no-proof", "--loss-chunks", 1,
    )  # fmt: skip
    told = " ".join(found.out.split())
    assert found.code == 0
    assert ("other checkpointing was not traced in time" in told) is is_told
    assert ("all 4 layers checkpointed" in told.partition("speed")[0]) is is_told
