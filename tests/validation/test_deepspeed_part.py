"""The DeepSpeed engine beside ours: what is compared, what is a miss, and two real cases."""

from pathlib import Path

import deepspeed_part
import msgspec
import pytest
from deepspeed_asks import Ask, Told
from deepspeed_part import LOSS_BAR, Seen, cases, summarize
from deepspeed_site import PACKAGES, SITE, deepspeed_site, has_deepspeed, run_group
from evidence import path_of, read_evidence

pytestmark = pytest.mark.torch

FOLDER = Path(__file__).parents[2] / "validation"

NEEDS_DEEPSPEED = pytest.mark.skipif(
    not has_deepspeed(), reason=f"DeepSpeed is not installed, and {SITE} names no folder with it"
)


def told(**changes):
    fields = {"losses": (4.0, 3.0), "norms": (1.0, 2.0), "heldout": 3.5, "peak_bytes": 100}
    return Told(**{**fields, "items": {}, "misread": (), **changes})


def row_of(sides=None, *, theirs=None, alone=None, loaded=None):
    sides = sides or cases(quick=True)[0]
    both = [told(**(theirs or {})), told()]
    seen = Seen(both, [told(), told()], told(**(alone or {})))
    return deepspeed_part._row(sides, seen, told(losses=(3.5,), **(loaded or {})), "0.19.8")


def test_every_stage_is_run_in_every_recipe_and_beside_ours():
    every = cases(quick=False)
    found = {
        (s.deepspeed.job.model.model_type, s.deepspeed.job.precision, s.deepspeed.strategy.zero,
         s.deepspeed.strategy.offload)
        for s in every
    }  # fmt: skip
    for model in ("llama", "gpt2"):
        for precision in ("fp32", "bf16-master"):
            for stage in deepspeed_part._STAGES:
                assert (model, precision, *stage) in found
    assert all(s.deepspeed.strategy.engine == "deepspeed" for s in every)
    assert all(s.torch.strategy.engine == "torch" for s in every if s.torch is not None)
    for sides in every:  # what is compared is the same mathematics
        assert sides.deepspeed.job == sides.alone.job
        assert sides.torch is None or sides.torch.strategy.zero == sides.deepspeed.strategy.zero


def test_equal_runs_miss_nothing():
    row = row_of()
    assert summarize([row]).missed == ()
    assert (row.loss_error, row.norm_error, row.heldout_error, row.handed_over_error) == (0,) * 4


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"theirs": {"losses": (4.0, 3.0 * (1 + 2 * LOSS_BAR))}}, "loss"),
        ({"theirs": {"losses": (float("nan"), 3.0)}}, "loss"),
        ({"theirs": {"norms": (1.0, 2.1)}}, "norm"),
        ({"theirs": {"norms": (1.0, None)}}, "norm"),
        ({"theirs": {"heldout": 3.6}}, "loss"),
        ({"theirs": {"misread": ("clip",)}}, "JSON"),
    ],
)
def test_each_difference_is_a_miss(changed, word):
    missed = summarize([row_of(**changed)]).missed
    assert any(text.startswith((word, f"its {word}")) for text in missed)


def test_a_model_that_was_handed_over_must_have_the_programs_loss():
    row = msgspec.structs.replace(row_of(), handed_over_error=1e-3)
    assert any(text.startswith("handed over") for text in summarize([row]).missed)


def test_a_model_that_was_handed_over_drops_nothing(monkeypatch):
    """Held-out losses do not, which its first loss is compared with."""
    asked = []

    def run_group(ask, _site, **_how):
        asked.extend(ask.cases)
        return [[told()] * len(ask.cases)]

    monkeypatch.setattr(deepspeed_part, "run_group", run_group)
    every = cases(quick=False)
    assert {sides.alone.job.dropout for sides in every} == {"off", "model"}
    deepspeed_part._loaded(every, "", "")
    assert {case.job.dropout for case in asked} == {"off"}


def test_versions_are_fixed():
    assert PACKAGES[0].startswith("deepspeed==")


def test_the_summary_is_that_of_the_rows():
    if not path_of("deepspeed", FOLDER).is_file():
        pytest.fail("validation/deepspeed.json is missing; make it with: make prove")
    evidence = read_evidence("deepspeed", FOLDER)
    assert summarize(list(evidence.rows)) == evidence.summary
    every = [sides.deepspeed for sides in cases(quick=False)]
    # Other tasks and dropout were compared since (decision 128); the next proof writes them.
    before = [x for x in every if x.job.task == "causal-lm" and x.job.dropout == "off"]
    proven = {msgspec.json.encode(row.case) for row in evidence.rows}
    assert {msgspec.json.encode(case) for case in before} <= proven
    assert proven <= {msgspec.json.encode(case) for case in every}


@NEEDS_DEEPSPEED
@pytest.mark.parametrize("offload", ["none", "parameters"])
def test_zero_3_by_deepspeed_is_one_device(offload, tmp_path):
    sides = next(
        s for s in cases(quick=False)
        if (s.deepspeed.strategy.zero, s.deepspeed.strategy.offload) == (3, offload)
    )  # fmt: skip
    with deepspeed_site() as site:
        theirs = run_group(
            Ask(cases=(sides.deepspeed,), folder=str(tmp_path)), site, num_processes=2
        )
        ((alone,),) = run_group(Ask(cases=(sides.alone,), folder=None), site, num_processes=1)
    for rank in (0, 1):
        assert theirs[rank][0].losses == pytest.approx(alone.losses, rel=1e-6)
        assert theirs[rank][0].norms == pytest.approx(alone.norms, rel=1e-5)
        assert theirs[rank][0].misread == ()
    assert (tmp_path / "0" / "model.safetensors").is_file()
