"""What DeepSpeed's engine reserves by formula: against its own code as it was recorded, by hand."""

import pytest
from msgspec.structs import replace

from brimful.cli.main import parser_of
from brimful.cli.resolved import asked
from brimful.cost.asked import Asked
from brimful.cost.deepspeed_requests import engine_asked
from brimful.cost.estimate import estimate
from brimful.cost.parted_modules import Limits, Modules, PartedModules
from brimful.cost.reserved import predicted_reserved
from brimful.units import MIB
from cost.replays import ALLOCATORS, live_peak, reserved

_SMALL = "qwen2.5-0.5b --gpus 4xh100-80gb --seq-len 1024 --micro-batch 2"
_TINY = "tinyllama-1.1b --gpus 8xh100-80gb --seq-len 2048 --micro-batch 1"
_MIDDLE = "llama-3.2-3b --gpus 8xh100-80gb --seq-len 2048 --micro-batch 1"
RECORDED = {
    f"{_SMALL} --global-batch 8 --zero 2": (9704, 9312),
    f"{_TINY} --global-batch 16 --zero 1 --ac full": (7690, 7032),
    f"{_SMALL} --global-batch 16 --zero 3 --ac full": (8164, 7798),
    f"{_MIDDLE} --global-batch 8 --zero 3 --ac full --optimizer adamw-foreach": (19304, 15848),
}
"""MiB reserved, by either allocator: what ``brimful simulate --for deepspeed`` said in bf16-master
of DeepSpeed 0.19.8, whose JSON asks for torch's own AdamW: where its temporaries show they are
asked for here too."""
BARS = 0.02, 0.045
ONE, ANOTHER, LAST = (0,), (1,), (2,)


def asked_with(flags):
    words = f"{flags} --engine deepspeed --precision bf16-master"
    return asked(parser_of("estimate").parse_args(words.split()))


@pytest.mark.few(2)
@pytest.mark.parametrize("flags", RECORDED, ids=lambda flags: flags.replace(" ", "_"))
def test_it_is_what_its_own_code_reserves(flags):
    job, cluster, strategy = asked_with(flags)
    made = engine_asked(job, strategy, cluster.device)
    assert made.num_unmatched == 0
    requests = made.requests()
    for allocator, truth, bar in zip(ALLOCATORS, RECORDED[flags], BARS, strict=True):
        assert reserved(requests, allocator) / MIB == pytest.approx(truth, rel=bar), allocator


def test_what_was_not_compared_has_no_figure():
    for more in ("--zero 2 --offload optimizer", "--zero 3 --offload parameters"):
        assert predicted_reserved(*asked_with(f"{_TINY} --global-batch 16 {more}")) is None, more
    job, *rest = asked_with(f"{_TINY} --global-batch 16 --zero 2")
    assert predicted_reserved(replace(job, precision="bf16-mixed"), *rest) is None


def test_every_stage_has_a_likely_figure():
    for more in ("--zero 1", "--zero 2", "--zero 3"):
        found = asked_with(f"{_TINY} --global-batch 16 {more}")
        held = predicted_reserved(*found)
        peak = estimate(*found).predicted_peak_allocated_bytes
        assert peak < held.predicted_peak_reserved_bytes < held.predicted_process_bytes, more


def parted(most):
    modules = Modules(before=[ONE], blocks=[[ANOTHER], [LAST]], behind=[])
    limits = Limits(element=1, world_size=2, bucket=100, most=most, kept=0)
    made = Asked()
    return made, PartedModules(made, [1000, 2000, 3000], modules, limits)


def run_through(modules):
    modules.begin()
    for module in (ONE, ANOTHER, LAST, LAST, ANOTHER, ONE):
        modules.fetch(module)
        modules.release(module)


@pytest.mark.parametrize(
    ("most", "peak"),
    [
        pytest.param(10_000, 6000, id="all are whole"),
        pytest.param(3_000, 5000, id="the last that is fetched may be too large"),
        pytest.param(0, 3000, id="none is fetched ahead"),
    ],
)
def test_modules_are_fetched_ahead_where_their_order_is_known(most, peak):
    made, modules = parted(most)
    run_through(modules)
    assert live_peak(made.requests()) == 3000  # of one at a time
    run_through(modules)
    assert live_peak(made.requests()) == peak
