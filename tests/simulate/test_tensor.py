"""Tensor parallelism on pretend devices: what each holds and does is its part of the whole."""

from collections import Counter

import msgspec
import pytest
import torch
from torch.distributed.tensor import DTensor

from brimful import pretend
from brimful.build.assemble import build_skeleton, finish_program
from brimful.build.parallel.tensor import styles_of
from brimful.cost.estimate import estimate, estimate_or_none
from brimful.errors import UnsupportedError
from brimful.search.budget import Budget
from brimful.search.pins import Pins
from brimful.simulate import run, unrolled, worlds
from brimful.simulate.search import solve_by_simulation
from brimful.techniques.parallel.tensor import CUT_DECODERS
from brimful.techniques.runnable import check_strategy
from brimful.values.strategy import world_size
from other_decoders import EAGER_ONLY, make_decoder, make_decoder_job
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

GPU = "gpu:0"
TP = 2
NUM_BLOCKS = 6
SHALLOW = {"num_hidden_layers": 1}
EVEN = {"vocab_size": 96}


def cut_job(kind, **changes):
    if kind == "llama":
        return make_job(model=make_model(**EVEN), **changes)
    return make_decoder_job(kind, model=make_decoder(kind, **EVEN), **changes)


def steps_of(recording):
    """Count what steps allocate; weights are drawn before them, by nobody who has a name."""
    return Counter(
        (recording.ops[op], recording.owners[owner], recording.phases[phase], num_bytes)
        for op, owner, phase, num_bytes in zip(
            recording.op, recording.owner, recording.phase, recording.num_bytes.tolist(),
            strict=True,
        )
        if recording.phases[phase] != "load"
    )  # fmt: skip


def attention_of(kind):
    return "eager" if kind in EAGER_ONLY else "sdpa"


@pytest.mark.parametrize("kind", sorted(CUT_DECODERS | {"granite", "cohere", "smollm3", "olmo3"}))
def test_every_matrix_is_cut_and_every_vector_that_sees_all_features_is_whole(kind):
    job, strategy = cut_job(kind), make_strategy(tp=TP, attention=attention_of(kind))
    skeleton = build_skeleton(job, check_strategy(job, strategy))
    shapes = {name: p.shape for name, p in skeleton.named_parameters()}
    with pretend.gpu(world_size=TP, rank=1, imitate="cpu", says_cuda=False):
        program = finish_program(job, strategy, torch.device(GPU), skeleton)
        for name, parameter in program.model.named_parameters():
            assert isinstance(parameter, DTensor)
            assert parameter.shape == shapes[name]
            is_cut = parameter.ndim == 2 or "proj.bias" in name
            part = parameter.to_local().numel() * (TP if is_cut else 1)
            assert part == parameter.numel(), name
        assert len({id(p) for p in program.model.parameters()}) == len(shapes)


@pytest.mark.parametrize("kind", ["phi3", "gpt2"])
def test_decoders_that_are_refused_really_have_layers_that_cannot_be_cut(kind):
    job = make_job(kind) if kind == "gpt2" else make_decoder_job(kind)
    strategy = make_strategy(tp=TP)
    with pytest.raises(UnsupportedError, match=f"tp={TP} is not run for tiny-{kind}"):
        check_strategy(job, strategy)
    with pytest.raises(UnsupportedError, match="of a kind that tensor parallelism does not cut"):
        styles_of(build_skeleton(job, strategy))


@pytest.mark.few(1)
@pytest.mark.parametrize(("checkpointing", "attention"), [("none", "eager"), ("selective", "sdpa")])
def test_devices_share_the_products_evenly(checkpointing, attention):
    job = make_job(model=make_model(**EVEN, **SHALLOW), precision="bf16")
    flops = []
    for tp in (1, TP):
        strategy = make_strategy(
            tp=tp, activation_checkpointing=checkpointing, loss_chunks=3, attention=attention
        )
        traced = run.trace(job, strategy, imitate="cuda", count_costs=True, num_steps=1)
        made = traced.recording
        flops.append([sum(c.matrix_flops for c in made.costs),
                      sum(c.attention_flops for c in made.costs)])  # fmt: skip
    assert flops[0] == [TP * part for part in flops[1]]
    assert flops[0][0] > 0


