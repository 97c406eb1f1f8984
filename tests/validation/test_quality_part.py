"""Which ways to fine-tune are compared, and what is said of them; the full size: make prove."""

import ast
import sysconfig
from pathlib import Path

import msgspec
import pytest
import quality_part
from cases import Case
from comparison_rows import QualityRow
from quality_part import QUICK, RATES, WAYS
from second_text import FEW_FILES, FILES, documents, write_documents

pytestmark = pytest.mark.torch

TINY = QUICK._replace(second_text=("functional.py",), num_first_steps=6, num_steps=3, seq_len=32)


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    return quality_part._start(TINY, tmp_path)


def test_every_way_has_a_plain_one_beside_it_whose_rate_is_chosen():
    plain = {way.name for way in WAYS if way.name == way.reference}
    assert {way.reference for way in WAYS} == plain == set(RATES)
    assert {way.name for way in WAYS} - plain == {"8-bit AdamW", "DoRA", "QLoRA"}


def test_nothing_but_the_way_differs_from_its_plain_one(tmp_path):
    start = quality_part.Start(QUICK, tmp_path, "", tmp_path, 0.0, tmp_path)
    jobs = {way.name: quality_part._fine_tuned(start, way, 1e-3, 5) for way in WAYS}
    for way in WAYS:
        job, plain = jobs[way.name], jobs[way.reference]
        named = set(job.__struct_fields__) - {"optimizer", "method", "adapter"}
        assert {name for name in named if getattr(job, name) != getattr(plain, name)} == set()


@pytest.mark.long  # make prove, which reads that text, runs it first
def test_the_second_text_is_prose_and_not_in_the_first():
    found = list(documents(FEW_FILES))
    assert len(found) > 100
    assert all(len(text) >= 200 and " the " in f" {text} " for text in found[:5])
    library = Path(sysconfig.get_path("stdlib"))
    strings = {
        node.value.strip()
        for path in library.glob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert not strings.intersection(found)


def test_the_second_text_is_long_enough_for_one_pass(tmp_path):
    write_documents(tmp_path / "text.jsonl", FILES)
    size = quality_part.FULL
    num_tokens = size.num_steps * quality_part.STRATEGY.micro_batch * size.seq_len
    # A token of the start's vocabulary stands for at least two letters of English.
    assert (tmp_path / "text.jsonl").stat().st_size > 2 * 6 * num_tokens


@pytest.mark.long  # make prove, which trains it, runs it first
def test_the_start_is_trained_once_and_runs_from_it_repeat(start, tmp_path):
    again = quality_part._start(TINY, tmp_path)
    assert again == start
    assert len(list((tmp_path / "cache" / "evidence").iterdir())) == 1
    way = WAYS[-1]
    rows = [quality_part._try(start, way, 1e-2, seed, "compared") for seed in (3, 3, 4)]
    assert rows[0].heldout_loss == rows[1].heldout_loss != rows[2].heldout_loss
    assert rows[0].heldout_loss < rows[0].start_loss
    assert rows[0].case.job.weights is None


def row_of(name, seed, loss, *, rate=1e-3, purpose="compared"):
    (way,) = (way for way in WAYS if way.name == name)
    job = quality_part._job(QUICK, num_steps=8, learning_rate=rate, seed=seed, **way.changes)
    return QualityRow(
        case=Case(job=job, strategy=quality_part.STRATEGY, kernels="cpu"),
        way=name,
        reference=way.reference,
        purpose=purpose,
        start="",
        start_loss=5.0,
        heldout_loss=loss,
        gap=None,
        wall_s=1.0,
    )


def rows_of(losses):
    made = [row_of(name, seed, loss) for name, each in losses.items() for seed, loss in each]
    return list(quality_part._with_gaps(made))


LOSSES = {
    "full": ((1, 4.0), (2, 4.2)),
    "8-bit AdamW": ((1, 4.04), (2, 4.2)),
    "LoRA": ((1, 4.5), (2, 4.0)),
    "DoRA": ((1, 4.5), (2, 3.6)),
    "QLoRA": ((1, 4.5), (2, 4.2)),
}


def test_a_gap_is_to_the_plain_run_with_the_same_seed():
    gaps = {(row.way, row.case.job.seed): row.gap for row in rows_of(LOSSES)}
    assert gaps["full", 1] is None
    assert gaps["8-bit AdamW", 1] == pytest.approx(0.01)
    assert gaps["DoRA", 2] == pytest.approx(-0.1)


def test_a_mean_gap_above_the_bar_is_missed_and_a_better_way_is_not():
    summary = quality_part.summarize(rows_of(LOSSES))
    assert summary.missed == ("QLoRA: mean gap +2.50%",)
    assert [spread.of for spread in summary.spreads] == ["8-bit AdamW", "DoRA", "QLoRA"]
    assert summary.spreads[0].bias == pytest.approx(0.005)


def test_the_spread_over_the_seeds_is_said():
    *_, said = quality_part.summarize(rows_of(LOSSES)).findings
    assert said.startswith("QLoRA: held-out loss 5.000 -> 4.3500 at rate 0.001, +2.50% of LoRA")
    assert "(+0.00% to +5.00%, std 3.54%)" in said


def test_the_rate_is_the_plain_ways_best():
    tried = [
        row_of("full", 9, loss, rate=rate, purpose="rate")
        for rate, loss in ((1e-3, 4.1), (2e-3, 4.0), (4e-3, 4.3))
    ]
    other = row_of("LoRA", 9, 3.0, rate=1e-1, purpose="rate")
    assert quality_part.best_rate([*tried, other], "full") == 2e-3
    assert msgspec.structs.asdict(other)["gap"] is None
