"""How long a run is: what a person says of it, in the steps of a job."""

import json

import pytest

RUN = ("estimate", "gpt2", "--gpus", "h100-80gb", "--seq-len", "512", "--global-batch", "64")


@pytest.mark.parametrize(
    ("typed", "steps"),
    [
        (("--steps", "7"), 7),
        (("--tokens", "1M"), 31),
        (("--rows", "1000"), 16),
        (("--rows", "1k", "--epochs", "3"), 48),
        (("--rows", "1000", "--epochs", "0.5"), 8),
        (("--epochs", "3"), 100),
    ],
)
def test_steps_are_those_of_tokens_or_of_rows(brimful, typed, steps):
    said = brimful(*RUN, *typed, "--json")
    assert json.loads(said.out)["job"]["num_steps"] == steps


def test_rows_of_a_text_say_what_each_counts(brimful):
    assert "each of 1,000 rows counts 512 tokens" in brimful(*RUN, "--rows", "1000").err


def test_epochs_alone_are_left_out_and_said(brimful):
    assert "or --rows how many rows it has" in brimful(*RUN, "--epochs", "3").err


def test_two_lengths_are_refused(brimful):
    said = brimful(*RUN, "--rows", "1000", "--tokens", "1M")
    assert said.code == 2
    assert "--tokens 1000000 and --rows 1000 both say how long; give one" in said.err


def test_three_lengths_are_refused(brimful):
    said = brimful(*RUN, "--rows", "1000", "--tokens", "1M", "--steps", "7")
    assert said.code == 2
    assert "--steps 7 and --tokens 1000000 and --rows 1000 all say how long; give one" in said.err


@pytest.mark.parametrize("epochs", ["inf", "nan", "0", "-1", "1e300"])
def test_epochs_are_finite_and_above_0(brimful, epochs):
    said = brimful(*RUN, "--rows", "1000", "--epochs", epochs)
    assert said.code == 2
    assert f"--epochs {epochs} is not above 0 and at most 1,000,000,000" in said.err


def test_tokens_are_those_of_all_epochs(brimful):
    said = brimful(*RUN, "--tokens", "1M", "--epochs", "3")
    assert "--epochs 3 is left out: --tokens says all of them" in said.err


def test_more_tokens_than_anybody_trains_are_refused_by_what_was_typed(brimful):
    said = brimful("estimate", "smollm2-135m", "--gpus", "h100-80gb", "--tokens", "2e9B")
    assert said.code == 2
    assert "--tokens is 2000000T tokens" in said.err
    assert "2B are two billion" in said.err
