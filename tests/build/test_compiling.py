"""Compiled blocks: they learn what eager ones do, and take what is simulated.

Half a minute each where Inductor's C++ code is compiled for the real run.
"""

from functools import cache

import pytest
import torch

from brimful.cost.formula import missing_formula
from brimful.errors import UnsupportedError
from brimful.simulate.run import simulate
from brimful.techniques.parallel.routing import Routing
from brimful.techniques.runnable import check_examined, check_strategy
from build import compiled_programs as programs
from samples import make_adapter, make_cluster, make_job, make_model, make_strategy

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # the compiler's own


@cache
def simulated_bytes(name, **how):
    """Simulate a case once: two tests ask for the first."""
    job, strategy = programs.settings(name, **how)
    return simulate(job, make_cluster("cpu"), strategy).simulated_peak_allocated_bytes


TOLERANCES = {"fp32": 1e-5, "bf16-mixed": 5e-3, "fp8": 2e-2}
"""Relative: sums in another order, in 16 bits fp32 between operations that are fused, and of these
other numbers on either side of a step of fp8."""
COMPILED = {"compile": "blocks"}


def assert_it_learns_what_eager_blocks_do(name, compiled):
    job, _ = programs.settings(name)
    eager = programs.taken(name, compiles="none").said
    tolerance = TOLERANCES[job.precision]
    for ours, theirs in zip(compiled, eager, strict=True):
        assert ours == pytest.approx(theirs, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "parts"), [("llama", "blocks"), ("qwen3 chunks loss", "both"), ("gpt2 whole", "two")]
)
def test_what_is_captured_learns_what_eager_does(monkeypatch, name, parts):
    """All of a compiler but the code that it writes, which takes 20 s: captured, forward, back."""
    captured = []

    def compiling(call, **how):
        captured.append(call)
        return compiled(call, backend="aot_eager", **how)

    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", compiling)
    job, strategy = programs.settings(name)
    assert_it_learns_what_eager_blocks_do(name, programs.take(job, strategy).said)
    blocks = job.model.num_layers
    assert len(captured) == {"blocks": blocks, "both": blocks + 1, "two": 2}[parts]


@pytest.mark.long  # validation/compiled.json has them
@pytest.mark.parametrize("name", programs.CASES)
def test_compiled_blocks_learn_what_eager_ones_do(name):
    assert_it_learns_what_eager_blocks_do(name, programs.taken(name).said)


@pytest.mark.long  # validation/compiled.json has the peaks of all
@pytest.mark.parametrize("name", programs.CASES)
def test_the_simulated_peak_is_the_measured_one(name):
    peak = programs.taken(name).peak
    assert simulated_bytes(name) == pytest.approx(peak, rel=0.002)


def test_compiled_blocks_take_less_than_eager_ones():
    """Else the comparison above would hold for a simulation that compiles nothing."""
    assert simulated_bytes("llama") / simulated_bytes("llama", compiles="none") < 0.95


def test_the_simulation_captures_a_block_once_and_whole():
    torch._dynamo.utils.counters.clear()
    job, strategy = programs.settings("llama full")
    simulate(job, make_cluster("cpu"), strategy)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]


def assert_two_processes_learn_the_same(way, backend):
    for answers in programs.in_two_processes(backend):
        eager, compiled = (answers[way, what][0] for what in ("none", "blocks"))
        for ours, theirs in zip(compiled, eager, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)


@pytest.mark.parametrize("way", programs.CAPTURED)
def test_two_processes_learn_the_same_of_what_is_captured(way):
    assert_two_processes_learn_the_same(way, "aot_eager")


@pytest.mark.long
@pytest.mark.parametrize("way", programs.SHARDED)
def test_two_processes_learn_the_same_and_take_what_is_simulated(way):
    assert_two_processes_learn_the_same(way, "inductor")
    _, peak, received = programs.in_two_processes()[0][way, "blocks"]
    name, spread = programs.SHARDED[way]
    job, strategy = programs.settings(name, **spread)
    routing = Routing(received=received)
    said = simulate(job, make_cluster("cpu"), strategy, routing=routing, rank=0)
    assert said.simulated_peak_allocated_bytes == pytest.approx(peak, rel=0.002)


