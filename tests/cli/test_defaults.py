"""What is taken where nobody says: the batch of a search, what several values are searched as."""

import json

import pytest

from brimful.cli.main import parser_of
from brimful.cli.resolved import job_from
from brimful.cli.searching import pins_from


def parsed(verb, *argv):
    return parser_of(verb).parse_args(["llama-3.1-8b", *argv])


@pytest.mark.parametrize(
    ("argv", "batch"),
    [
        (("--gpus", "rtx-4090"), 8),
        (("--gpus", "8xh100-80gb"), 64),
        (("--gpus", "3x4xh100-80gb"), 48),
        (("--gpus", "16x8xh100-80gb"), 128),
        (("--gpus", "8xh100-80gb", "--micro-batch", "2"), 16),
        (("--gpus", "8xh100-80gb", "--global-batch", "24"), 24),
    ],
)
def test_a_search_has_a_batch_to_divide(argv, batch):
    assert job_from(parsed("plan", *argv)).global_batch == batch


def test_one_strategy_is_of_a_micro_batch_on_each_gpu():
    assert job_from(parsed("estimate", "--gpus", "8xh100-80gb")).global_batch == 8


def test_a_batch_that_nobody_named_is_divided_as_is_fastest(brimful):
    told = json.loads(brimful("plan", "gpt2", "--gpus", "rtx-4090", "--no-proof", "--json").out)
    assert told["strategy"]["micro_batch"] == told["job"]["global_batch"] == 8


def test_of_several_values_what_shards_most_is_looked_at_first():
    """What does not may have no room, and then is never traced."""
    args = parsed("plan", "--gpus", "8xh100-80gb", "--zero", "0,2,3")
    assert [pins.zero for pins in pins_from(args)] == [3, 2, 0]
