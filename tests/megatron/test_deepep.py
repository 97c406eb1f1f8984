"""DeepEP: how many tokens arrive, what is kept of them, and buffers beside the allocator."""

import itertools

import pytest
from msgspec.structs import replace

from brimful.errors import InputError, UnsupportedError
from brimful.megatron import deepep
from brimful.megatron.layout import Experts
from brimful.megatron.stage import _one_layer
from brimful.programs.formulas import Machines, predict_program, read_line

LINE = (
    "pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --swiglu "
    "--disable-bias-linear --normalization RMSNorm --position-embedding-type rope --bf16 "
    "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 16 "
    "--hidden-dropout 0 --attention-dropout 0 --use-distributed-optimizer --vocab-size 32000 "
    "--num-experts 32 --moe-router-topk 8 --moe-ffn-hidden-size 512 --moe-grouped-gemm "
    "--expert-model-parallel-size 8 "
)
ALL = "--moe-token-dispatcher-type alltoall"
FLEX = f"{LINE} --moe-token-dispatcher-type flex "


def experts(**changed):
    told = {
        "num": 8, "topk": 2, "ffn": 64, "shared_ffn": 0, "ep": 4, "etp": 1, "dispatcher": "flex",
        "is_grouped": True, "is_wide": True, "layers": (True,),
    }  # fmt: skip
    return Experts(**told | changed)


def counted(at, num):
    """Choose in every way there is, and count the ways that have any of the first experts."""
    each = at.num // at.route_groups
    ways = [
        set(chosen) & set(range(num))
        for groups in itertools.combinations(range(at.route_groups), at.route_topk)
        for chosen in itertools.combinations(
            [expert for expert in range(at.num) if expert // each in groups], at.topk
        )
    ]
    return sum(map(bool, ways)) / len(ways)


@pytest.mark.parametrize(("groups", "chosen"), [(1, 1), (2, 1), (4, 2), (4, 3), (2, 2)])
@pytest.mark.parametrize("topk", [1, 2])
@pytest.mark.parametrize("num", [1, 2, 4, 8])
def test_as_many_tokens_arrive_as_of_all_choices(groups, chosen, topk, num):
    at = experts(route_groups=groups, route_topk=chosen, topk=topk)
    each = at.num // groups
    if num % each and each % num:
        pytest.skip("neither a part of a group nor several groups")
    assert at.share_of(num) == pytest.approx(counted(at, num))


@pytest.mark.parametrize(("num", "ep"), [(16, 8), (16, 2), (32, 16)])
def test_a_part_of_a_group_or_several_groups_are_counted(num, ep):
    at = layouts(FLEX)
    deepep.check(replace(at, experts=experts(num=num, ep=ep, route_groups=4, route_topk=2)))


def test_experts_that_lie_in_parts_of_groups_are_refused():
    at = experts(num=24, ep=6, route_groups=4, route_topk=2)  # 4 here, groups of 6
    with pytest.raises(InputError, match="4 experts in one place are neither a part of a group"):
        deepep.check(replace(layouts(FLEX), experts=at))


def layouts(line):
    return read_line(line, 8, Machines("h100")).stages[0]


def test_kept_is_what_says_where_tokens_went_and_no_copy_of_them():
    flex, plain = layouts(FLEX), layouts(LINE + ALL)
    tokens, rows, here = flex.between, flex.arrived, 4
    assert tokens < rows < flex.routed
    kept = (
        tokens * 8 * 12  # what a token chose, and how much of it
        + rows * 4 + tokens * 8 * 5  # the handle
        + flex.routed * 32 + rows * here + rows * (2 * here + 1) * 4
    )  # fmt: skip
    one, other = (_one_layer(at, is_mixture=True).kept_bytes for at in (flex, plain))
    assert one - other == pytest.approx(kept - tokens * 32 * 4, abs=6 * 512)


def test_less_is_moved_than_of_a_copy_for_each_expert():
    # so many tokens that the host is ahead of what it launches
    lines = (f"{line} --micro-batch-size 16 --global-batch-size 128" for line in (FLEX, LINE + ALL))
    flex, plain = (predict_program(line, 8, Machines("h100")) for line in lines)
    assert flex.predicted_step_s < plain.predicted_step_s


def test_buffers_lie_beside_the_allocator():
    at = layouts(FLEX)
    of_token = 1024 * 2 + 8 + 128 * 12 + 128 * 4
    assert deepep.outside_bytes(at) == 10 * 8 * (5 * 4 + 256 * of_token) + 2**25
    wide = replace(at, experts=replace(at.experts, ep=16))
    by_link = 10 * 8 * (7 * 4 + 288 * of_token)
    by_network = 2 * 10 * 2 * (18 * 4 + 140 * (of_token + 16))
    assert deepep.outside_bytes(wide) == by_link + by_network + 2**25
    flex, plain = (predict_program(line, 8, Machines("h100")) for line in (FLEX, LINE + ALL))
    less = plain.ranks[0].capacity_bytes - flex.ranks[0].capacity_bytes
    assert less == deepep.outside_bytes(at)
    assert any("DeepEP's buffers" in note for note in flex.notes)
    assert deepep.outside_bytes(layouts(LINE + ALL)) == 0


@pytest.mark.parametrize("layer", ["", "--moe-shared-expert-intermediate-size 512"])
def test_nothing_of_a_micro_batch_is_left(layer):
    one, other = (
        predict_program(f"{FLEX} {layer} --global-batch-size {rows}", 8, Machines("h100")).ranks[0]
        for rows in (32, 64)
    )
    assert one.predicted_between_steps_bytes == other.predicted_between_steps_bytes


def test_both_ways_of_asking_are_one():
    one, other = (
        predict_program(line, 8, Machines("h100"))
        for line in (f"{FLEX} --moe-enable-deepep", f"{FLEX} --moe-flex-dispatcher-backend deepep")
    )
    assert one.ranks == other.ranks


@pytest.mark.parametrize(
    ("line", "error", "said"),
    [
        (f"{LINE} --moe-enable-deepep", InputError, "flex; add it"),
        (f"{FLEX} --moe-flex-dispatcher-backend hybridep", UnsupportedError, "hybridep"),
        (f"{FLEX} --expert-model-parallel-size 1", InputError, "groups of 2, 4, 8"),
        (f"{FLEX} --moe-router-num-groups 3", InputError, "--num-experts 32; change one"),
        (f"{FLEX} --moe-router-num-groups 4 --moe-router-group-topk 5", InputError, "change one"),
        (f"{FLEX} --moe-router-num-groups 8", InputError, "--moe-router-topk 8 of 1 of 8 groups"),
    ],
)
def test_what_deepep_does_not_run_is_refused(line, error, said):
    with pytest.raises(error, match=said):
        predict_program(line, 8, Machines("h100"))
