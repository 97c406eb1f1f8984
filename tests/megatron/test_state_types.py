"""Megatron's optimizer with states in fewer bits: bytes counted by hand from its sources."""

import pytest

from brimful.errors import InputError, UnsupportedError
from brimful.megatron.command_line import read_layout
from brimful.megatron.state_types import AWARE, FRACTION, ON_HOST
from brimful.megatron.states import gradient_copies, model_bytes, moment_bytes, widened_bytes
from brimful.programs.base import flags_of

from .test_predicted import PLAIN

REPLICAS = 8


def layout(line):
    words = line.split()
    return read_layout(
        flags_of(tuple(words[1:]), words[0]),
        vocab=50257,
        world_size=REPLICAS,
        stage=0,
        capability=(9, 0),
        kind="gpt",
    )


def num_bytes(line):
    at = layout(line)
    return sum(model_bytes(at)) + sum(moment_bytes(at))


@pytest.mark.parametrize(
    ("flags", "of_gradient", "of_shard"),
    [
        ("", 4, 4 + 4 + 2),  # of copies in fp32 what bf16 lacks
        ("--main-grads-dtype bf16", 2, 4 + 4 + 2),
        ("--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16", 4, 2 + 2 + 2),
        ("--exp-avg-dtype fp8 --exp-avg-sq-dtype fp16", 4, 1 + 2 + 2),
        ("--main-params-dtype fp16", 4, 4 + 4 + 2),
        ("--fp8-format hybrid --fp8-recipe tensorwise", 4, 4 + 4 + 4),  # Megatron makes them
    ],
)
def test_states_are_kept_in_the_types_that_are_said(flags, of_gradient, of_shard):
    num = num_bytes(PLAIN) / (2 + 4 + (4 + 4 + 4) / REPLICAS)
    expected = num * (2 + of_gradient + of_shard / REPLICAS)
    assert num_bytes(f"{PLAIN} {AWARE} {flags}") == pytest.approx(expected, rel=1e-4)


def test_a_device_keeps_no_states_that_the_host_updates():
    """Parameters and gradients alone stay; of a part of them nobody knows which."""
    aware = f"{PLAIN} {AWARE}"
    num = num_bytes(PLAIN) / (2 + 4 + (4 + 4 + 4) / REPLICAS)
    whole = f"{aware} {ON_HOST} {FRACTION} 1.0"
    assert num_bytes(whole) == pytest.approx(num * (2 + 4), rel=1e-4)
    assert num_bytes(f"{whole} --main-grads-dtype bf16") == pytest.approx(num * 4, rel=1e-4)
    assert not gradient_copies(layout(f"{whole} --main-grads-dtype bf16"))
    with pytest.raises(UnsupportedError, match="on the host but for"):
        layout(f"{aware} {ON_HOST} {FRACTION} 0.5")
    with pytest.raises(InputError, match=f"needs {AWARE}"):
        layout(f"{PLAIN} {ON_HOST} {FRACTION} 1.0")


@pytest.mark.parametrize(
    ("types", "num"),
    [(("bf16", "bf16"), 0), (("bf16", "fp32"), 1), (("fp16", "fp8"), 2), (("fp32", "fp32"), 0)],
)
def test_an_update_widens_states_that_its_kernel_cannot_read(types, num):
    first, second = types
    at = layout(f"{PLAIN} {AWARE} --exp-avg-dtype {first} --exp-avg-sq-dtype {second}")
    shard = sum(moment_bytes(layout(PLAIN))) // 2
    assert sum(widened_bytes(at)) == num * shard


def test_gradients_in_16_bits_are_read_as_they_are():
    narrow = f"{PLAIN} {AWARE} --main-grads-dtype bf16"
    assert gradient_copies(layout(f"{PLAIN} --grad-reduce-in-bf16"))
    assert not gradient_copies(layout(narrow))


def test_types_of_states_go_with_what_they_need():
    with pytest.raises(InputError, match=f"bf16 needs {AWARE}"):
        layout(f"{PLAIN} --exp-avg-dtype bf16")
    with pytest.raises(InputError, match="needs --use-distributed-optimizer"):
        layout(PLAIN.replace("--use-distributed-optimizer", AWARE))
    with pytest.raises(UnsupportedError, match="--exp-avg-dtype int8"):
        layout(f"{PLAIN} {AWARE} --exp-avg-dtype int8")
