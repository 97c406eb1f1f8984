"""Tensor parallelism by real processes: the numbers are those of one device, or of a plain loop."""

import msgspec
import pytest
import torch

from brimful.pretend import cpu_collectives
from brimful.pretend.workspace_call import Call
from brimful.simulate.run import simulate
from brimful.units import KIB, MIB
from build import tensor_programs
from build.plain import plain_run
from build.tensor_programs import CASES, NUM_STEPS, case, in_processes, is_for, whole_gradients
from samples import make_cluster

pytestmark = pytest.mark.torch

MEASURED = [name for name in CASES if name.startswith("measured")]
TRAINED = [name for name in CASES if name not in MEASURED]
SHOWN = (
    "llama", "llama-tied-uneven", "olmo2-padding", "bf16-mixed", "bf16-master", "alike-smollm3",
)  # fmt: skip
"""What ``make test`` trains, in one start of two processes; all else is long."""
NUM = (2, 4, 8)
DTYPES = (torch.float32, torch.bfloat16)
BOUND = 1.5
LOSS, NORM = 1e-5, 1e-4
HALF_LOSS, HALF_NORM = 2e-3, 2e-2
"""Relative, where sums of bf16 are rounded in another order."""
GO_ON = ("zero-1-muon-master", "zero-1-pieces-master")
"""What is saved and gone on with; the first is shown."""
SCRATCH_BYTES = 32 * KIB
COLLECTIVES = ("gather", "scatter", "reduce")


def asked(num, *, shown):
    """List what is asked of so many processes: everything at once, since starting them costs."""
    if shown and num > 2:
        return []
    runs = [name for name in TRAINED if is_for(name, num) and (name in SHOWN) == shown]
    clips = [("clip", dtype, BOUND) for dtype in DTYPES] if num < 8 and shown == (num == 2) else []
    measured = [n for n in MEASURED if is_for(n, num) and (n == MEASURED[1]) == shown]
    collectives = [("allocations", name) for name in COLLECTIVES] if shown else []
    gone_on = [("go on", n) for n in GO_ON if is_for(n, num) and (n == GO_ON[0]) == shown]
    return [
        *(("run", n) for n in runs),
        *gone_on,
        *clips,
        *(("measure", n) for n in measured),
        *collectives,
    ]


def answers(num, *what):
    shown = what in asked(num, shown=True)
    every = asked(num, shown=shown)
    return [answers[every.index(what)] for answers in in_processes(num, *every)]


EVERY = [
    pytest.param((num, *what), marks=() if shown else pytest.mark.long, id=str((num, *what)))
    for num in NUM
    for shown in (True, False)
    for what in asked(num, shown=shown)
]
RUNS, CLIPS, METERED, GONE_ON = (
    [case for case in EVERY if case.values[0][1] == do]
    for do in ("run", "clip", "measure", "go on")
)


def whole(name):
    """Run a case on one device."""
    _, strategy = case(name)
    alone = {"tp": 1, "zero": 0, "dp_shard": 1, "dp_replicate": 1, "accumulate": "reduce-each"}
    return tensor_programs.run(name, msgspec.structs.replace(strategy, **alone))


@pytest.mark.parametrize("which", RUNS)
def test_steps_are_those_of_one_device(which):
    name, expected = which[-1], whole(which[-1])
    job, _ = case(name)
    is_half = job.precision != "fp32" or job.optimizer == "muon"  # which computes in bf16
    for found in answers(*which):
        assert found.weights.keys() == expected.weights.keys()
        for key, weight in expected.weights.items():
            assert torch.equal(found.weights[key], weight), key
        loss, norm = (HALF_LOSS, HALF_NORM) if is_half else (LOSS, NORM)
        for (a, m), (b, n) in zip(found.steps, expected.steps, strict=True):
            assert a == pytest.approx(b, rel=loss if is_half else 0, abs=0 if is_half else loss)
            assert m == pytest.approx(n, rel=norm)
        assert found.held_out == pytest.approx(expected.held_out, abs=10 * loss)


@pytest.mark.parametrize("which", GONE_ON)
def test_what_zero_1_saved_is_gone_on_with_to_the_bit(which):
    for (steps, weights), (steps_again, weights_again) in answers(*which):
        assert steps == steps_again
        assert weights.keys() == weights_again.keys()
        for key, weight in weights.items():
            assert torch.equal(weight, weights_again[key]), key


PLAIN = [
    case for case in RUNS
    if CASES[case.values[0][-1]].momentum is None
    and not CASES[case.values[0][-1]].job.keys() & {"precision", "optimizer"}
]  # fmt: skip


@pytest.mark.parametrize("which", PLAIN)
def test_steps_are_those_of_a_plain_loop(which):
    job, _ = case(which[-1])
    if job.precision != "fp32":
        pytest.skip("the plain loop computes in fp32")
    found = answers(*which)[0]
    weights = dict(found.weights)
    if job.model.tied_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    for (a, m), (b, n) in zip(
        found.steps, plain_run(job, weights, num_steps=NUM_STEPS), strict=True
    ):
        assert a == pytest.approx(b, abs=LOSS)
        assert m == pytest.approx(n, rel=NORM)


@pytest.mark.parametrize("which", CLIPS)
def test_one_norm_over_several_meshes_and_plain_gradients(which):
    dtype = which[2]
    every = whole_gradients(dtype)
    exact = float(torch.stack([g.double().pow(2).sum() for g in every]).sum().sqrt())
    assert exact > BOUND
    for norm, clipped in answers(*which):
        assert norm.dtype == torch.float32
        assert float(norm) == pytest.approx(exact, rel=1e-6)
        for found, gradient in zip(clipped, every, strict=True):
            expected = gradient.float() * (BOUND / exact)
            tolerance = 1e-6 if dtype == torch.float32 else 1e-2
            torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=1e-5)


@pytest.mark.parametrize("which", METERED)
def test_every_rank_measures_what_was_simulated(which):
    job, strategy = case(which[-1])
    cluster, shares = make_cluster("cpu"), strategy.zero == 1  # of which each rank has its own
    alike = None if shares else simulate(job, cluster, strategy)
    for rank, (peak, found, phases) in enumerate(answers(*which)):
        expected = alike or simulate(job, cluster, strategy, rank=rank)
        items = {item.name: item.num_bytes for item in expected.items}
        allowed = SCRATCH_BYTES if job.precision == "fp32" else max(0.01 * peak, MIB)
        assert abs(expected.simulated_peak_allocated_bytes - peak) <= allowed
        for phase in expected.phases:
            assert abs(phase.num_bytes - phases[phase.phase]) <= allowed
        for name in ("parameters", "buffers", "optimizer state"):
            assert found[name] == items[name]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_gloo_copies_what_the_pretend_cpu_says_it_copies(name):
    op, names = {
        "gather": (torch.ops.c10d._allgather_base_.default, ("whole", "piece")),
        "scatter": (torch.ops.c10d._reduce_scatter_base_.default, ("piece", "whole")),
        "reduce": (torch.ops.c10d.allreduce_.default, ()),
    }[name]
    sizes = {"piece": tensor_programs.PIECE, "whole": 2 * tensor_programs.PIECE}
    tensors = tuple(torch.empty(sizes[argument]) for argument in names)
    rule = cpu_collectives.RULES.get(op)
    taken = rule(Call(op, tensors, {}, None, (0, 0))) if rule else ()
    for seen in answers(2, "allocations", name):
        assert set(seen) == {workspace.num_bytes for workspace in taken}
