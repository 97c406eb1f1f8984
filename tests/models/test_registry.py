"""The shipped models: what their files hold, and that they are what ``transformers`` builds."""

import json
from importlib import resources

import pytest

from brimful.models.config import (
    ARCHITECTURES,
    active_parameters,
    experts_of,
    layout_of,
    load_model,
    parameter_count,
)
from brimful.models.experts import NO_EXPERTS
from brimful.models.fields import MAX_POSITIONS
from brimful.models.layout import all_parameters, num_elements
from brimful.models.registry import registry
from models.meta import named_shapes

REQUIRED = {"model_type": str, "config": dict, "num_parameters_official": int, "source": str}
MIXTURES = {name for name in registry() if experts_of(load_model(name)) != NO_EXPERTS}


@pytest.mark.parametrize("name", registry())
def test_an_entry_holds_what_the_schema_says(name):
    entry = registry()[name]
    assert set(entry) - {"difference"} == set(REQUIRED)
    for field, kind in REQUIRED.items():
        assert type(entry[field]) is kind or (field, entry[field]) == (
            "num_parameters_official",
            None,
        )
    assert entry["model_type"] in ARCHITECTURES
    assert "model_type" not in entry["config"]
    assert entry["source"].startswith("https://huggingface.co/") or "arXiv:" in entry["source"]


def test_no_name_stands_in_two_files_and_every_family_is_there():
    folder = resources.files("brimful").joinpath("data/models")
    names = [name for file in folder.iterdir() for name in json.loads(file.read_text("utf-8"))]
    assert sorted(names) == sorted(registry())
    assert len(names) == 50
    assert {entry["model_type"] for entry in registry().values()} == set(ARCHITECTURES) - {
        "t5",
        "switch_transformers",
    }


@pytest.mark.parametrize("name", registry())
def test_counts_are_the_official_ones_but_for_what_is_said(name):
    entry = registry()[name]
    total, official = parameter_count(load_model(name)).total, entry["num_parameters_official"]
    difference = entry.get("difference", {"num_parameters": 0, "why": "none"})
    assert set(difference) == {"num_parameters", "why"}
    assert len(difference["why"]) > 3
    if official is None:
        # GPT-3's sizes are published with two or three digits.
        published = float(name.removeprefix("gpt3-").removesuffix("b")) * 1e9
        assert total == pytest.approx(published, rel=0.02)
    else:
        assert total == official + difference["num_parameters"]


@pytest.mark.torch
@pytest.mark.parametrize("name", registry())
def test_layouts_are_what_transformers_builds(name):
    spec = load_model(name)
    assert [(p.name, p.shape) for p in all_parameters(layout_of(spec))] == named_shapes(spec)


@pytest.mark.torch
def test_what_deepseek_v3_counts_beside_parameters_are_the_routers_buffers():
    from models.meta import build

    spec = load_model("deepseek-v3")
    buffers = dict(build(spec).named_buffers())
    biases = sum(b.numel() for name, b in buffers.items() if "e_score_correction_bias" in name)
    assert registry()["deepseek-v3"]["difference"]["num_parameters"] == -biases == -58 * 256


@pytest.mark.torch
@pytest.mark.parametrize("name", registry())
def test_the_longest_text_is_one_that_transformers_allows_too(name):
    from transformers import AutoConfig

    spec = load_model(name)
    made = AutoConfig.for_model(spec.model_type, **spec.hf_config)
    assert spec.max_seq_len == made.max_position_embeddings < MAX_POSITIONS


PUBLISHED = {
    # Embedding counted whole.
    "mixtral-8x7b": ("12.9", True),  # Mistral AI's announcement: 46.7B in all
    "mixtral-8x22b": ("39", True),  # Mistral AI's announcement: 141B in all
    "qwen3-30b-a3b": ("3.3", True),  # model card: 30.5B in all
    "qwen3-235b-a22b": ("22", True),  # model card: 235B in all
    # Embedding left out, output layer counted.
    "deepseek-v2-lite": ("2.4", False),  # model card: 15.7B in all
    "deepseek-v3": ("37", False),  # arXiv:2412.19437, abstract: 671B in all
    "gpt-oss-20b": ("3.6", False),  # model card: 20.9B in all
    "gpt-oss-120b": ("5.1", False),  # model card: 116.8B in all
}
"""Billions that are active, as they are published."""


def test_every_mixture_has_a_published_figure():
    assert set(PUBLISHED) == MIXTURES


@pytest.mark.parametrize("name", PUBLISHED)
def test_active_parameters_are_the_published_ones_rounded_or_cut_off(name):
    published, with_embedding = PUBLISHED[name]
    spec = load_model(name)
    left_out = 0 if with_embedding else num_elements(layout_of(spec).embedding)
    last_digit = 10.0 ** -len(published.partition(".")[2])
    billions = (active_parameters(spec) - left_out) / 1e9
    assert abs(billions - float(published)) < last_digit


@pytest.mark.parametrize("name", sorted(set(registry()) - MIXTURES))
def test_every_parameter_of_a_dense_model_is_active(name):
    spec = load_model(name)
    assert active_parameters(spec) == parameter_count(spec).total


@pytest.mark.parametrize("name", sorted(MIXTURES))
def test_experts_are_where_their_stacks_are(name):
    spec = load_model(name)
    experts = experts_of(spec)
    sparse = [
        place
        for run in layout_of(spec).blocks
        for place in range(run.first, run.first + run.num_blocks)
        if any(p.kind == "experts" for p in run.parameters)
    ]
    stacks = [p for p in all_parameters(layout_of(spec)) if p.kind == "experts"]
    assert tuple(sparse) == experts.sparse_blocks
    assert {p.shape[0] for p in stacks} == {experts.num_experts}
    assert all(
        experts.width in p.shape or 2 * experts.width in p.shape
        for p in stacks
        if len(p.shape) == 3
    )
