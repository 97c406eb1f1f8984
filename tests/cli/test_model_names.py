"""What the command line answers to names of models that are none of language alone."""

import re

import pytest

GPU = ("--seq-len", 512)


@pytest.mark.parametrize(
    ("gpu", "fits"),
    [
        ("h100-80gb", "which fits the 79.10 GiB of H100 SXM 80GB before anything is trained"),
        ("rtx-4090", "of RTX 4090 24GB without text encoders, before anything is trained"),
        ("l4", "which is more than the 22.03 GiB of L4 24GB"),
    ],
)
def test_a_model_that_makes_images_is_told_against_the_card(brimful, gpu, fits):
    said = brimful("estimate", "black-forest-labs/FLUX.1-dev", "--gpus", gpu)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert said.err.startswith("brimful: FLUX.1-dev is a diffusion transformer of 11.9B parameters")
    assert fits in said.err
    assert f"brimful pretend --gpu {gpu} -- train_script.py" in said.err


def test_a_model_that_makes_images_is_refused_where_no_card_is_named(brimful):
    for verb in ("plan", "estimate"):
        said = brimful(verb, "sdxl")
        assert (said.code, said.out) == (2, "")
        assert "a diffusion UNet of 2.57B parameters" in said.err


FACTORY = """
import torch

def build():
    return torch.nn.Linear(4, 4)
"""


@pytest.mark.torch
def test_a_factory_that_is_called_as_one_is_not_refused_as_one(brimful, folder, monkeypatch):
    """kolors:build was told to be Kolors."""
    monkeypatch.syspath_prepend(folder)
    (folder / "kolors.py").write_text(FACTORY)
    said = brimful("estimate", "kolors:build", "--gpus", "h100-80gb")
    assert "diffusion" not in said.out + said.err
    assert "kolors:build() returned a Linear without model" in said.err


def test_a_language_model_that_begins_as_one_is_not_refused_as_one(brimful):
    said = brimful("estimate", "sd-chat", "--gpus", "h100-80gb")
    assert said.code == 2
    assert "diffusion" not in said.err
    assert "unknown model 'sd-chat'" in said.err


def test_what_is_counted_of_blocks_that_attend_to_images_is_said(brimful):
    asked = ("meta-llama/Llama-3.2-11B-Vision", "--gpus", "h100-80gb", "--method", "qlora", *GPU)
    told = " ".join(brimful("estimate", *asked, "-v").out.split())
    assert "vision encoder, 1.67 GiB in bf16" in told
    assert "its 8 of 40 blocks that attend to images counted as blocks that attend to the" in told


def test_an_encoder_of_sounds_is_called_one(brimful):
    asked = ("mistralai/Voxtral-Mini-3B-2507", "--gpus", "h100-80gb", "--method", "lora", *GPU)
    told = " ".join(brimful("estimate", *asked).out.split())
    assert "encoder of sounds, 1.23 GiB in bf16" in told


def test_a_misspelt_name_is_answered_by_the_model_that_it_says(brimful):
    asked = ("meta-llama/Llama-3.2-11B-Vison-Instruct", "--gpus", "h100-80gb", "--method", "qlora")
    said = brimful("estimate", *asked, *GPU)
    assert said.code == 2
    assert "is spelt almost as llama-3.2-11b-vision: did you mean that?" in said.err
    assert "instead the same with model llama-3.2-11b-vision:" in " ".join(said.out.split())


@pytest.mark.torch
def test_weights_that_are_cut_off_in_steps_are_not_held_in_few_bits(brimful):
    """Its class clamps them in place, which ended in a traceback."""
    asked = ("google/gemma-3n-E2B", "--gpus", "h100-80gb", "--method", "qlora", *GPU, "--json")
    said = brimful("estimate", *asked)
    assert said.code == 2
    assert "fails on weights in few bits; use method=lora" in said.out + said.err


def test_what_a_model_that_sees_has_beside_is_said(brimful):
    said = brimful("estimate", "google/gemma-3-4b-it", "--gpus", "h100", "--method", "lora")
    told = " ".join(said.out.split())
    assert "vision encoder, 800.74 MiB in bf16" in told


def test_what_an_encoder_lacks_turns_the_verdict(brimful):
    asked = ("qwen2.5-vl-7b", "--method", "qlora", "--seq-len", "2048", "--no-proof", "--gpus")
    tight = brimful("plan", *asked, "rtx-4070")
    assert (tight.code, tight.out.split()[0]) == (1, "TIGHT")
    lines = tight.out.splitlines()
    assert re.match(r"left out  vision encoder, 1.26 GiB in bf16 \([\d.]+ MiB too much", lines[2])
    assert any(line.startswith("safer ") for line in lines)
    roomy = brimful("plan", *asked, "a6000")
    assert (roomy.code, roomy.out.split()[0]) == (0, "FITS")
    assert "1.26 GiB in bf16, and images" in roomy.out
