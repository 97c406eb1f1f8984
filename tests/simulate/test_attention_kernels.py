"""Kernels, masks, padding and selective checkpointing, simulated and measured."""

from functools import cache
from itertools import product

import pytest
import torch

from brimful.build.assemble import build_program
from brimful.build.attention.varlen import SUPPOSED_TOKENS
from brimful.build.batch import IGNORE_INDEX, Batch, count_targets
from brimful.build.step import train_step
from brimful.errors import UnsupportedError
from brimful.measure.meter import CpuMeter
from brimful.simulate import unrolled
from brimful.simulate.run import simulate, trace
from brimful.techniques.kernel_support import Place, why_not
from brimful.units import KIB, MIB
from samples import make_cluster, make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

SIZES = {
    "llama": {"hidden_size": 128, "intermediate_size": 344, "vocab_size": 2000},
    "gpt2": {"n_embd": 128, "n_inner": 344, "vocab_size": 2000},
}
CASES = [
    # architecture, precision, packing, attention, checkpointing, loss chunks
    ("llama", "fp32", "documents", "sdpa", "none", 1),
    ("llama", "fp32", "documents", "eager", "selective", 4),
    ("llama", "fp32", "none", "flash", "none", 1),
    ("llama", "fp32", "wrapped", "sdpa", "selective", 1),
    ("llama", "bf16", "documents", "sdpa", "full:2", 1),
    ("llama", "bf16-mixed", "documents", "sdpa", "selective:2", 4),
    ("llama", "bf16-mixed", "none", "eager", "selective", 1),
    ("gpt2", "fp32", "documents", "eager", "none", 4),
    ("gpt2", "fp32", "documents", "sdpa", "full", 4),
    ("gpt2", "fp32", "none", "sdpa", "selective:1", 1),
    ("gpt2", "bf16", "documents", "eager", "selective:2", 1),
    ("gpt2", "bf16-mixed", "documents", "sdpa", "none", 4),
    ("gpt2", "bf16-mixed", "wrapped", "flash", "selective", 1),
]
SCRATCH_BYTES = 32 * KIB
"""Host copies of the batch, scalars and statistics that kernels of the two sides hold otherwise."""


def settings(case):
    architecture, precision, packing, attention, checkpointing, chunks = case
    job = make_job(
        architecture,
        model=make_model(architecture, **SIZES[architecture]),
        precision=precision,
        packing=packing,
        seq_len=256,
    )
    strategy = make_strategy(
        attention=attention, activation_checkpointing=checkpointing, loss_chunks=chunks
    )
    return job, strategy


def batch_of(job):
    """Make two rows: three documents, and one with padding, where the packing has such."""
    ids = torch.randint(0, job.model.vocab_size, (2, job.seq_len))
    if job.packing == "wrapped":
        return Batch(ids, ids)
    segments = torch.ones((2, job.seq_len), dtype=torch.int32)
    segments[1, 200:] = 0
    if job.packing == "documents":
        segments[0, 90:], segments[0, 130:] = 2, 3
    return Batch(ids, ids.masked_fill(segments == 0, IGNORE_INDEX), segments)


@cache
def measured(case):
    job, strategy = settings(case)
    batches = [batch_of(job), batch_of(job)]
    meter = CpuMeter()
    meter.start()
    program = build_program(job, strategy, torch.device("cpu"))
    for _ in range(2):
        num_targets = count_targets(batches)
        train_step(program, batches, num_targets=num_targets, learning_rate=1e-3)
    meter.stop(program)
    return meter.reading.measured_peak_allocated_bytes


@cache
def simulated(case):
    job, strategy = settings(case)
    return simulate(job, make_cluster("cpu"), strategy).simulated_peak_allocated_bytes


@pytest.mark.few(1)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_simulated_peak_is_the_measured_one(case):
    allowed = SCRATCH_BYTES if case[1] == "fp32" else max(0.005 * measured(case), MIB)
    assert abs(simulated(case) - measured(case)) <= allowed


@pytest.mark.long  # how near the peaks are is asserted beside it
def test_a_simulation_without_the_mask_or_of_another_checkpointing_would_be_noticed():
    for case, changed in (
        (CASES[0], {2: "wrapped"}),
        (CASES[3], {4: "full"}),
        (CASES[3], {4: "none"}),
        (CASES[9], {4: "selective:2"}),
    ):
        other = tuple(changed.get(place, value) for place, value in enumerate(case))
        assert abs(simulated(other) - measured(case)) > 10 * SCRATCH_BYTES


# -- kernels of a card --


def allocations(kernels="cuda", *, capability=9.0, seq_len=256, **switches):
    """Trace one step; returns each allocation's operator and bytes."""
    fields = {
        name: switches.pop(name) for name in ("precision", "packing", "model") if name in switches
    }
    job = make_job(**{"model": make_model(head_dim=64), "seq_len": seq_len, **fields})
    traced = trace(
        job, make_strategy(**switches), imitate=kernels, capability=capability, num_steps=1
    )
    recording = traced.recording
    return [
        (recording.ops[op], int(num_bytes))
        for op, num_bytes in zip(recording.op, recording.num_bytes, strict=True)
    ]


KERNELS = {
    "flash": "aten._scaled_dot_product_flash_attention.default",
    "efficient": "aten._scaled_dot_product_efficient_attention.default",
    "cudnn": "aten._scaled_dot_product_cudnn_attention.default",
    "varlen": "aten._flash_attention_forward.default",
}


