"""A sample of what the long evidence asks of groups of processes."""

import msgspec
import parallel_part
import pytest
import ranks_part
import reshard_part
import routing_part

pytestmark = pytest.mark.torch

LOSS, NORM, PEAK = 1e-5, 1e-4, 0.01
IN_BF16 = 1e-4
"""Of a loss, where each update is computed in bf16 and sums come in another order."""


@pytest.mark.long
def test_products_on_two_devices_are_the_plain_loop():
    """Every stage of ZeRO and tensor parallel once, each with another switch and another job."""
    pairs = [case for case in parallel_part.cases() if parallel_part.size_of(case) == 2]
    rows = parallel_part.compare([case for case in pairs if case.strategy.pp == 1][::4])
    assert {row.case.strategy.zero for row in rows} >= {0, 1, 3}
    for row in rows:
        assert row.loss_error <= LOSS, row.case.strategy
        assert row.norm_error <= NORM, row.case.strategy


def test_updates_of_shards_are_the_plain_loop():
    """8 bits of shards that end where a block of 256 does are those of the whole."""
    zero, tensor = {"dp_shard": 2, "zero": 3}, {"tp": 2}
    asked = [("sgd", zero), ("sgd", tensor), ("adamw-8bit", zero)]
    assert all(layout in parallel_part.UPDATED[name] for name, layout in asked)
    cases = [case for pair in asked for case in parallel_part.wide(*pair)]
    assert len(cases) == len(asked)
    for row in parallel_part.compare(cases):
        assert row.loss_error <= LOSS, row.case.strategy
        assert row.norm_error <= NORM, row.case.strategy


@pytest.mark.long
def test_muon_of_shards_is_the_plain_loop_but_for_sums_in_bf16():
    for row in parallel_part.compare(list(parallel_part.wide("muon", {"dp_shard": 2, "zero": 3}))):
        assert row.loss_error <= IN_BF16
        assert row.norm_error <= 10 * IN_BF16


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("qwen3_moe", {"dp_shard": 2, "zero": 3}),
        ("qwen3_moe", {"dp_shard": 2, "zero": 1}),
        ("gpt_oss", {"dp_shard": 2, "zero": 2, "ep": 2, "attention": "eager"}),
        ("mixtral", {"dp_shard": 4, "zero": 3, "ep": 2}),
        # Whose devices cut the rows of each matrix.
        ("qwen3_moe", {"dp_shard": 8, "zero": 3, "ep": 2}),
    ],
    ids=str,
)
def test_muon_of_experts_is_the_plain_loop_matrix_by_matrix(kind, layout):
    (case,) = parallel_part.stacked("muon", kind, layout)
    for row in parallel_part.compare([case]):
        assert row.loss_error <= IN_BF16
        assert row.norm_error <= 10 * IN_BF16


@pytest.mark.long
def test_a_pipeline_is_the_plain_loop():
    """Both ends tied on two devices; stages that go round; a V, whose backward is split."""
    every = [case for case in parallel_part.cases() if case.strategy.pp == 2]
    orders = {case.strategy.pp_schedule: case for case in every if parallel_part.size_of(case) == 2}
    rows = parallel_part.compare([orders[name] for name in ("1f1b", "interleaved", "zbv")])
    for row in rows:
        assert row.loss_error <= LOSS, row.case.strategy
        assert row.norm_error <= NORM, row.case.strategy


@pytest.mark.long
def test_parted_experts_are_the_plain_loop():
    """On two devices: beside FSDP2, and beside tensor parallelism."""
    every = [case for case in parallel_part.cases() if case.strategy.ep == 2]
    two = [case for case in every if parallel_part.size_of(case) == 2]
    assert {case.job.model.model_type for case in two} >= {"mixtral", "deepseek_v3", "gpt_oss"}
    for row in parallel_part.compare([*two[1:4], two[-1]]):
        assert row.loss_error <= LOSS, row.case.strategy
        assert row.norm_error <= NORM, row.case.strategy


@pytest.mark.long
def test_a_planted_expert_is_named_and_each_device_takes_what_its_routing_takes():
    asked = [pair for pair in routing_part.cases() if pair[0].job.model.model_type == "gpt_oss"]
    rows = routing_part.compare(asked)
    assert [len(row.alarms) for row in rows] == [0, 0, 1, 1]
    for row in rows:
        assert routing_part.is_named(row)
        assert abs(row.peak_error) <= PEAK


@pytest.mark.long
def test_parted_experts_say_what_they_say_in_simulation():
    case = next(case for case in ranks_part.cases() if case.strategy.ep == 2)
    for row in ranks_part.compare([case]):
        assert abs(row.peak_error) <= PEAK
        assert ranks_part.other_messages(row) == []
        assert {of.kind for of in row.measured_collectives} >= {"all-to-all", "reduce-scatter"}


def test_what_experts_got_is_told_of_the_micro_batches_that_are_simulated():
    case = next(case for case in ranks_part.cases() if case.strategy.ep == 2)
    more = msgspec.structs.replace(case.job, global_batch=3 * case.job.global_batch)
    case = msgspec.structs.replace(case, job=more)
    assert ranks_part._of_simulated(case, (1, 2, 3, 4, 5, 6)) == (1, 2, 4, 5)
    held = msgspec.structs.replace(case.strategy, accumulate="hold")
    case = msgspec.structs.replace(case, strategy=held)
    assert ranks_part._of_simulated(case, (1, 2, 3, 4, 5, 6)) == (1, 2, 3, 4, 5, 6)


@pytest.mark.long
def test_a_checkpoint_goes_on_in_another_layout():
    (pair,) = [p for p in reshard_part.pairs() if p.names == ("llama", "zero3x2", "zero1x2")]
    (row,) = reshard_part.compare([pair])
    assert row.loss_error <= LOSS
    assert row.norm_error <= NORM


@pytest.mark.long
def test_each_stage_takes_what_it_takes_in_simulation():
    case = next(c for c in ranks_part.cases() if c.strategy.pp_schedule == "interleaved")
    for row in ranks_part.compare([case]):
        assert abs(row.peak_error) <= PEAK
        assert ranks_part.other_messages(row) == []
        assert {of.kind for of in row.measured_collectives} >= {"send", "receive"}


@pytest.mark.long
def test_each_process_takes_what_its_rank_takes_in_simulation():
    rows = ranks_part.compare(ranks_part.cases()[4:5])
    assert [row.rank for row in rows] == [0, 1]
    for row in rows:
        assert abs(row.peak_error) <= PEAK
        assert ranks_part.other_messages(row) == []
        assert {of.kind for of in row.measured_collectives} >= {"all-gather", "reduce-scatter"}
