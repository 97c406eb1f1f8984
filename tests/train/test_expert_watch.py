"""What a watch counts of routers: every choice once, no padding, what found no place."""

import pytest
import torch

from brimful import pretend
from brimful.build.assemble import build_program, build_skeleton, finish_program
from brimful.build.batch import IGNORE_INDEX, Batch
from brimful.build.step import micro_step
from brimful.build.tasks import task_of
from brimful.models.config import read_config
from brimful.techniques.runnable import check_strategy
from brimful.train.expert_watch import MANY, WINDOW, Received, _advice, _sparse, watch_experts
from other_decoders import CONFIGS, make_decoder_job
from other_models import make_other_job, make_other_model
from samples import make_job, make_strategy

pytestmark = pytest.mark.torch
ROWS, SEQ_LEN = 2, 16


def program_of(kind="mixtral", *, checkpointing="none", **changes):
    job = make_decoder_job(kind, precision="fp32", global_batch=ROWS, seq_len=SEQ_LEN, **changes)
    strategy = make_strategy(micro_batch=ROWS, activation_checkpointing=checkpointing)
    return build_program(job, check_strategy(job, strategy), torch.device("cpu"))


def batch_of(program, *, num_padding=0):
    generator = torch.Generator().manual_seed(2)
    vocab_size = program.job.model.vocab_size
    ids = torch.randint(1, vocab_size, (ROWS, SEQ_LEN), generator=generator)
    segments = torch.ones_like(ids, dtype=torch.int32)
    segments[:, SEQ_LEN - num_padding :] = 0
    return Batch(ids, ids.roll(-1, 1), segments if num_padding else None)


def chosen(program, batch):
    """Count what each router chooses, by hooks of this test's own."""
    from brimful.build.experts import is_router

    found = []
    for name, module in program.model.named_modules():
        if is_router(program.model, name):
            module.register_forward_hook(lambda _m, _a, out: found.append(out[2]))
    with torch.no_grad():
        program.root(program, batch, 1)
    num_experts = CONFIGS["mixtral"]["num_local_experts"]
    kept = torch.ones(ROWS * SEQ_LEN, dtype=torch.bool)
    if batch.segments is not None:
        kept = batch.segments.flatten() != 0
    return [torch.bincount(ids[kept].flatten(), minlength=num_experts).tolist() for ids in found]


@pytest.mark.parametrize("checkpointing", ["none", "full", "selective"])
@pytest.mark.parametrize("num_padding", [0, 5])
def test_every_choice_is_counted_once(checkpointing, num_padding):
    packing = "documents" if num_padding else "wrapped"
    program = program_of(checkpointing=checkpointing, packing=packing)
    batch = batch_of(program, num_padding=num_padding)
    watch = watch_experts(program)
    micro_step(program, batch, num_targets=32)
    expected = chosen(program, batch)  # in a pass that nothing follows: it is not counted
    assert not watch.after_step(is_last=False)
    row = watch.row(1)
    assert [list(load) for load in row.load] == expected
    assert sum(row.load[0]) == 2 * ROWS * (SEQ_LEN - num_padding)
    assert (row.blocks, row.num_steps, row.dropped, row.received) == ((0, 1), 1, (), ())
    assert not any(map(any, watch.row(2).load))  # each window begins at nothing


def test_a_window_ends_after_its_steps_or_with_the_run():
    watch = watch_experts(program_of())
    assert [watch.after_step(is_last=False) for _ in range(WINDOW)] == [False] * 9 + [True]
    watch.row(WINDOW)
    assert watch.after_step(is_last=True)
    for step in range(WINDOW + 1, MANY):
        if watch.after_step(is_last=False):
            watch.row(step)
    watch.row(MANY)
    assert [watch.after_step(is_last=False) for _ in range(10 * WINDOW)].index(True) == 99


