"""Which of two processes had the first NaN: both say the same, and that one keeps its batch."""

import json

import pytest

pytestmark = pytest.mark.torch


@pytest.mark.few(1)
@pytest.mark.parametrize("layout", ["ddp", "zero-3", "tp"])
def test_the_process_and_the_module_are_named_by_all(layout):
    from .group_programs import LAYER, answers

    told, files, folder = answers()
    said = [of[layout][0] for of in told]
    num = 4 if layout == "tp" else 2
    assert said[0] == said[1]
    assert said[0].startswith(
        f"first in the output of {LAYER} by aten.mul, micro-batch 1 of {num} of process 1; the "
        f"batch is kept in {folder}/{layout}/bad-step-00000006"
    )
    kept = json.loads(files[layout])
    assert (kept["name"], kept["rank"], kept["op"], kept["where"]) == (
        LAYER, 1, "aten.mul", "forward"
    )  # fmt: skip
    assert all(all(of[layout][1]) for of in told)  # no gradient stays


def test_where_nothing_is_found_again_that_is_said():
    from .group_programs import answers

    told, _, _ = answers()
    said = {of["healthy"][0] for of in told}
    assert said == {"running the step again does not show where"}


SCALES = (1024, 1024, 512, 512, 512, 1024, 1024, 512)
"""Of ``SCRIPT``, by hand: halved after each Inf, doubled after three steps without one."""


@pytest.mark.parametrize("layout", ["ddp", "zero-3", "tp"])
def test_all_processes_skip_together_and_follow_the_rule(layout):
    from .group_programs import SCRIPT, answers

    told, _, _ = answers()
    right = [(scale, not is_finite) for scale, is_finite in zip(SCALES, SCRIPT, strict=True)]
    for of in told:
        assert of["scales"][layout] == right
