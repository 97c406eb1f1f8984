"""A frozen base that is on the host: adapters learn from it what they learn from one that is here.

What trains stays on the device.
"""

import pytest
import torch

from brimful.build.assemble import build_program
from brimful.build.batch import Batch, count_targets
from brimful.build.offload import HostOptimizer, is_away
from brimful.build.quantize import dequantize, is_quantized
from brimful.build.step import evaluate, train_step
from brimful.techniques.runnable import check_strategy
from build.away_base_programs import WAYS, in_two_processes
from build.plain import ragged_batch, ragged_step
from pairs import cut_pairs, make_lora, make_pair_job, make_pairs
from samples import make_job, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
BASES = ("same", "nf4", "nf4-double", "int8")
OFFLOADS = ("parameters", "parameters:2", "parameters,activations", "optimizer,parameters:1")


def adapted(base="nf4-double", architecture="llama", **changes):
    if base in {"nf4", "nf4-double"}:
        pytest.importorskip("bitsandbytes")
    method = changes.pop("method", "lora" if base == "same" else "qlora")
    own = changes.pop("adapter", {})
    return make_job(architecture, **make_lora(method, base=base, **own), **changes)


def run(job, strategy, *, num_steps=3):
    """Train, and return each step's loss and norm, and the program."""
    check_strategy(job, strategy)
    program = build_program(job, strategy, CPU)
    return [ragged_step(program, step=step) for step in range(num_steps)], program


CASES = [
    (base, architecture, offload, checkpointing)
    for base in BASES
    for architecture in ("llama", "gpt2")
    for offload in OFFLOADS
    for checkpointing in ("none", "full", "full:1", "selective")
]


@pytest.mark.few
@pytest.mark.parametrize("case", CASES, ids=str)
def test_adapters_learn_the_same(case):
    base, architecture, offload, checkpointing = case
    job = adapted(base, architecture)
    strategy = make_strategy(activation_checkpointing=checkpointing)
    away = make_strategy(activation_checkpointing=checkpointing, offload=offload)
    whole, there = run(job, strategy)
    numbers, program = run(job, away)
    assert numbers == whole
    for one, other in zip(there.model.parameters(), program.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("base", BASES)
def test_what_is_frozen_of_a_block_is_on_the_host_and_nothing_else(base):
    _, program = run(adapted(base), make_strategy(offload="parameters"), num_steps=1)
    blocks = [name for name, _ in program.model.named_parameters() if ".layers." in name]
    for name, parameter in program.model.named_parameters():
        assert is_away(parameter) == (name in blocks and not parameter.requires_grad)
    assert not program.offloaded.parameters._here
    assert not isinstance(program.optimizer, HostOptimizer)


@pytest.mark.parametrize("base", BASES)
def test_no_copy_outlives_the_forward_pass_of_its_block(base):
    """bitsandbytes' own product would keep one until backward."""
    job = adapted(base)
    strategy = make_strategy(offload="parameters", micro_batch=2)
    program = build_program(job, strategy, CPU)
    away = program.offloaded.parameters
    made = []
    bring = away._bring

    def watched(block):
        before = set(away._here)
        bring(block)
        for new in set(away._here) - before:
            made.extend((new, _weak(copy)) for copy in away._here[new].tensors)

    away._bring = watched
    inputs, labels = ragged_batch(job, step=0)
    batch = Batch(inputs[:2], labels[:2])
    loss = program.root(program, batch.to(CPU), 48)
    assert {block for block, copy in made if copy() is not None} <= {job.model.num_layers - 1}
    loss.backward()
    program.offloaded.end_pass()
    assert all(copy() is None for _, copy in made)


def _weak(tensor):
    from weakref import ref

    return ref(tensor.untyped_storage())


def test_a_base_in_four_bits_reads_as_it_did():
    job = adapted()
    there = build_program(job, make_strategy(), CPU).model
    away = build_program(job, make_strategy(offload="parameters"), CPU).model
    pairs = list(zip(there.modules(), away.modules(), strict=True))
    layers = [pair for pair in pairs if is_quantized(pair[0])]
    assert layers
    for one, other in layers:
        assert torch.equal(dequantize(one), dequantize(other))


@pytest.mark.parametrize("base", ["same", "nf4"])
def test_dora_measures_a_base_that_is_away(base):
    job = adapted(base, method="dora" if base == "same" else "qlora")
    whole, _ = run(job, make_strategy())
    numbers, _ = run(job, make_strategy(offload="parameters"))
    assert numbers == whole


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_a_base_that_is_away_is_judged_with(checkpointing):
    job = adapted(seq_len=64)
    inputs, labels = ragged_batch(job, step=9)
    _, there = run(job, make_strategy(), num_steps=1)
    strategy = make_strategy(offload="parameters", activation_checkpointing=checkpointing)
    _, away = run(job, strategy, num_steps=1)
    batches = [Batch(inputs, labels)]
    assert evaluate(away, batches) == evaluate(there, batches)


def test_pairs_are_learnt_from_beside_a_base_that_is_away():
    pytest.importorskip("bitsandbytes")
    job = make_pair_job(**make_lora("qlora", base="nf4"))
    found = []
    for offload in ("none", "parameters"):
        strategy = make_strategy(micro_batch=2, reference="adapters-off", offload=offload)
        check_strategy(job, strategy)
        program = build_program(job, strategy, CPU)
        batches = cut_pairs(make_pairs(job), strategy.micro_batch)
        result = train_step(
            program,
            batches,
            num_targets=count_targets(batches),
            learning_rate=job.learning_rate,
        )
        found.append((float(result.loss), float(result.grad_norm)))
    assert found[0] == found[1]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16-mixed"])
@pytest.mark.parametrize("upcast", ["none", "norms"])
def test_every_recipe_takes_the_steps_that_it_takes_on_the_device(precision, upcast):
    if upcast != "none" and precision == "bf16":
        pytest.skip("refused")
    job = adapted("nf4-double", precision=precision, adapter={"upcast": upcast, "dtype": "fp32"})
    whole, _ = run(job, make_strategy())
    numbers, _ = run(job, make_strategy(offload="parameters", activation_checkpointing="full"))
    assert numbers == whole


@pytest.mark.parametrize("way", WAYS)
def test_several_processes_learn_the_same_each_beside_its_own(way):
    pytest.importorskip("bitsandbytes")
    for answers in in_two_processes():
        (numbers, away), (whole, there) = answers[way, "away"], answers[way, "there"]
        assert numbers == whole
        assert all(torch.equal(one, other) for one, other in zip(away, there, strict=True))
