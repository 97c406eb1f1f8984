"""The workflow that people copy: it is YAML, and its last step is a command of ours."""

import shlex
from pathlib import Path

import yaml

from brimful.cli.main import parser_of

GATE = Path(__file__).parents[2] / "examples" / "ci" / "memory-gate.yml"


def test_the_last_step_is_a_command_that_we_take():
    (job,) = yaml.safe_load(GATE.read_text("utf-8"))["jobs"].values()
    program, verb, *flags = shlex.split(job["steps"][-1]["run"])
    assert program == "brimful"
    args = parser_of(verb).parse_args(flags)
    assert args.gpu == "h100-80gb"
    assert args.memory_budget == 70 * 2**30


def test_it_may_read_and_no_more():
    workflow = yaml.safe_load(GATE.read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