def test_a_block_whose_matrices_are_cut_is_one_graph():
    torch._dynamo.utils.counters.clear()
    job, strategy = programs.settings(programs.BIASED, tp=2, activation_checkpointing="full")
    simulate(job, make_cluster("cpu"), strategy)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize(
    ("spread", "says"),
    [({"zero": 3, "dp_shard": 2}, "zero=3"), ({"tp": 2}, "tp=2"), ({"pp": 2}, "pp=2")],
)
def test_a_whole_model_is_not_compiled_where_its_blocks_are_not_called_as_one(spread, says):
    strategy = make_strategy(compile="model", **spread)
    with pytest.raises(UnsupportedError, match=f"with {says} .*use compile=blocks\\+loss"):
        check_strategy(make_job(), strategy)


@pytest.mark.parametrize(
    ("job", "strategy", "says"),
    [
        ({}, {"offload": "parameters:1"}, "offload=parameters:1"),
        ({}, {"zero": 3}, "zero=3 on one device"),
        ({"method": "qat"}, {}, "method=qat"),
        ({}, {"attention": "varlen"}, "attention=varlen"),
        ({"task": "seq2seq", "packing": "none"}, {}, "task=seq2seq"),
        ({"packing": "documents"}, {}, "packing=documents"),
        ({"method": "qlora", "adapter": make_adapter(base="int8")}, {}, "base=int8"),
    ],
    ids=str,
)
def test_what_was_not_compared_is_refused(job, strategy, says):
    with pytest.raises(UnsupportedError, match=f"compile=blocks with {says} is not run") as why:
        check_strategy(make_job(**job), make_strategy(**COMPILED, **strategy))
    assert "use compile=none" in str(why.value)


def test_what_a_body_of_one_graph_keeps_is_not_sent_block_by_block():
    strategy = make_strategy(compile="model", offload="activations:1")
    with pytest.raises(UnsupportedError, match="with offload=activations:1 is not run"):
        check_strategy(make_job(), strategy)


def test_a_compiled_loss_of_cut_logits_is_refused():
    with pytest.raises(UnsupportedError, match="of cut logits; use compile=blocks"):
        check_strategy(make_job(), make_strategy(compile="blocks+loss", tp=2))


def test_a_backward_pass_in_two_parts_is_refused_for_what_torch_does():
    split = {"pp": 2, "pp_schedule": "zero-bubble", "stages_per_device": 2}
    job = make_job(model=make_model("llama", num_hidden_layers=4), global_batch=8)
    with pytest.raises(UnsupportedError, match=r"gives its buffers away .*use pp_schedule=1f1b"):
        check_strategy(job, make_strategy(**COMPILED, **split))


@pytest.mark.parametrize(
    ("job", "strategy"),
    [
        ({"precision": "fp8"}, {}),
        ({}, {"offload": "optimizer"}),
        ({}, {"offload": "activations:1"}),
        ({"clip": 0.0, "global_batch": 2}, {"optimizer_in_backward": True}),
        ({}, {"attention": "flex"}),
        ({"packing": "documents"}, {"attention": "flex"}),
        ({"method": "qlora", "adapter": make_adapter(base="nf4")}, {}),
    ],
    ids=str,
)
def test_what_was_compared_goes_with_it(job, strategy):
    """Cases of each stand beside the others."""
    strategy = make_strategy(**COMPILED, **strategy)
    assert check_strategy(make_job(**job), strategy) == strategy


def test_the_precision_doctor_sees_no_module_inside():
    with pytest.raises(UnsupportedError, match="compile=blocks is not examined"):
        check_examined(make_strategy(**COMPILED))


def test_it_has_no_formula():
    reason = missing_formula(make_job(), make_strategy(**COMPILED), make_cluster().device)
    assert "compile=blocks has no formula" in reason
