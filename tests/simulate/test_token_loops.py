"""Loops over tokens: at few of them, written out for more, they are what they are at all."""

import pytest

from brimful.models.config import read_config
from brimful.simulate.runs import UnlikeShapesError
from brimful.simulate.token_loops import align
from hybrids import HYBRID
from samples import make_cluster, make_job, make_strategy

SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 2,
    "vocab_size": 304, "max_position_embeddings": 2048,
}  # fmt: skip


def stream(rounds, *, backward="cba"):
    return ["in", *"xyxy", *"abc" * rounds, "mid", *backward * rounds, *"ab", "out"]


def test_what_is_repeated_is_written_out_as_often_as_tokens_say():
    found = align([stream(2), stream(3), stream(4)], (512, 768, 1024))
    of_seven = [stream(2)[which] for which in found.at(1792)]
    assert of_seven == stream(7)
    assert [growth.period for growth in found.growths] == [3, 3]


@pytest.mark.parametrize(
    "others",
    [
        (stream(3), stream(5)),  # not with the tokens
        (stream(3), ["in", *stream(4)]),
        (stream(3, backward="cbd"), stream(4, backward="cbd")),
        (stream(1), stream(3)),
    ],
)
def test_what_grows_in_another_way_is_no_loop(others):
    with pytest.raises(UnlikeShapesError):
        align([stream(2), *others], (512, 768, 1024))


def test_a_loop_does_not_end_in_the_middle():
    found = align([stream(2), stream(4), stream(6)], (512, 1024, 1536))
    assert len(found.at(768)) == len(stream(3))
    with pytest.raises(UnlikeShapesError):
        found.at(640)


@pytest.mark.torch
@pytest.mark.long  # what the streams above are of a program is a tape of thousands of operations
def test_a_recurrence_is_the_same_from_few_tokens():
    """Every event of both micro-batches, in size, class, cause and order, and what it counts."""
    from msgspec.structs import replace

    from brimful.build.layout import read_built
    from brimful.cost.own_programs import chosen_program
    from brimful.simulate.own_profile import with_variants
    from brimful.simulate.own_shapes import OwnProgram

    own = {"model_type": "qwen3_next", **SIZES, **HYBRID["qwen3_next"]}
    job = make_job(model=read_config("tiny", own), seq_len=1024, precision="bf16", global_batch=6)
    built = replace(read_built(job, "sdpa"), loops=True)
    program = chosen_program(job, "sdpa", "plain", "full")
    few = OwnProgram(program, job, built, gathers=False)
    told, all_run = (
        with_variants(None, each, {"plain": frozenset({1})}, {})
        for each in (few, few._replace(is_unrolled=False))
    )
    assert told.variants.keys() == all_run.variants.keys()
    for name, sequences in (("plain", 3), ("one:plain", 1)):
        if name in told.variants:
            assert _done(told, name, sequences) == _done(all_run, name, sequences)


def _done(profile, name, sequences):
    """List what a variant does at the job's own tokens."""
    from brimful.simulate.own_fit import TokenShape

    shape, variant, found = TokenShape(sequences, 1024), profile.variants[name], []
    for run in (*variant.first, *variant.later):
        work = profile.works[run.work]
        kinds = [profile.kinds[event] for event in work.events]
        found.append(
            (
                (run.phase, run.group, run.role),
                [(shape.num_bytes(k.terms), k.item, k.origin, k.newer, k.mark) for k in kinds],
                *(shape.num_bytes(each) for each in (work.matrix_flops, work.attention_flops)),
                shape.num_bytes(work.moved_bytes),
                work.num_ops,
            )
        )
    return found


@pytest.mark.torch
@pytest.mark.long  # likewise
def test_a_loop_over_single_tokens_is_told_from_few_of_them(monkeypatch):
    """What a scan makes for each token is in one list, of which one operation makes a tensor."""
    from brimful.cost.estimate import estimate
    from brimful.cost.own_programs import needs_of
    from brimful.models.traced import find_built
    from brimful.simulate import own_cases
    from brimful.simulate.on_demand import trace_needs
    from brimful.simulate.run import simulate

    own = {
        "model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 304,
        "state_size": 4, "time_step_rank": 2, "pad_token_id": None, "bos_token_id": None,
        "eos_token_id": None,
    }  # fmt: skip
    job = make_job(model=read_config("scans", own), seq_len=64, precision="bf16", global_batch=6)
    strategy = make_strategy(micro_batch=3, attention="eager", fused_kernels="torch")
    lengths = []
    run = own_cases.micro_step

    def noted(program, batch, *, num_targets):
        lengths.append(program.job.seq_len)
        return run(program, batch, num_targets=num_targets)

    monkeypatch.setattr(own_cases, "micro_step", noted)
    trace_needs(job, "eager", "plain", needs_of(job, strategy), watch=lambda _state: None)
    built, cluster = find_built(job.model), make_cluster("cuda")
    assert (built.loops, built.by_token) == (True, True)
    assert sorted(set(lengths)) == [8 * 2, 8 * 3, 8 * 4, 64]  # at the last they are only checked
    predicted = estimate(job, cluster, strategy).predicted_peak_allocated_bytes
    simulated = simulate(job, cluster, strategy).simulated_peak_allocated_bytes
    assert abs(predicted - simulated) < 512  # numbers outside the blocks


@pytest.mark.torch
def test_a_forward_that_is_no_function_of_python_puts_nothing_in_the_place_of_a_buffer():
    import operator

    from torch import nn, zeros

    from brimful.simulate.own_cases import _replaces_buffers

    class Negative(nn.Module):
        forward = operator.neg

    model = Negative()
    model.register_buffer("table", zeros(1))
    assert not _replaces_buffers(model)
