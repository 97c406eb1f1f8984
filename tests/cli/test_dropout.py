"""What answers say of dropout: off where a configuration has some, and how much where it is on."""

import json

import pytest

from brimful.cli.main import parser_of
from brimful.errors import InputError
from samples import TINY_GPT2

OFF = "dropout off (0.1 in its configuration; --dropout model counts it)"
SFT = "trl sft --model_name_or_path gpt2 --per_device_train_batch_size 2 --max_length 64"


def flat(said):
    return " ".join(said.out.split())


@pytest.fixture
def asked(brimful, folder):
    """Ask about the fixture's llama, and about a GPT-2."""
    (folder / "gpt2.json").write_text(json.dumps(TINY_GPT2))

    def ask(model, *more):
        return brimful("estimate", model, "--gpus", "a100-40gb", "--seq-len", "64", *more)

    return ask


def test_what_a_configuration_drops_is_said_to_be_off_where_nobody_chose(asked):
    assert OFF in flat(asked("gpt2.json"))
    assert "dropout" not in flat(asked("gpt2.json", "--dropout", "off"))
    assert "dropout" not in flat(asked("tiny.json"))


def test_what_is_dropped_is_said_and_counted(asked):
    said = asked("gpt2.json", "--dropout", "model", "-v")
    assert "dropout 0.1, as its configuration says; another micro-batch" in flat(said)
    assert "dropout=model" in flat(said)
    assert "dropout 0.1, every sequence full length" in flat(said)
    assert "dropout nothing: its configuration has none" in flat(
        asked("tiny.json", "--dropout", "model")
    )


def test_settings_of_another_program_keep_it_off_unless_that_is_said_beside(brimful):
    assert OFF in flat(brimful("estimate", "--gpus", "a100-40gb", "--from", SFT))
    said = brimful("estimate", "--gpus", "a100-40gb", "--from", SFT, "--dropout", "model")
    assert "dropout 0.1, as its configuration says" in flat(said)


@pytest.mark.parametrize(
    ("typed", "taken"),
    [("off", "off"), ("model", "model"), ("on", "model"), ("0.1", "model"), ("0.0", "off")],
)
def test_a_probability_is_taken_for_those_of_the_configuration(typed, taken):
    assert parser_of("estimate").parse_args(["gpt2", "--dropout", typed]).dropout == taken


def test_what_is_no_probability_is_refused():
    with pytest.raises(InputError, match="unknown dropout 'much'; known: "):
        parser_of("estimate").parse_args(["gpt2", "--dropout", "much"])
