"""Our trainer and Hugging Face's are asked for the same thing; how fast each is: make prove."""

import math

import msgspec
import peer_worker
import peers_part
import pytest
from comparison_rows import PeerRow
from peer_site import ROWS, Site, make_site
from peer_worker import Answer
from peers_part import QUICK, SETTINGS, Bench, Sides
from provenance import ROOT

pytestmark = pytest.mark.torch

TINY = QUICK._replace(
    model={**QUICK.model, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2},
    seq_len=32,
    num_steps=3,
)
TEXT = ROOT / "src" / "brimful" / "models"


def case_of(setting):
    return peers_part.case_of(TINY, setting, 7)


def bench_in(folder):
    return Bench(Site(folder / "site", TEXT), TINY)


@pytest.mark.long
@pytest.mark.parametrize("setting", [SETTINGS[1], SETTINGS[5]], ids=["full", "lora"])
def test_both_trainers_learn_the_same_in_the_same_memory(setting, tmp_path, monkeypatch):
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    bench = bench_in(tmp_path)
    made = make_site(bench.site, case_of(setting))
    ours, theirs = (
        peers_part._ask(bench, name, made, metered=True)
        for name, _ in peers_part._named(Sides(made, made))
    )
    assert len(ours.losses) == peer_worker.NUM_METERED_STEPS
    assert peers_part.farthest(ours.losses, theirs.losses) < 1e-4
    assert peers_part.farthest(ours.norms, theirs.norms) < 1e-3
    assert ours.measured_peak_bytes <= peers_part.PEAK_BAR * theirs.measured_peak_bytes
    assert ours.measured_peak_bytes > 0.8 * theirs.measured_peak_bytes
    assert ours.num_threads == theirs.num_threads


def test_the_rows_are_those_that_we_train_on(tmp_path, monkeypatch):
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    import numpy as np

    bench = bench_in(tmp_path)
    made = make_site(bench.site, case_of(SETTINGS[0]))
    rows = np.load(bench.site.folder / ROWS)
    assert rows.shape == (TINY.num_steps * made.job.global_batch, TINY.seq_len + 1)
    again = make_site(Site(tmp_path / "other", TEXT), case_of(SETTINGS[0]))
    assert (np.load(tmp_path / "other" / ROWS) == rows).all()
    assert again.job.weights != made.job.weights


def test_the_peers_settings_say_the_same(tmp_path):
    plain = peer_worker.their_arguments(case_of(SETTINGS[0]), tmp_path)
    assert (plain["per_device_train_batch_size"], plain["gradient_accumulation_steps"]) == (8, 1)
    assert not plain["gradient_checkpointing"]
    assert not plain["bf16"]
    other = peer_worker.their_arguments(case_of(SETTINGS[3]), tmp_path)
    assert (other["per_device_train_batch_size"], other["gradient_accumulation_steps"]) == (4, 2)
    assert other["gradient_checkpointing"]
    assert other["bf16"]
    for name, value in (("max_grad_norm", 1.0), ("adam_beta2", 0.95), ("weight_decay", 0.1)):
        assert plain[name] == value


def test_the_first_two_steps_are_not_timed():
    notes = peer_worker.Notes()
    notes.ends_s = [10.0, 13.0, 14.0, 15.5]
    assert notes.answer(peak_bytes=0).steps_s == (1.0, 1.5)


def test_runs_alternate_which_trainer_comes_first(tmp_path, monkeypatch):
    asked = []
    answer = Answer(
        steps_s=(1.0,),
        losses=(),
        norms=(),
        measured_peak_bytes=0,
        process_bytes=0,
        num_threads=1,
    )

    def ask(request):
        asked.append(request.trainer)
        return answer

    monkeypatch.setattr(peers_part, "ask", ask)
    case = case_of(SETTINGS[0])
    bench = bench_in(tmp_path)._replace(size=TINY._replace(num_pairs=4))
    assert len(list(peers_part._pairs(bench, Sides(case, case)))) == 4
    assert asked == ["ours", "hf", "hf", "ours", "ours", "hf", "hf", "ours"]


def row_of(setting=SETTINGS[0], **changes):
    row = PeerRow(
        case=case_of(setting),
        settings="same",
        peer="Trainer",
        limit_bytes=None,
        num_threads=2,
        tokens_per_s=(100.0, 102.0),
        peer_tokens_per_s=(100.0, 100.0),
        speed_ratio=1.01,
        measured_peak_bytes=1000,
        peer_peak_bytes=1000,
        peak_ratio=1.0,
        process_bytes=1,
        peer_process_bytes=1,
        loss_error=0.0,
        norm_error=0.0,
        others_load=0.02,
        grid=(),
    )
    return msgspec.structs.replace(row, **changes)


def test_what_is_slower_larger_or_other_mathematics_is_missed():
    rows = [
        row_of(),
        row_of(speed_ratio=0.96),
        row_of(peak_ratio=1.03),
        row_of(loss_error=0.01),
        row_of(settings="best", limit_bytes=999, peak_ratio=3.0),
    ]
    assert peers_part.summarize(rows[:1]).missed == ()
    words = [text.split(":")[0] for text in peers_part.summarize(rows).missed]
    assert words == [
        "0.960 x the peer's tokens/s",
        "1.030 x the peer's peak",
        "losses differ by 1.0e-02",
        "peak 1000 B is above the limit",
    ]


def test_times_that_others_disturbed_do_not_count():
    (said,) = peers_part.summarize([row_of(others_load=0.5)]).missed
    assert said.startswith("disturbed: others used up to 50%")


def test_the_grid_has_every_micro_batch_with_checkpointing_and_without():
    case = case_of(SETTINGS[0])
    found = [
        (c.strategy.micro_batch, c.strategy.activation_checkpointing)
        for c in peers_part._grid(case)
    ]
    assert found == [(n, c) for n in (1, 2, 4, 8) for c in ("none", "full")]


def test_a_curve_with_a_hole_is_not_the_same():
    assert not peers_part.farthest((1.0, math.nan), (1.0, 1.0)) < 1e-3
