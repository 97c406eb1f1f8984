"""Brimful beside its peers: committed results keep their schema, their bars and their page."""

import json
import runpy
import sys

import pytest

import processes

PARTS = ("simulator", "estimator", "search", "loop")
MADE = PARTS[:3]
"""The loop's long form is evidence of its own, ``validation/hf_trainer.json``."""
TIMES_FASTER, HEADLINE = 20.0, "Llama 3.1 8B"
SAME = 0.005
"""Of a peak: simulated against measured."""


@pytest.fixture(scope="module", autouse=True)
def peers(root):
    """The benchmark's own modules, and those of validation that it reads."""
    before = list(sys.path)
    sys.path[:0] = [str(root / "validation"), str(root / "benchmarks" / "peers")]
    yield root / "benchmarks" / "peers"
    sys.path[:] = before


@pytest.fixture(scope="module")
def results(peers):
    from peer_rows import read_result

    return {part: read_result(peers / "results", part) for part in PARTS}


@pytest.fixture(scope="module")
def subjects():
    """Every row as the formulas predict it now, and what peers are told of it."""
    from peer_asks import own_subjects, published_subjects

    return (*published_subjects(), *own_subjects())


@pytest.mark.parametrize("part", MADE)
def test_a_result_says_how_it_was_made(results, part):
    made = results[part]
    assert made is not None
    assert made.rows
    assert not made.quick
    assert made.provenance.command.startswith("python benchmarks/peers/run.py")
    assert {"torch", "brimful"} <= {version.split()[0] for version in made.provenance.versions}


def test_the_page_and_its_picture_are_up_to_date(root):
    made = runpy.run_path(str(root / "docs" / "generate_peers.py"))
    for name, text in (("peers.md", made["page"]()), ("peers.svg", made["chart"]())):
        assert (root / "docs" / name).read_text("utf-8") == text, "run docs/generate_peers.py"


def test_the_simulator_is_much_faster_than_mem_tracker(results):
    rows = {(row.program, row.tool): row for row in results["simulator"].rows}
    theirs, ours = (rows[HEADLINE, tool] for tool in ("mem_tracker", "simulate"))
    assert min(theirs.wall_s) >= TIMES_FASTER * min(ours.wall_s)


def test_the_simulator_is_nearer_to_what_was_measured(results):
    rows = {(row.program, row.tool): row for row in results["simulator"].rows}
    measured = [name for name, tool in rows if tool == "real"]
    assert measured
    for name in measured:
        truth = rows[name, "real"].peak_bytes
        ours, theirs = (rows[name, tool].peak_bytes for tool in ("pretend", "mem_tracker"))
        assert abs(ours / truth - 1) <= SAME
        assert theirs is None or abs(ours - truth) <= abs(theirs - truth)


@pytest.mark.parametrize("source", ["published", "own"])
def test_the_estimator_is_ahead_of_every_peer_by_median(results, source):
    from peer_asks import PEERS
    from peer_scores import duel

    rows = [r for r in results["estimator"].rows if r.source == source and r.measured_bytes]
    duels = [duel(rows, peer) for peer in PEERS]
    assert all(duels), "every peer can express some rows"
    for found in duels:
        assert found.ours.median < found.theirs.median
        assert found.ours.near > found.theirs.near


@pytest.mark.long  # validation/test_published_predicted.py predicts the published runs anew
def test_our_figures_are_those_of_today(results, subjects):
    """The committed predictions are what the formulas say now."""
    kept = {row.id: row for row in results["estimator"].rows}
    for subject in subjects:
        if subject.row.id not in kept:
            assert subject.row.measured_bytes is None, "carried since, and of no use to peers"
            continue
        row = kept[subject.row.id]
        assert subject.row.predicted_bytes == pytest.approx(row.predicted_bytes), row.id
        assert bool(subject.row.reason) == bool(row.reason), row.id  # its words may change


def test_stated_formulas_say_today_what_was_committed(results):
    from estimator_part import FORMULAS
    from peer_asks import every_ask, why_not
    from peer_scores import figure_of

    kept = {row.id: row for row in results["estimator"].rows}
    asks = [ask for ask in every_ask() if ask.id in kept]
    assert len(asks) > len(kept) / 2
    for ask in asks:
        for peer, formula in FORMULAS.items():
            said = None if why_not(peer, ask) else formula(ask)
            # What is held is counted by ours: of plain nf4 up to 3.5 % more since then, as
            # its scales are quantised no second time.
            more = 0.05 if peer.startswith("held") and ask.method == "qlora" else None
            near = said if said is None else pytest.approx(said, rel=more)
            assert figure_of(kept[ask.id], peer) == near, ask.id


def test_the_search_finds_what_trying_everything_finds(results):
    tried = [row for row in results["search"].rows if row.num_tried]
    assert tried
    assert all(row.same_winner and row.same_count for row in tried)


