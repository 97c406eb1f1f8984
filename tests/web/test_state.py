"""What the page asks is one record: it round-trips through an address, and names no file."""

import json
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import InputError
from brimful.web.state import (
    FIELDS,
    MOST_CHARS,
    MOST_CONFIG_BYTES,
    STRATEGY,
    USUAL,
    WHATS,
    arguments,
    command,
    query_of,
    read_state,
)


def again(state):
    return read_state(dict(parse_qsl(query_of(state), keep_blank_values=True)))


def test_an_empty_address_asks_the_usual_question():
    assert read_state({}).given == USUAL


def test_an_address_holds_the_whole_question():
    query = {
        "model": "qwen3-8b", "what": "qlora", "gpus": "2xrtx-3090", "seq_len": "8k",
        "lora_rank": "64", "allocator": "expandable_segments:True", "offload": "parameters:4",
    }  # fmt: skip
    state = read_state(query)
    assert again(state) == state


def test_a_pasted_configuration_is_in_the_address_too():
    config = {"model_type": "llama", "hidden_size": 64, "name": "ein Modell & mehr <b>"}
    state = read_state({"config": json.dumps(config, indent=4)})
    assert state.config == config
    assert again(state).config == config


_TEXT = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)


@given(st.dictionaries(st.sampled_from(sorted({*FIELDS} - {"config", "hub", "what"})), _TEXT))
def test_what_is_read_round_trips_and_what_is_refused_is_one_sentence(query):
    state, refusal = _read(query)
    if state is None:
        assert "\n" not in refusal
        assert len(refusal) < 1000
    else:
        assert again(state) == state


def _read(query):
    try:
        return read_state(query), ""
    except InputError as error:
        return None, str(error)


@pytest.mark.parametrize(
    "model",
    [
        "/etc/passwd", "../config.json", "./model", "~/model", "config.json", "job.yaml",
        "plan.yml", "@flags", "package.module:factory", "C:\\model", "a/b/c", "file:///etc/hosts",
        "-v", ".", "..", "org/config.json", "org/plan.yaml",
    ],
)  # fmt: skip
def test_what_names_a_file_of_the_machine_is_refused(model):
    with pytest.raises(InputError, match="reads no file of the machine"):
        read_state({"model": model})


@pytest.mark.parametrize(
    "gpus",
    [
        "local", "Local", "8xlocal", "2x8xlocal", "1 x local", "1*local", "2 \u00d7 8 x local",
        "\uff4c\uff4f\uff43\uff41\uff4c", "8x\uff4c\uff4f\uff43\uff41\uff4c",
    ],
)  # fmt: skip
def test_the_machine_that_serves_is_not_looked_at(gpus):
    with pytest.raises(InputError, match="the machine that serves this page"):
        read_state({"gpus": gpus})


@pytest.mark.parametrize(
    "key", ["weights", "from", "output", "page", "prices", "data", "out", "json", "engine"]
)
def test_flags_that_read_or_write_are_no_fields(key):
    with pytest.raises(InputError, match="unknown field"):
        read_state({key: "x"})


def test_fields_are_short_lines():
    with pytest.raises(InputError, match="characters"):
        read_state({"model": "a" * (MOST_CHARS + 1)})
    with pytest.raises(InputError):
        read_state({"model": "a\nb"})


@pytest.mark.parametrize(
    ("pasted", "why"),
    [
        ("[" * 100000, "brackets|bytes"),
        ('{"a": ' * 8 + "1" + "}" * 8, "brackets in one another"),
        (json.dumps({"a": "x" * MOST_CONFIG_BYTES}), "bytes"),
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"a": ' + "9" * 5000 + "}", "number"),
    ],
)
def test_a_pasted_configuration_is_bounded(pasted, why):
    with pytest.raises(InputError, match=why):
        read_state({"config": pasted})


@pytest.mark.parametrize("what", WHATS)
def test_what_to_do_is_said_by_flags_that_the_command_line_has(what):
    from brimful.cli.main import parse

    state = read_state({"what": what, "seq_len": "2048"})
    assert parse("estimate", arguments(state, "llama-3.1-8b")).seq_len == 2048


def test_a_plan_is_asked_without_a_strategy():
    state = read_state({"micro_batch": "4", "zero": "3", "seq_len": "4096"})
    words = arguments(state, "llama-3.1-8b", verb="plan")
    flags = {f"--{key.replace('_', '-')}" for key in STRATEGY}
    assert not flags & {word.partition("=")[0] for word in words}
    typed = {word.partition("=")[0] for word in arguments(state, "llama-3.1-8b")}
    assert flags & typed == {"--micro-batch", "--zero"}
    assert "--seq-len=4096" in words


def test_what_another_question_left_in_the_form_is_not_said():
    state = read_state({"what": "full", "lora_rank": "8", "weights_format": "int8"})
    assert command(state) == "brimful estimate llama-3.1-8b --method=full --gpus=rtx-4090"
