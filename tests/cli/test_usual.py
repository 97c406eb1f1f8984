"""Defaults that cannot run: what can is taken and said in one line; what was typed is refused."""

import json

import pytest
from tests.other_decoders import CONFIGS

from brimful.cli.main import parser_of
from brimful.cli.shop import job_from, recipes_from
from brimful.cli.usual import attention_from
from brimful.hardware.gpus import gpus
from brimful.search.shop.values import Recipe

H100, SMALL = ("--gpus", "h100-80gb"), ("--seq-len", 16)
MANY = ("--gpus", "8xh100-80gb")


@pytest.fixture
def gemma(folder):
    config = {"model_type": "gemma2", **CONFIGS["gemma2"]}
    (folder / "gemma.json").write_text(json.dumps(config))
    return "gemma.json"


def instead(said):
    """Return what was taken instead of a default, and check that it is said once."""
    lines = [line for line in said.err.splitlines() if "instead of the default" in line]
    taken = [line.removeprefix("brimful: ").split(" instead")[0] for line in lines]
    assert len(set(taken)) == len(taken)
    return taken


@pytest.mark.parametrize("verb", ["estimate", "plan"])
def test_a_model_that_changes_its_scores_is_attended_to_eagerly(brimful, gemma, verb):
    said = brimful(verb, gemma, *H100, *SMALL, "--json")
    assert said.code == 0, said.err
    assert instead(said) == ["attention=eager"]
    assert "leave out the cap on scores" in said.err
    assert json.loads(said.out)["strategy"]["attention"] == "eager"


def test_shopping_takes_the_same(brimful, gemma):
    said = brimful("shop", gemma, *SMALL, "--tokens", "1M", "--kinds", "a100-80gb", "--json")
    assert instead(said) == ["attention=eager"]
    assert said.code == 0, said.err


@pytest.mark.parametrize(
    ("asked", "kinds", "own"),
    [("flash", ("h100-80gb", "a100-80gb"), {}), (None, ("h100-80gb", "t4"), {"t4": "sdpa"})],
)
def test_each_kind_that_is_compared_attends_as_it_does_alone(asked, kinds, own):
    """FlashAttention as typed was each kind's own recipe, which packed documents do not take."""
    words = ["smollm2-135m", "--seq-len", "512", "--tokens", "1M", "--packing", "documents"]
    typed = parser_of("shop").parse_args([*words, *(["--attention", asked] if asked else [])])
    devices = [gpus()[kind] for kind in kinds]
    job = job_from(typed, devices)
    of_all = Recipe(job, attention_from(typed, job, None))
    found = recipes_from(typed, of_all, devices)
    assert {kind: each.attention for kind, each in found.items()} == own
    assert of_all.attention == ("varlen" if asked else "sdpa")


@pytest.mark.parametrize("verb", ["estimate", "plan", "simulate"])
def test_a_kernel_that_was_asked_for_is_refused(brimful, gemma, verb):
    said = brimful(verb, gemma, *H100, *SMALL, "--attention", "sdpa")
    assert said.code == 2
    assert "cap on scores" in said.err
    assert said.err.splitlines()[0].endswith("use eager")


@pytest.mark.parametrize(
    ("gpu", "precision"), [("v100-16gb", "fp16-mixed"), ("t4", "fp16-mixed"), ("p40", "fp32")]
)
def test_a_card_without_units_for_bf16_takes_the_next_recipe(brimful, gpu, precision):
    said = brimful("estimate", "smollm2-135m", "--gpus", gpu, *SMALL, "--json")
    assert said.code == 0, said.err
    assert instead(said) == [f"precision={precision}"]
    content = json.loads(said.out)
    assert content["job"]["precision"] == precision
    assert content["predicted_step_s"] > 0
    assert (content["job"]["loss_scale"] is not None) == (precision == "fp16-mixed")