@pytest.mark.parametrize("vocab_size", [96, 97])
def test_the_first_device_holds_as_much_as_any(vocab_size, monkeypatch):
    job = make_job(model=make_model(vocab_size=vocab_size, **SHALLOW))
    peaks = []
    for rank in range(TP):
        monkeypatch.setattr(worlds, "fullest_rank", lambda *_, rank=rank: rank)
        made = run.trace(job, make_strategy(tp=TP), imitate="cpu", num_steps=1).recording
        peaks.append(made.live_bytes().max())
    assert peaks[0] > peaks[1] if vocab_size % TP else peaks[0] == peaks[1]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("checkpointing", "spread"), [("none", {}), ("full", {"zero": 3, "dp_shard": 2})]
)
def test_a_few_blocks_unrolled_are_the_whole_model(checkpointing, spread):
    job = make_job(model=make_model(num_hidden_layers=NUM_BLOCKS), precision="bf16")
    strategy = make_strategy(tp=TP, activation_checkpointing=checkpointing, **spread)
    depths = []

    def record(job, strategy):
        depths.append(job.model.num_layers)
        return run.trace(job, strategy, imitate="cuda").recording

    short, whole = unrolled.record_whole(job, strategy, record), record(job, strategy)
    assert depths == [unrolled.NUM_DEEP, unrolled.NUM_SHALLOW, NUM_BLOCKS]
    assert steps_of(short) == steps_of(whole)
    assert short.live_bytes().max() == whole.live_bytes().max()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kernels", "precision"),
    [("cuda", "bf16-mixed"), ("cpu", "fp32"), ("cuda", "bf16-master")],
)
def test_a_device_of_several_holds_its_part_of_the_states(kernels, precision):
    job = make_job(model=make_model(**EVEN, **SHALLOW), precision=precision)
    whole, part = (run.simulate(job, make_cluster(kernels), make_strategy(tp=tp)) for tp in (1, TP))
    norms = 3 * job.model.hidden_size
    for name in ("parameters", "optimizer state"):
        a, b = ({i.name: i.num_bytes for i in made.items}[name] for made in (whole, part))
        assert 0 <= TP * b - a <= norms * 16, "vectors are whole on every device"
    assert part.simulated_peak_allocated_bytes < whole.simulated_peak_allocated_bytes


def test_a_search_without_a_formula_spreads_over_all_devices():
    job = make_job(model=make_model(**EVEN, **SHALLOW))
    cluster = msgspec.structs.replace(make_cluster("cpu"), num_devices=4)
    fixed = {"tp": TP, "micro_batch": 1, "loss_chunks": 1, "activation_checkpointing": "none"}
    pins = Pins(**{field: fixed.get(field) for field in Pins._fields})
    found = solve_by_simulation(
        job,
        cluster,
        pins,
        attention="sdpa",
        objective="time",
        budget=Budget(600),
        watch=lambda _: None,
    ).plan
    assert found.estimate is None
    assert (found.strategy.tp, found.strategy.zero, found.strategy.dp_shard) == (TP, 3, 2)


def test_what_no_formula_covers_has_no_prediction_and_says_so():
    """CPU kernels were not traced with cut matrices."""
    job, cluster = make_job(model=make_model(**EVEN)), make_cluster("cpu")
    assert estimate_or_none(job, cluster, make_strategy(tp=TP)) is None
    with pytest.raises(UnsupportedError, match=r"tp=2, .*has no formula.*brimful simulate"):
        estimate(job, cluster, make_strategy(tp=TP))


def test_devices_of_all_axes_are_counted():
    assert world_size(make_strategy(tp=4, zero=3, dp_shard=3, dp_replicate=2)) == 24