@pytest.mark.few(only=["flash-wrapped", "efficient-documents"])
@pytest.mark.parametrize(
    ("attention", "packing"),
    [(name, "wrapped") for name in KERNELS]
    + [(name, "documents") for name in KERNELS if name != "flash"],
)
def test_each_name_runs_its_own_kernel_of_the_imitated_card(attention, packing):
    made = {op for op, _ in allocations(attention=attention, packing=packing, precision="bf16")}
    assert made & set(KERNELS.values()) == {KERNELS[attention]}


def test_a_card_picks_another_kernel_where_documents_need_a_mask():
    switches = {"attention": "sdpa", "precision": "bf16", "capability": 8.0}
    plain = {op for op, _ in allocations(**switches)}
    packed = {op for op, _ in allocations(**switches, packing="documents")}
    assert KERNELS["flash"] in plain - packed
    assert KERNELS["efficient"] in packed - plain


GRID = [
    *product(("flash", "efficient", "cudnn"), ("fp32", "bf16"), (7.5, 9.0), (64,)),
    *product(("flash", "efficient", "cudnn"), ("fp16",), (8.6,), (36, 200)),
]


@pytest.mark.few(2)
@pytest.mark.parametrize("place", GRID, ids=str)
def test_what_is_refused_beforehand_is_what_pytorch_would_refuse(place, monkeypatch):
    attention, precision, capability, head_dim = place
    model = make_model(num_hidden_layers=1, head_dim=head_dim)
    job = make_job(model=model, precision=precision)
    refused = why_not(job, attention, Place("cuda", capability))
    strategy = make_strategy(attention=attention)
    if refused is None:
        trace(job, strategy, imitate="cuda", capability=capability, num_steps=1)
    else:
        with pytest.raises(UnsupportedError, match="cannot run here"):
            trace(job, strategy, imitate="cuda", capability=capability, num_steps=1)
        monkeypatch.setattr("brimful.simulate.run.check_attention", lambda *_: None)
        with pytest.raises(RuntimeError, match="no attention kernel is available"):
            trace(job, strategy, imitate="cuda", capability=capability, num_steps=1)


@pytest.mark.few(1)
@pytest.mark.parametrize("seq_len", [256, 250])
def test_one_mask_in_the_type_of_the_queries_serves_all_blocks(seq_len):
    made = allocations(
        attention="efficient", packing="documents", precision="bf16", seq_len=seq_len
    )
    num_micro_batches, num_rows, num_bytes = 2, 2, 2
    masks = [(op, n) for op, n in made if "pad" in op or (op, n) == (
        "aten.zeros.default", num_rows * seq_len * 256 * num_bytes
    )]  # fmt: skip
    assert [op for op, _ in masks] == ["aten.zeros.default"] * num_micro_batches


def test_varlen_makes_no_mask_and_saves_a_sum_per_token_and_head():
    made = allocations(attention="varlen", packing="documents", precision="bf16")
    job = make_job(model=make_model(head_dim=64), seq_len=256)
    tokens, heads = 2 * 256, job.model.num_heads
    kernel = [num_bytes for op, num_bytes in made if op == KERNELS["varlen"]]
    assert kernel.count(tokens * heads * 64 * 2) == kernel.count(tokens * heads * 4) == 2 * 3
    bounds = [num_bytes for op, num_bytes in made if "document_bounds" in op]
    assert bounds == [(tokens // SUPPOSED_TOKENS + 1) * 4] * 2
    assert not [op for op, num_bytes in made if op == "aten.zeros.default" and num_bytes > 2**16]


# -- selective checkpointing --


def recording_of(job, strategy):
    return trace(job, strategy, imitate="cuda").recording


@pytest.mark.long  # simulate/test_unrolled.py unrolls checkpointed blocks
@pytest.mark.parametrize("checkpointing", ["selective:9", "full"])
def test_blocks_that_are_alike_are_unrolled_to_the_tape_of_the_whole_model(checkpointing):
    job = make_job(model=make_model(num_hidden_layers=9), precision="bf16-mixed", seq_len=128)
    strategy = make_strategy(activation_checkpointing=checkpointing)
    seen = []

    def record(job, strategy):
        seen.append((job.model.num_layers, strategy.activation_checkpointing))
        return recording_of(job, strategy)

    short = unrolled.record_whole(job, strategy, record)
    whole = recording_of(job, strategy)
    spelled = checkpointing.partition(":")[0]
    assert seen == [(unrolled.NUM_DEEP, spelled), (unrolled.NUM_SHALLOW, spelled)]
    assert short.live_bytes().tolist() == whole.live_bytes().tolist()


@pytest.mark.long  # cost/test_memory.py has the order, test_unrolled.py such blocks
@pytest.mark.parametrize("kernels", ["cpu", "cuda"])
def test_selective_checkpointing_is_between_none_and_full(kernels):
    job = make_job(precision="bf16-mixed", seq_len=256)
    peaks = [
        simulate(
            job, make_cluster(kernels), make_strategy(activation_checkpointing=text, loss_chunks=4)
        ).simulated_peak_allocated_bytes
        for text in ("full", "selective", "none")
    ]
    assert peaks == sorted(set(peaks))