def test_a_recipe_that_was_asked_for_is_kept_where_it_is_emulated_and_that_is_said(brimful):
    argv = ("smollm2-135m", *SMALL, "--precision", "bf16-mixed")
    said = brimful("estimate", *argv, "--gpus", "v100-16gb")
    assert said.code == 0
    assert "precision=bf16-mixed would be emulated" in said.err
    assert "--precision fp16-mixed has them" in said.err
    assert "emulated" not in brimful("estimate", *argv, *H100).err


@pytest.mark.parametrize(
    "attention",
    [
        ("--attention", "sdpa"),
        pytest.param((), marks=pytest.mark.long),  # what else a V100 runs is traced first
    ],
)
def test_a_market_takes_what_any_of_its_kinds_has_units_for(brimful, attention):
    argv = ("shop", "smollm2-135m", *SMALL, "--tokens", "1M", "--max-gpus", 1, "--json", *attention)
    said = brimful(*argv, "--kinds", "t4,v100-16gb")
    assert instead(said) == ["precision=fp16-mixed"]
    assert instead(brimful(*argv, "--kinds", "t4,l4")) == []


@pytest.mark.parametrize(
    ("flags", "zero"),
    [
        (("--optimizer", "adafactor"), 1),
        (("--task", "dpo", "--reference", "offloaded"), 1),
        (("--task", "dpo", "--reference", "offloaded", "--dp-shard", "2"), 1),  # in groups
        (("--optimizer", "adafactor", "--zero", "3"), None),
    ],
)
def test_devices_share_what_can_be_shared(brimful, flags, zero):
    said = brimful("estimate", "smollm2-135m", *MANY, *SMALL, *flags, "--json")
    if zero is None:
        assert said.code == 2
        assert instead(said) == []
        return
    assert said.code == 0, said.err
    assert instead(said) == [f"zero={zero}"]
    assert json.loads(said.out)["strategy"]["zero"] == zero


@pytest.mark.parametrize(
    ("flags", "method"),
    [(("--lora-rank", 8), "lora"), (("--lora-alpha", 8, "--base", "nf4"), "qlora")],
)
def test_a_flag_of_adapters_tells_the_method(brimful, flags, method):
    said = brimful("estimate", "smollm2-135m", *H100, *SMALL, *flags, "--json")
    assert f"--method {method} is taken, as {flags[0]} is given" in said.err
    assert json.loads(said.out)["job"]["method"] == method
    refused = brimful("estimate", "smollm2-135m", *H100, *SMALL, *flags, "--method", "full")
    assert refused.code == 2


def test_a_flag_of_quantisation_tells_the_method(brimful):
    said = brimful("estimate", "smollm2-135m", *H100, *SMALL, "--qat-scheme", "int8")
    assert "method=qat" in said.err


def test_flash_attention_of_packed_documents_is_told_where_each_begins(brimful):
    asked = ("estimate", "qwen3-0.6b", *H100, "--seq-len", 64, "--attention", "flash", "--json")
    packed = brimful(*asked, "--packing", "documents")
    assert packed.code == 0, packed.err
    assert json.loads(packed.out)["strategy"]["attention"] == "varlen"
    assert "--attention varlen is taken for flash" in packed.err
    assert json.loads(brimful(*asked).out)["strategy"]["attention"] == "flash"


@pytest.mark.parametrize(
    ("model", "gpus", "told"),
    [
        ("llama-3.2-1b", "rtx-2080-ti", "attention writes scores out: flash needs Ampere; "),
        ("gpt2", "v100-32gb", "attention by PyTorch's memory-efficient kernel: flash needs Amp"),
        ("llama-3.2-1b", "a100-40gb", ""),
    ],
)
def test_what_computes_attention_on_an_old_card_is_said(brimful, model, gpus, told):
    said = " ".join(brimful("estimate", model, "--gpus", gpus, "--seq-len", 512).out.split())
    assert ("flash needs Ampere" in said) == bool(told)
    assert told in said
