"""Recomputing changes no gradient; selective checkpointing recomputes what is cheap."""

from functools import cache

import pytest
import torch

from brimful.build.assemble import build_program
from brimful.build.batch import Batch
from brimful.build.blocks import decoder_blocks
from brimful.build.step import micro_step
from brimful.values.job import Adapter
from samples import make_job, make_strategy

from .documents import PACKED_LENGTHS, make_documents, to_batch
from .test_attention import CPU, CPU_FLASH, Seen

pytestmark = pytest.mark.torch

aten = torch.ops.aten
NF4 = Adapter(
    rank=4,
    alpha=8.0,
    targets=("all-linear",),
    trained_modules=(),
    dtype="same",
    base="nf4",
    upcast="none",
    input_requires_grad=False,
)
DEAR = (aten.mm.default, aten.addmm.default, CPU_FLASH)
NUM_LAYERS = 3


@cache
def run(architecture, precision, attention, packing, checkpointing):
    """Run one micro-batch; returns the gradients and how often each operator ran."""
    job = make_job(architecture, precision=precision, packing=packing, global_batch=2)
    strategy = make_strategy(attention=attention, activation_checkpointing=checkpointing)
    program = build_program(job, strategy, CPU)
    with Seen() as seen:
        micro_step(program, batch_of(job), num_targets=40)
    return [p.grad for p in program.model.parameters()], seen.counts


def batch_of(job):
    if job.packing == "documents":
        return to_batch(job, make_documents(job, PACKED_LENGTHS, step=0))
    ids = torch.arange(2 * job.seq_len).view(2, -1)
    return Batch(ids, ids)


CASES = [
    # architecture, precision, attention, packing
    ("llama", "fp32", "sdpa", "wrapped"),
    ("llama", "fp32", "eager", "documents"),
    ("llama", "fp32", "flash", "wrapped"),
    ("llama", "bf16", "sdpa", "documents"),
    ("llama", "bf16-mixed", "sdpa", "wrapped"),
    ("gpt2", "fp32", "sdpa", "documents"),
    ("gpt2", "bf16-mixed", "eager", "wrapped"),
]


@pytest.mark.few
@pytest.mark.parametrize(
    "checkpointing", ["full", "full:2", "selective", "alternate", "alternate:2"]
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_are_the_same_to_the_bit(case, checkpointing):
    gradients, _ = run(*case, checkpointing)
    expected, _ = run(*case, "none")
    assert all(torch.equal(one, other) for one, other in zip(gradients, expected, strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_selective_checkpointing_computes_no_dear_result_again(case):
    _, plain = run(*case, "none")
    _, selective = run(*case, "selective")
    _, full = run(*case, "full")
    for operator in DEAR:
        assert selective.get(operator, 0) == plain.get(operator, 0)
    assert sum(full.get(x, 0) for x in DEAR) > sum(plain.get(x, 0) for x in DEAR)
    assert selective[aten.mul.Tensor] > plain[aten.mul.Tensor]


def test_every_second_product_may_be_computed_again():
    """Of seven in a block of a Llama the second, fourth and sixth, as by torchtitan's policy."""
    _, plain = run(*CASES[0], "none")
    _, alternate = run(*CASES[0], "alternate")
    assert alternate[aten.mm.default] - plain[aten.mm.default] == 3 * NUM_LAYERS
    assert alternate[CPU_FLASH] == plain[CPU_FLASH]


def test_a_product_with_a_quantised_weight_is_dear():
    pytest.importorskip("bitsandbytes")
    job = make_job(method="qlora", adapter=NF4, precision="bf16", global_batch=2)
    counts = {}
    for checkpointing in ("none", "selective", "alternate", "full"):
        strategy = make_strategy(activation_checkpointing=checkpointing)
        program = build_program(job, strategy, CPU)
        ids = torch.arange(2 * job.seq_len).view(2, -1) % job.model.vocab_size
        with Seen() as seen:
            micro_step(program, Batch(ids, ids), num_targets=ids.numel())
        counts[checkpointing] = seen.counts[torch.ops.bitsandbytes.gemm_4bit.default]
    assert counts["selective"] == counts["none"] < counts["alternate"] < counts["full"]


def test_scores_that_are_written_out_are_computed_again():
    _, plain = run(*CASES[1], "none")
    _, selective = run(*CASES[1], "selective")
    assert selective[aten.bmm.default] > plain[aten.bmm.default]


def test_only_the_first_blocks_recompute():
    _, two = run(*CASES[0], "selective:2")
    _, three = run(*CASES[0], "selective")
    _, none = run(*CASES[0], "none")
    recomputed = [counts[aten.rsqrt.default] - none[aten.rsqrt.default] for counts in (two, three)]
    assert recomputed[0] * 3 == recomputed[1] * 2 > 0
    job, strategy = make_job(), make_strategy(activation_checkpointing="selective:2")
    blocks = decoder_blocks(build_program(job, strategy, CPU).model)
    assert [block.gradient_checkpointing for block in blocks] == [True, True, False]
    assert len(blocks) == NUM_LAYERS