@pytest.fixture
def ask():
    """A GPT of 1,000 parameters in 16-bit mixed precision on one device."""
    from peer_rows import Ask

    return Ask(
        id="tiny", hidden=8, layers=2, heads=2, kv_heads=2, intermediate=32, gated=False, vocab=16,
        max_seq=64, num_parameters=1000, largest_layer=256, gpu="a100-80gb", gpu_bytes=2**30,
        method="full", precision="bf16-mixed", optimizer="adamw", weight_bytes=4, gradient_bytes=4,
        state_bytes=8.0, held_bytes=None, attention="eager", seq_len=4, micro_batch=3,
        accumulation=1, checkpointing="none", zero=0, dp_shard=1, dp_replicate=1, tp=1, pp=1,
    )  # fmt: skip


def changed(ask, **fields):
    import msgspec

    return msgspec.structs.replace(ask, **fields)


def test_korthikanti_and_states(ask):
    """2 layers x s b h (34 + 5 a s / h) = 2 x 96 x 39; 34 where attention is fused; 2 if full."""
    from peer_formulas import korthikanti_plus_states

    assert korthikanti_plus_states(ask) == 16000 + 2 * 96 * 39
    assert korthikanti_plus_states(changed(ask, attention="sdpa")) == 16000 + 2 * 96 * 34
    assert korthikanti_plus_states(changed(ask, checkpointing="full")) == 16000 + 2 * 96 * 2
    sharded = changed(ask, checkpointing="full", zero=2, dp_shard=4)
    assert korthikanti_plus_states(sharded) == 2000 + 14000 / 4 + 2 * 96 * 2


def test_the_calculator_of_eleuther(ask):
    """P = 2 V h + h s + 8 h L + 2 h + 4 L h^2 + 2 L h f = 2,000; 18 B each, s b h L (34 + 5)."""
    from peer_formulas import eleuther_calculator

    parameters = 256 + 32 + 128 + 16 + 512 + 1024
    assert eleuther_calculator(ask) == 18 * parameters + 2 * 96 * 39
    wide = changed(ask, zero=3, dp_shard=2, checkpointing="full")
    buffers = 2 * (5e8 + 1e9)
    assert eleuther_calculator(wide) == 18 * parameters / 2 + buffers + 2 * 96 * 34


def test_what_is_held_and_a_half(ask):
    from peer_formulas import half_again

    assert half_again(ask) == 1.5 * 16000
    assert half_again(changed(ask, method="lora", held_bytes=500)) == 750


@pytest.mark.parametrize(
    ("fields", "peer", "reason"),
    [
        ({}, "llm-analysis", ""),
        ({"method": "lora"}, "llm-analysis", "adapters"),
        ({"precision": "fp32"}, "llm-analysis, tuned", "activations of 16 bits only"),
        ({"checkpointing": "part"}, "EleutherAI's calculator", "some blocks checkpointed"),
        ({"dp_shard": 2}, "accelerate estimate-memory", "several devices"),
        ({"dp_shard": 2, "zero": 1}, "DeepSpeed's estimators", "ZeRO-2 and 3 only"),
        ({"precision": "bf16"}, "DeepSpeed's estimators", "mixed precision only"),
        ({"optimizer": "sgd"}, "16 B + Korthikanti", "optimizer=sgd"),
        ({"method": "lora"}, "held x 1.5", "what is held has no closed form here"),
    ],
)
def test_what_a_peer_cannot_be_told(ask, fields, peer, reason):
    from peer_asks import why_not

    assert why_not(peer, changed(ask, **fields)) == reason


def test_a_score_is_of_relative_errors():
    from peer_scores import score

    found = score([(110.0, 100.0), (95.0, 100.0), (300.0, 100.0), (None, 1.0), (1.0, None)])
    assert found.num_rows == 3
    assert found.median == pytest.approx(0.1)
    assert found.bias == pytest.approx(0.1)
    assert found.worst == pytest.approx(2.0)
    assert score([(None, 1.0)]) is None


@pytest.mark.few(1)
@pytest.mark.parametrize("part", ["search", "estimator", "simulator", "loop"])
def test_the_quick_variant_runs_the_same_code(root, tmp_path, part):
    command = ["benchmarks/peers/run.py", "--quick", "--part", part, "--out", tmp_path]
    done = processes.run(command, cwd=root, forks=True)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.iterdir()  # and no partial one
    made = json.loads(path.read_text())
    assert made["quick"]
    assert made["rows"]
    again = processes.run([*command, "--resume"], cwd=root)
    assert "is there already" in again.stdout


@pytest.mark.long
@pytest.mark.torch
def test_a_program_takes_on_the_pretend_gpu_what_it_was_measured_to_take(results):
    from simulator_part import _row

    name = "small Llama, fp32"
    said = _row(name, "pretend", 1)
    rows = {(row.program, row.tool): row for row in results["simulator"].rows}
    assert said.peak_bytes == pytest.approx(rows[name, "real"].peak_bytes, rel=SAME)
