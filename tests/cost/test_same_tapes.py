"""Recipes that share a profile allocate the same bytes, event by event, in forward and backward."""

import pytest

from brimful.cost.programs import TRACED_AS
from brimful.simulate.run import trace
from brimful.values.job import SCALED, LossScale
from samples import make_job, make_strategy

pytestmark = pytest.mark.torch

SCALE = LossScale(initial_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=9)
SCALAR_BYTES = 4
"""The scaled loss and its gradient are the only difference that scaling makes."""


def sizes(precision, architecture, kernels, **changes):
    """List the sizes of all allocations and frees (negative) before the first update.

    Not those of the optimizer's state, which is another one with masters.
    """
    job = make_job(
        architecture, precision=precision, loss_scale=SCALE if precision in SCALED else None
    )
    strategy = make_strategy(activation_checkpointing="full:1", **changes)
    recording = trace(job, strategy, imitate=kernels, num_steps=1).recording
    state, first, update = (
        recording.phase_starts[recording.phases.index(f"step 1 {name}")]
        for name in ("state", "forward", "optimizer")
    )
    events = [*recording.events[:state], *recording.events[first:update]]
    signed = [
        int(recording.num_bytes[e]) if e >= 0 else -int(recording.num_bytes[~e]) for e in events
    ]
    return [size for size in signed if abs(size) > SCALAR_BYTES]


PAIRS = [(mine, traced) for mine, traced in TRACED_AS.items() if mine != traced]
PROGRAMS = [
    ("llama", {"attention": "sdpa", "loss_chunks": 1}),
    ("gpt2", {"attention": "eager", "loss_chunks": 2}),
]


@pytest.mark.few(2)
@pytest.mark.parametrize(("precision", "traced"), PAIRS)
@pytest.mark.parametrize("kernels", ["cpu", "cuda"])
@pytest.mark.parametrize(("architecture", "changes"), PROGRAMS)
def test_the_events_are_the_same(precision, traced, kernels, architecture, changes):
    mine = sizes(precision, architecture, kernels, **changes)
    assert mine == sizes(traced, architecture, kernels, **changes)
    assert len(mine) > 100


def test_recipes_that_do_not_share_one_differ():
    alike = {p: tuple(sizes(p, "llama", "cpu")) for p in ("fp32", "bf16", "bf16-mixed")}
    assert len(set(alike.values())) == len(alike)
