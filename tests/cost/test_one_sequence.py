"""One sequence at a time is not copied where attention is written out: both rungs know."""

import pytest
from msgspec.structs import replace

from brimful.cost.estimate import estimate
from brimful.cost.own_programs import tells_chunks
from brimful.cost.profiles import OF_ONE, PROFILE_SCHEMA, Profile, Variant, _of_one, load_profile
from brimful.cost.programs import program_of
from brimful.cost.requests import asked_of
from cost.replays import ALLOCATORS, reserved
from samples import make_cluster, make_job, make_model, make_strategy

CLUSTER = make_cluster("cuda")
SIZES = {"hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 3000}
CASES = {
    "fp32": ("fp32", {"attention": "sdpa"}),
    "recomputed": ("fp32", {"attention": "sdpa", "activation_checkpointing": "full:1"}),
    "written out": ("bf16", {"attention": "eager", "loss_chunks": 2}),
    "gathered": ("bf16", {"attention": "eager", "zero": 3, "dp_shard": 4}),
}


def drawn(name, micro_batch):
    precision, how = CASES[name]
    strategy = make_strategy(micro_batch=micro_batch, **how)
    batch = 2 * micro_batch * strategy.dp_shard
    job = make_job(model=make_model(**SIZES), precision=precision, seq_len=513, global_batch=batch)
    return job, strategy


@pytest.mark.torch
@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_what_one_sequence_takes_is_what_the_simulation_says(name):
    from brimful.simulate.run import simulate_recorded

    job, strategy = drawn(name, 1)
    predicted = estimate(job, CLUSTER, strategy).predicted_peak_allocated_bytes
    found = simulate_recorded(job, CLUSTER, strategy)
    assert predicted == pytest.approx(found.simulation.simulated_peak_allocated_bytes, rel=2e-4)
    asked, theirs = asked_of(job, strategy, CLUSTER.device), found.recording.requests()
    assert asked.num_unmatched == 0
    for allocator in ALLOCATORS:
        expected = reserved(theirs, allocator)
        assert reserved(asked.requests(), allocator) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_one_sequence_asks_for_fewer_tensors(name):
    one, two = (
        len(asked_of(job, strategy, CLUSTER.device).requests().num_bytes)
        for job, strategy in (drawn(name, micro_batch) for micro_batch in (1, 2))
    )
    assert one < two


@pytest.mark.parametrize(("precision", "attention"), [("fp32", "sdpa"), ("bf16", "eager")])
def test_works_of_one_sequence_have_fewer_operations(precision, attention):
    program = program_of(make_job(precision=precision), attention, "cuda", "full", is_one=True)
    many, one = load_profile(program._replace(is_one=False).key), load_profile(program.key)
    assert one.key != many.key
    fewer = [
        new.num_ops < old.num_ops for new, old in zip(one.works, many.works, strict=True)
        if new != old
    ]  # fmt: skip
    assert len(fewer) == len(many.of_one)
    assert fewer
    assert all(fewer)


def test_fused_attention_does_not_mind():
    job = make_job(precision="bf16")
    assert not program_of(job, "sdpa", "cuda", "full", is_one=True).is_one


def test_one_sequence_has_no_chunks_that_several_told():
    one, many = Variant(first=(), later=()), Variant(first=(), later=())
    variants = {"plain": many, f"{OF_ONE}plain": one, "plain+chunks": many}
    kept = Profile(
        schema=PROFILE_SCHEMA, key="", versions=(), source_hash="", kinds=(), works=(),
        variants=variants,
    )  # fmt: skip
    assert _of_one(kept, "one").variants == {"plain": one}
    alike = {"plain": many, "plain+chunks": many}
    assert _of_one(replace(kept, variants=alike), "one").variants == alike


def test_one_length_tells_chunks_where_five_do_not_divide_it():
    assert [tells_chunks(num, 1024) for num in (1, 2, 6)] == [True, True, True]
    assert [tells_chunks(num, 1000) for num in (1, 2, 6)] == [True, True, False]
