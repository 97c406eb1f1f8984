"""Named settings that do not go together: said once, and the nearest that runs is answered."""

import pytest

from brimful.cli.going_together import checked, go_together
from brimful.cli.main import parse

GPUS = ("--gpus", "4xrtx-4090", "--method", "qlora", "--micro-batch", "1", "--seq-len", "512")
ROUND = ("--zero", "3", "--pp", "2", "--offload", "parameters:10,optimizer")


def together(*flags):
    args = parse("estimate", ["tinyllama-1.1b", *GPUS, *flags])
    check = checked(args)
    return go_together(vars(args), check({}), check)


def test_the_fewest_settings_are_let_go_of_and_each_has_its_reason():
    found = together(*ROUND)
    assert found.changes == {"pp": 1, "offload": "optimizer"}
    assert [each.partition(" is not run")[0] for each in found.reasons] == [
        "offload=optimizer with pp=2",
        "offload=parameters:10,optimizer with zero=3 on 4 devices",
    ]


@pytest.mark.parametrize(
    "flags", [("--zero", "3", "--offload", "parameters:10"), ("--pp", "2"), ("--tp", "3")]
)
def test_a_refusal_that_names_what_runs_is_followed_as_it_is(flags):
    assert together(*flags) is None


def test_what_does_not_go_together_is_said_once_and_the_rest_is_answered(brimful):
    said = brimful("estimate", "tinyllama-1.1b", *GPUS, *ROUND)
    assert said.code == 2
    assert said.err.count("is not run by engine=torch") == 2
    assert said.err.startswith("brimful: these settings do not go together: offload=optimizer with")
    assert said.out.startswith("instead   the same with --pp 1 --offload optimizer:\nFITS ")


def test_below_a_no_stands_what_a_search_finds_for_the_job(brimful):
    said = brimful("estimate", "tinyllama-1.1b", *GPUS, *ROUND, "--memory-limit", "600MiB")
    told = " ".join(said.out.split())
    assert "NO QLoRA of tinyllama-1.1b" in told
    assert "plan finds" in told
