"""What is killed, when, and what is said of it; the killing itself is ``make prove``."""

import itertools
import random

import killed_part
import msgspec
import pytest
from evidence import Case, KilledRow

pytestmark = pytest.mark.torch


@pytest.fixture
def peace(tmp_path):
    def undisturbed(kind):
        case = Case(job=killed_part._job(kind), strategy=killed_part.STRATEGY, kernels="cpu")
        site = killed_part._Site(tmp_path, tmp_path / "plan.yaml", tmp_path / "text", case)
        return killed_part._Peace(site, 2.0, [], "")

    return [undisturbed(kind) for kind in killed_part._KINDS]


def draw(peace, number, seed=1):
    kills = killed_part._kills(peace, random.Random(seed))  # noqa: S311 - moments, not secrets
    return list(itertools.islice(kills, number))


def test_every_kind_is_killed_in_both_ways_of_saving_aimed_and_not(peace):
    kills = draw(peace, killed_part.NUM_KILLS)
    combinations = {
        (msgspec.json.encode(kill.peace.site.case.job), kill.mode, kill.aimed_s is None)
        for kill in kills
    }
    assert len(combinations) == len(killed_part._KINDS) * 2 * 2
    assert sum(kill.aimed_s is not None for kill in kills) >= killed_part.LEAST_SAVING
    assert all(0 <= kill.after_s <= 2 for kill in kills)
    assert len({kill.name for kill in kills}) == len(kills)


def test_the_seed_decides_when(peace):
    assert draw(peace, 5) == draw(peace, 5)
    assert draw(peace, 5) != draw(peace, 5, seed=2)


def row_of(peace, **changes):
    row = KilledRow(
        case=peace[0].site.case,
        killed_after_s=1.0,
        killed_at_step=7,
        was_saving=True,
        resumed_from=6,
        num_rows=48,
        is_bit_equal=True,
    )
    return msgspec.structs.replace(row, **changes)


def test_another_curve_and_an_unreadable_checkpoint_are_said(peace):
    rows = [
        row_of(peace),
        row_of(peace, is_bit_equal=False, checkpoint="async"),
        row_of(peace, num_unreadable=1),
    ]
    missed = killed_part._summarize(rows, quick=True).missed
    assert missed == (
        "fp32 adamw full async killed at step 7, resumed from 6: another curve",
        "fp32 adamw full sync killed at step 7, resumed from 6: a checkpoint is unreadable",
    )


def test_too_few_kills_while_saving_are_said(peace):
    rows = [row_of(peace, was_saving=number < 3) for number in range(5)]
    assert killed_part._summarize(rows, quick=False).missed == (
        "only 3 of 5 were killed while saving",
    )
    assert killed_part._summarize(rows, quick=True).missed == ()


def test_the_weights_of_a_run_have_one_hash(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "model" / "model.safetensors").write_bytes(name.encode())
    hashes = {killed_part.weights_hash(tmp_path / name) for name in ("one", "other", "one")}
    assert len(hashes) == 2
    with pytest.raises(RuntimeError, match="holds no weights"):
        killed_part.weights_hash(tmp_path)
