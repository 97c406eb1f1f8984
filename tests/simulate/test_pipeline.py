"""Stages of a pipeline on pretend devices: what each keeps, says and does."""

import msgspec
import pytest

from brimful.cost.estimate import estimate_or_none
from brimful.cost.formula import missing_formula
from brimful.cost.pipeline_replay import replay
from brimful.errors import UnsupportedError
from brimful.simulate.run import simulate, trace
from brimful.techniques.runnable import check_strategy
from brimful.values.strategy import stage_rank
from samples import make_adapter, make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

DEVICES, MICRO_BATCHES = 4, 8
JOB = make_job(model=make_model(num_hidden_layers=9), global_batch=MICRO_BATCHES)
WAYS = {"gpipe": 1, "1f1b": 1, "interleaved": 2}


def row_of(schedule, **changes):
    ways = {"pp_schedule": schedule, "stages_per_device": WAYS.get(schedule, 2), "micro_batch": 1}
    return check_strategy(JOB, make_strategy(pp=DEVICES, **ways, **changes))


def fullest(phases):
    """Count what a step has begun forward and not yet gone backward through, at its fullest."""
    held = most = 0
    for name in phases:
        held += {"step 2 forward": 1, "step 2 backward": -1}.get(name, 0)
        most = max(most, held)
    assert held == 0
    return most


@pytest.mark.few(1)
@pytest.mark.parametrize("schedule", WAYS)
def test_each_stage_keeps_as_many_micro_batches_as_the_replay_says(schedule):
    strategy = row_of(schedule)
    ran = replay(
        schedule, num_micro_batches=MICRO_BATCHES, stage_s=[(1.0, 2.0)] * DEVICES, send_s=0.0,
        chunks=strategy.stages_per_device,
    )  # fmt: skip
    for device, kept in enumerate(ran.in_flight):
        recording = trace(JOB, strategy, imitate="cuda", rank=device).recording
        assert fullest(recording.phases) == kept * strategy.stages_per_device


@pytest.mark.long
def test_earlier_stages_of_1f1b_keep_more_and_gpipe_keeps_all():
    def saved(schedule, rank):
        found = simulate(JOB, make_cluster(), row_of(schedule), rank=rank)
        return sum(x.num_bytes for x in found.items if x.name == "saved activations")

    in_turn = [saved("1f1b", rank) for rank in range(1, 3)]
    assert in_turn[0] > in_turn[1]
    assert saved("gpipe", 1) > 2 * in_turn[0]


@pytest.mark.long
def test_without_a_rank_it_is_the_fullest_place_of_the_row():
    strategy = row_of("1f1b")
    each = [
        simulate(JOB, make_cluster(), strategy, rank=stage_rank(strategy, place))
        for place in range(DEVICES)
    ]
    found = simulate(JOB, make_cluster(), strategy)
    peaks = [one.simulated_peak_allocated_bytes for one in each]
    assert found.simulated_peak_allocated_bytes == max(peaks)


def test_devices_beside_each_other_in_a_row_send_what_the_next_one_receives():
    strategy = row_of("interleaved")
    told = [
        {x.kind: x for x in simulate(JOB, make_cluster(), strategy, rank=r).collectives}
        for r in range(DEVICES)
    ]
    one = JOB.seq_len * JOB.model.hidden_size * 4
    sent = sum(of["send"].num_bytes for of in told)
    assert sent == sum(of["receive"].num_bytes for of in told)
    assert sent == 2 * MICRO_BATCHES * (2 * DEVICES - 1) * one


@pytest.mark.long
def test_another_layout_of_as_many_devices_can_come_before():
    """Results that DTensor remembers of it would be placed on groups that are gone."""
    job = make_job(model=make_model(num_hidden_layers=4), global_batch=8)
    spread = make_strategy(micro_batch=1, zero=3, dp_shard=4, tp=2)
    ways = {"zero": 2, "dp_shard": 2, "tp": 2, "accumulate": "hold"}
    row = check_strategy(job, make_strategy(micro_batch=1, pp=2, **ways))
    alone = simulate(job, make_cluster(), row, rank=0)
    simulate(job, make_cluster(), spread, rank=0)
    after = simulate(job, make_cluster(), row, rank=0)
    assert after.simulated_peak_allocated_bytes == alone.simulated_peak_allocated_bytes
    assert after.collectives == alone.collectives


def test_no_formula_covers_split_backwards_and_the_reason_says_what_does():
    strategy, cluster = row_of("zero-bubble"), make_cluster()
    assert estimate_or_none(JOB, cluster, strategy) is None
    assert "brimful simulate traces it" in missing_formula(JOB, strategy, cluster.device)
    whole = msgspec.structs.replace(strategy, pp_schedule="interleaved")
    assert missing_formula(JOB, whole, cluster.device) == ""


@pytest.mark.filterwarnings("ignore:.*a tied layer is part of the adapter:UserWarning")
def test_a_tied_weight_that_adapters_copy_is_refused():
    model = make_model(tie_word_embeddings=True)
    adapter = make_adapter(trained_modules=("embed_tokens",))
    job = make_job(model=model, method="lora", adapter=adapter, precision="bf16", global_batch=2)
    strategy = make_strategy(pp=2, micro_batch=1, accumulate="hold")
    cluster = msgspec.structs.replace(make_cluster("cuda"), num_devices=2, devices_per_node=2)
    with pytest.raises(UnsupportedError, match="which are one weight, are not run in a pipeline"):
        simulate(job, cluster, strategy)
