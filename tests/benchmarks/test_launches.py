"""Whether steps that were timed on a GPU waited for the host: by what a launch took there."""

from typing import NamedTuple

import pytest

from brimful.cli.main import parser_of
from brimful.cli.resolved import asked
from brimful.cost.family import family_of
from brimful.cost.memory import profile_for
from brimful.cost.step import family_work

TIMED = "nvidia-h200-2026-11.json"
MOST_HIDDEN = 0.2
"""Share of the measured step that launches would take if nothing else ran."""
MOST_SPREAD = 0.04
"""Of its steps; a host that is waited for spreads more than a GPU's clock."""


class Timed(NamedTuple):
    """A case that had the GPU to itself."""

    name: str
    num_ops: float
    launch_s: float
    measured_step_s: float
    steps_s: tuple[float, ...]
    predicted_step_s: float


@pytest.fixture(scope="module")
def timed(gpu_rows, root):
    rows = gpu_rows.read_rows(root / "validation" / "gpu" / TIMED)
    return [_timed(row) for row in rows if row.measured and row.measured.measured_step_s]


def _timed(row):
    args = parser_of("estimate").parse_args([row.case.model, *row.case.flags, "--gpus", "h200"])
    job, cluster, strategy = asked(args)
    family = family_of(job, strategy)
    profile = profile_for(job, strategy.attention, cluster.device, family)
    work = family_work(job, profile, family, moved_by_update=0.0)
    return Timed(
        row.case.name,
        float(work.num_ops[0]),
        float(work.num_ops[0]) * row.device.op_overhead_s,
        row.measured.measured_step_s,
        row.measured.measured_steps_s[1:],  # the first makes the optimizer's state
        row.predicted.predicted_step_s,
    )


def test_no_timed_step_is_bound_by_launches(timed):
    """What is told 28 % too fast (GPT-2, 135M in fp32) is so by another reason than its launches.

    A launch took 12.9 microseconds on that host, measured, which is two to three times what is
    assumed of a host that nobody measured.
    """
    assert len(timed) == 10
    for each in timed:
        assert each.launch_s < MOST_HIDDEN * each.measured_step_s, each
        assert each.launch_s < each.predicted_step_s, each
        steps = sorted(each.steps_s)
        assert steps[-2] - steps[0] < MOST_SPREAD * each.measured_step_s, each


def test_what_is_missing_is_no_time_for_each_operation(timed):
    """Between cases it differs by more than ten times, so that no one number would mend them."""
    each_op_s = [(each.measured_step_s - each.predicted_step_s) / each.num_ops for each in timed]
    assert min(each_op_s) > 0
    assert max(each_op_s) > 10 * min(each_op_s)
