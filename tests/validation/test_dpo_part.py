"""Our DPO beside TRL's: what is a miss, and our code against the numbers that TRL gave."""

from pathlib import Path

import dpo_part
import msgspec
import pytest
from dpo_pairs import ADAPTED, SMOOTHINGS, WHOLE, Loss, cases, our_batch, our_loss, write_data
from dpo_part import LOSS_BAR, NORM_BAR, summarize
from evidence import path_of, read_evidence

from brimful.build.batch import ANSWER

pytestmark = pytest.mark.torch

FOLDER = Path(__file__).parents[2] / "validation"
RECORDED = read_evidence("dpo", FOLDER).rows if path_of("dpo", FOLDER).is_file() else ()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("pairs")
    write_data(made)
    return made


THEIRS = Loss(0.7, 2.0)


def row_of(ours):
    return dpo_part._row(cases(quick=True)[0], ours, THEIRS)


def test_every_place_of_the_reference_is_compared_with_both_losses():
    found = {
        (c.job.method, c.strategy.reference, c.job.preference.label_smoothing)
        for c in cases(quick=False)
    }
    for smoothing in SMOOTHINGS:
        assert {("full", place, smoothing) for place in WHOLE} <= found
        assert {("lora", place, smoothing) for place in ADAPTED} <= found


@pytest.mark.parametrize(("ours", "word"), [
    (Loss(0.7, 2.0), None),
    (Loss(0.7 * (1 + 2 * LOSS_BAR), 2.0), "loss"),
    (Loss(0.7, 2.0 * (1 - 2 * NORM_BAR)), "norm"),
    (Loss(float("nan"), 2.0), "loss"),
])  # fmt: skip
def test_each_difference_is_a_miss(ours, word):
    missed = summarize([row_of(ours)]).missed
    assert [text.split()[0] for text in missed] == ([] if word is None else [word])


def test_pairs_have_questions_that_are_not_scored(folder):
    batch = our_batch(cases(quick=True)[0].job, folder)
    scored = (batch.segments == ANSWER).sum(-1)
    assert batch.inputs.shape == (8, 2, 16)  # as long as the longest needs
    assert int(scored.min()) >= 3  # two words and the end
    assert len(set(scored.flatten().tolist())) > 3


def test_the_summary_is_that_of_the_rows():
    assert RECORDED, "validation/dpo.json is missing; make it with: prove.py --part dpo"
    evidence = read_evidence("dpo", FOLDER)
    assert summarize(list(evidence.rows)) == evidence.summary
    assert [msgspec.json.encode(row.case) for row in evidence.rows] == [
        msgspec.json.encode(case) for case in cases(quick=False)
    ]


@pytest.mark.few(10)
@pytest.mark.parametrize("row", RECORDED, ids=dpo_part._describe)
def test_our_loss_is_the_one_that_trl_gave(row, folder):
    found = our_loss(row.case, folder)
    assert found.loss == pytest.approx(row.trl_loss, rel=LOSS_BAR)
    assert found.norm == pytest.approx(row.trl_norm, rel=NORM_BAR)


def test_smoothing_changes_what_trl_gave():
    losses = {
        (row.case.job.model.model_type, row.case.job.method, row.case.job.preference): row.trl_loss
        for row in RECORDED
    }
    assert len(set(losses.values())) == len(losses) == 6
