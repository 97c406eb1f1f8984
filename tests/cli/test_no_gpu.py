"""Without ``--gpus`` on a machine without a GPU: what holds each method, in flags that say FITS."""

import re

import msgspec
import pytest

from brimful.cli import no_gpu
from brimful.hardware.gpus import load_cluster


@pytest.fixture(autouse=True)
def _without_a_gpu(monkeypatch):
    device = load_cluster("h100", memory_limit_bytes=None).device
    cpu = msgspec.structs.replace(device, name="local", kernels="cpu")
    monkeypatch.setattr(no_gpu, "_here", lambda: cpu)


def paragraph(out):
    return " ".join(out.split())


def offered(out):
    """Return the flags of each method's line."""
    every = [paragraph(each).partition(" fits with ") for each in re.split(r"\n(?=\S)", out)]
    return [words.split() for _, found, words in every if found]


@pytest.mark.few(only=["qwen2.5-0.5b --seq-len 2048", "mixtral-8x7b --seq-len 1024"])
@pytest.mark.parametrize(
    "asked",
    ["llama-3.1-8b", "qwen2.5-0.5b --seq-len 2048", "mixtral-8x7b --seq-len 1024"],
)
def test_every_line_is_a_command_that_says_it_fits(brimful, asked):
    said = brimful("estimate", *asked.split())
    assert said.code == 0
    lines = said.out.splitlines()
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines if line[0] != " "][:4] == [
        "ANSWER", "full", "LoRA", "QLoRA",
    ]  # fmt: skip
    every = offered(said.out)
    assert len(every) == 3
    for flags in every:
        told = brimful("estimate", *asked.split(), *flags)
        assert told.out.startswith("FITS"), (flags, told)


def test_settings_that_were_typed_stay(brimful):
    asked = ["llama-3.2-1b", "--ac", "full", "--method", "lora", "--seq-len", "1024"]
    said = brimful("estimate", *asked)
    (flags,) = offered(said.out)
    assert len(flags) == 2  # --gpus alone
    assert brimful("estimate", *asked, *flags).out.startswith("FITS")


def test_this_machine_is_answered_where_it_is_named(brimful):
    said = brimful("estimate", "llama-3.1-70b", "--gpus", "local")
    assert "host" not in said.out
    assert said.out.startswith("NO")


def test_a_model_without_a_name_is_refused_once(brimful):
    said = brimful("estimate", "lama-3.1-8b")
    assert said.code == 2
    assert len(said.err.splitlines()) == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("gpus", ["rtx-4090", "l4"])
def test_a_larger_card_is_named_with_the_settings_that_it_takes(brimful, gpus):
    said = brimful("estimate", "llama-3.1-8b", "--gpus", gpus)
    words = re.findall(r"(?:instead |\) )(--[a-z][^()]*?) would fit, ", paragraph(said.out))
    assert words
    for flags in words:
        told = brimful("estimate", "llama-3.1-8b", "--gpus", gpus, *flags.split())
        assert told.out.startswith("FITS"), flags


def test_what_is_large_at_the_peak_has_a_name(brimful):
    ask = ("llama-3.1-8b", "--gpus", "a100-80gb", "--optimizer", "adamw-8bit")
    out = paragraph(brimful("estimate", *ask, "--micro-batch", 2).out)
    assert "autocast cache 13.98 GiB, logits and loss 11.80 GiB" in out
    assert "other tensors" not in out