def test_dense_models_are_not_watched():
    job = make_job(global_batch=ROWS, seq_len=SEQ_LEN)
    strategy = check_strategy(job, make_strategy(micro_batch=ROWS))
    assert watch_experts(build_program(job, strategy, torch.device("cpu"))) is None


def test_tokens_without_a_place_are_counted():
    model = make_other_model("switch", expert_capacity=1)
    job = make_other_job("switch", model=model)
    ways = make_strategy(micro_batch=job.global_batch, attention="eager")
    strategy = check_strategy(job, ways)
    program = build_program(job, strategy, torch.device("cpu"))
    watch = watch_experts(program)
    sample = task_of(job).sample(job, strategy)
    micro_step(program, sample, num_targets=1)
    row = watch.row(1)
    assert len(row.dropped) == len(row.load)
    # One expert serves one token of a sequence, and all tokens of the sample are alike.
    assert all(0 < dropped < sum(load) for dropped, load in zip(row.dropped, row.load, strict=True))


def test_padding_of_a_source_is_neither_load_nor_dropped():
    job = make_other_job("switch", model=make_other_model("switch", expert_capacity=1))
    ways = make_strategy(micro_batch=job.global_batch, attention="eager")
    program = build_program(job, check_strategy(job, ways), torch.device("cpu"))
    watch = watch_experts(program)
    sample = task_of(job).sample(job, ways)
    segments = torch.zeros_like(sample.inputs, dtype=torch.int32)
    segments[:, :3] = 1
    labels = sample.labels.clone()
    labels[:, 5:] = IGNORE_INDEX
    micro_step(program, Batch(sample.inputs, labels, segments), num_targets=1)
    encoder, decoder = map(sum, watch.row(1).load)
    assert (encoder, decoder) == (3 * job.global_batch, 5 * job.global_batch)


def test_a_loss_of_routers_is_advised_only_where_it_is_taken():
    mixture, switch = program_of(), make_other_job("switch")
    assert "--router-aux-loss" in _advice(mixture.job, mixture.strategy)
    assert "--router-aux-loss" not in _advice(switch, make_strategy(micro_batch=4))


def hear(received, *steps):
    for passes in steps:
        for rows in passes:
            for place, num_rows in enumerate(rows):
                received.hear(place, num_rows)
        received.end_step()
    return received.taken()


def test_the_heaviest_pass_is_kept_whichever_step_it_is_in():
    assert hear(Received(2, keeps_step=False), [(9, 9)]) == ((9,), (9,))
    assert hear(Received(2, keeps_step=False), [(9, 9)], [(1, 2), (3, 1)]) == ((9,), (9,))


def test_in_a_pipeline_all_passes_of_the_heaviest_step_are_kept():
    received = Received(1, keeps_step=True)
    assert hear(received, [(5,)], [(1,), (2,)], [(4,), (3,)], [(1,), (1,)]) == ((4, 3),)
    assert hear(received, [(1,), (1,)]) == ((1, 1),)  # each window begins at nothing


@pytest.mark.parametrize(("rank", "places"), [(0, []), (1, [0, 1])])
def test_a_device_of_a_row_without_experts_watches_along(rank, places):
    """All processes add up their counts: one that did not take part would be waited for."""
    config = {**CONFIGS["deepseek_v3"], "num_hidden_layers": 4, "first_k_dense_replace": 2}
    model = read_config("half-dense", {"model_type": "deepseek_v3", **config})
    job = make_job(model=model, precision="fp32", global_batch=4, seq_len=SEQ_LEN)
    strategy = make_strategy(micro_batch=1, pp=2, stage_blocks=(2, 2))
    check_strategy(job, strategy)
    skeleton = build_skeleton(job, strategy)
    with pretend.gpu(world_size=2, rank=rank, imitate="cpu", says_cuda=False):
        program = finish_program(job, strategy, torch.device("gpu:0"), skeleton)
        assert watch_experts(program) is not None
        assert [place for place, _ in _sparse(program, (2, 3))] == places
