"""Which blocks each stage of a pipeline has, and what is refused."""

from itertools import combinations, pairwise

import msgspec
import pytest

from brimful.errors import BrimfulError, InputError, UnsupportedError
from brimful.techniques.parallel.stages import (
    Split,
    balanced_blocks,
    blocks_of_stages,
    check_pipeline,
    device_of_stage,
    head_in_blocks,
    stages_of_device,
)
from brimful.techniques.runnable import check_strategy
from samples import make_job, make_model, make_strategy

EVEN = ((1, "1f1b"), (2, "interleaved"), (2, "zero-bubble"), (2, "zbv"), (2, "dualpipev"))


def model_of(num_layers, **changes):
    return msgspec.structs.replace(make_model(**changes), num_layers=num_layers)


def slowest(counts, head):
    *others, last = counts
    return max([*others, last + head])


def divisions(num, stages):
    for cuts in combinations(range(1, num), stages - 1):
        bounds = (0, *cuts, num)
        yield tuple(b - a for a, b in pairwise(bounds))


@pytest.mark.parametrize("num_layers", range(2, 12))
@pytest.mark.parametrize("vocab_size", [97, 5_000, 50_000])
def test_no_other_division_has_a_faster_slowest_stage(num_layers, vocab_size):
    model = model_of(num_layers, vocab_size=vocab_size)
    head = head_in_blocks(model)
    for stages in range(1, num_layers + 1):
        counts = balanced_blocks(model, stages)
        best = min(slowest(other, head) for other in divisions(num_layers, stages))
        assert sum(counts) == num_layers
        assert slowest(counts, head) == pytest.approx(best)
        assert list(counts[:-1]) == sorted(counts[:-1])


def test_the_head_of_llama_3_is_worth_two_blocks_and_a_bit():
    from brimful.models.config import load_model

    assert head_in_blocks(load_model("llama-3.1-8b")) == pytest.approx(128256 * 4096 / 218103808)


@pytest.mark.parametrize(("per_device", "schedule"), EVEN)
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_every_block_is_on_one_device(pp, per_device, schedule):
    split = Split(pp, schedule, per_device, ())
    blocks = blocks_of_stages(model_of(13), split)
    found = [n for device in range(pp) for s in stages_of_device(split, device) for n in blocks[s]]
    assert sorted(found) == list(range(13))
    assert all(len(stages_of_device(split, device)) == per_device for device in range(pp))


def test_a_v_goes_back_the_way_it_came():
    split = Split(3, "zbv", 2, ())
    assert [device_of_stage(split, stage) for stage in range(6)] == [0, 1, 2, 2, 1, 0]
    looped = Split(3, "interleaved", 2, ())
    assert [device_of_stage(looped, stage) for stage in range(6)] == [0, 1, 2, 0, 1, 2]


REFUSED = [
    (Split(2, "interleaved", 1, ()), 4, InputError, ("stages_per_device=2 or more and 1",)),
    (Split(2, "1f1b", 2, ()), 4, InputError, ("stages_per_device=1 and 2",)),
    (Split(2, "zbv", 3, ()), 4, InputError, ("stages_per_device=2 and 3",)),
    (Split(8, "1f1b", 1, ()), 8, InputError, ("8 stages", "6 blocks", "use 6")),
    (Split(2, "1f1b", 1, (3, 4)), 4, InputError, ("[3, 4] are 7 blocks in 2", "has 6 blocks")),
    (Split(2, "1f1b", 1, (6, 0)), 4, InputError, ("at least one",)),
    (Split(4, "1f1b", 1, ()), 3, InputError, ("needs 4 micro-batches", "there are 3")),
    (Split(2, "interleaved", 2, ()), 5, InputError, ("cannot order 5", "multiple of 2")),
    (Split(1, "1f1b", 1, (6,)), 1, InputError, ("stage_blocks=[6]", "pp=1 has none")),
    (Split(1, "interleaved", 2, ()), 1, InputError, ("pp_schedule=interleaved", "pp=1 has none")),
]


@pytest.mark.parametrize(("split", "num", "kind", "facts"), REFUSED)
def test_what_does_not_go_together_is_said_with_both_numbers(split, num, kind, facts):
    with pytest.raises(kind) as caught:
        check_pipeline(make_job(model=model_of(6)), split, num_micro_batches=num)
    assert all(fact in str(caught.value) for fact in facts), caught.value


def test_a_model_of_another_kind_is_refused():
    job = make_job(model=make_model(model_type="gpt2"))
    with pytest.raises(UnsupportedError, match=r"pp=2 is not run for .* \(model_type=gpt2"):
        check_pipeline(job, Split(2, "1f1b", 1, ()), num_micro_batches=2)


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"dp_replicate": 2}, "accumulate=hold"),
        (
            {"dp_replicate": 2, "accumulate": "hold", "pp_schedule": "zbv", "stages_per_device": 2},
            "neither DDP nor FSDP2 sees them",
        ),
        (
            {
                "pp_schedule": "zero-bubble",
                "stages_per_device": 2,
                "activation_checkpointing": "selective:1",
            },
            "backward through a block twice",
        ),
    ],
)
def test_what_torch_does_not_do_beside_a_pipeline_is_refused(changes, fact):
    job = make_job(model=model_of(6), global_batch=8)
    with pytest.raises(BrimfulError, match=fact):
        check_strategy(job, make_strategy(pp=2, micro_batch=1, **changes))
