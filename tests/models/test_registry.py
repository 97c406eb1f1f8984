"""The shipped models: what their files hold, and that they are what ``transformers`` builds."""

import json
from importlib import resources

import pytest

from brimful.models.architectures import ARCHITECTURES
from brimful.models.config import (
    SEQ2SEQ_TYPES,
    active_parameters,
    check_model,
    default_task,
    experts_of,
    has_parameter_count,
    layout_of,
    load_model,
    parameter_count,
)
from brimful.models.experts import NO_EXPERTS
from brimful.models.fields import MAX_POSITIONS
from brimful.models.layout import all_parameters, num_elements
from brimful.models.registry import registry
from brimful.values.job import plain_job
from each_case import each
from models.meta import named_shapes
from samples import make_strategy

REQUIRED = {"model_type": str, "config": dict, "num_parameters_official": int, "source": str}
OPTIONAL = {"difference": dict, "num_parameters": int, "published": str, "read_in": str}
PLANNED = [name for name, entry in registry().items() if entry["model_type"] in ARCHITECTURES]
"""Models whose parameters a reader here counts."""
SIMULATED = sorted(set(registry()) - set(PLANNED))
MIXTURES = {name for name in PLANNED if experts_of(load_model(name)) != NO_EXPERTS}
UNITS = {"M": 1e6, "B": 1e9, "T": 1e12}


@each("name", registry())
def test_an_entry_holds_what_the_schema_says(name):
    entry = registry()[name]
    assert set(REQUIRED) <= set(entry) <= {*REQUIRED, *OPTIONAL}
    for field, value in entry.items():
        kind = {**REQUIRED, **OPTIONAL}[field]
        assert type(value) is kind or (field, value) == ("num_parameters_official", None)
    assert (entry["num_parameters_official"] is None) == ("published" in entry)
    assert ("num_parameters" in entry) == (name in SIMULATED)
    assert "model_type" not in entry["config"]
    assert entry["source"].startswith("https://huggingface.co/") or "arXiv:" in entry["source"]
    for address in entry.get("read_in", "github.com/").split("; "):
        assert address.startswith("github.com/")


def test_no_name_stands_in_two_files_and_every_family_is_there():
    folder = resources.files("brimful").joinpath("data/models")
    names = [name for file in folder.iterdir() for name in json.loads(file.read_text("utf-8"))]
    assert sorted(names) == sorted(registry())
    assert len(names) >= 100
    types = {registry()[name]["model_type"] for name in PLANNED}
    assert types == set(ARCHITECTURES) - {"switch_transformers"}


def built(name):
    """Count the parameters of a model as it is built: by formula, or as its file says."""
    entry = registry()[name]
    return entry["num_parameters"] if name in SIMULATED else parameter_count(load_model(name)).total


@each("name", registry())
def test_counts_are_the_official_ones_but_for_what_is_said(name):
    entry = registry()[name]
    total, official = built(name), entry["num_parameters_official"]
    difference = entry.get("difference", {"num_parameters": 0, "why": "none"})
    assert set(difference) == {"num_parameters", "why"}
    assert len(difference["why"]) > 3
    if official is None:
        # Rounded to the last digit that is published, or cut off there.
        figure, unit = entry["published"][:-1], UNITS[entry["published"][-1]]
        last_digit = 10.0 ** -len(figure.partition(".")[2])
        assert abs(total / unit - float(figure)) < last_digit
    else:
        assert total == official + difference["num_parameters"]


def smallest_of_each_type():
    """Mark all models that are simulated as long but one of each type, the smallest."""
    models = sorted(SIMULATED, key=lambda name: registry()[name]["num_parameters"])
    first = {registry()[name]["model_type"]: name for name in reversed(models)}
    return [
        name if name in first.values() else pytest.param(name, marks=pytest.mark.long)
        for name in models
    ]


@pytest.mark.torch
@pytest.mark.parametrize("name", smallest_of_each_type())
def test_models_without_a_formula_are_what_transformers_builds(name):
    from models.meta import build

    spec = load_model(name)
    assert not has_parameter_count(spec)
    assert check_model(spec) == spec
    assert sum(p.numel() for p in build(spec).parameters()) == registry()[name]["num_parameters"]


@pytest.mark.torch
@pytest.mark.parametrize("name", smallest_of_each_type())
def test_every_model_of_the_registry_can_be_built(name):
    from brimful.build.assemble import build_skeleton

    spec = load_model(name)
    job = plain_job(spec, task=default_task(spec), seq_len=64, precision="bf16")
    build_skeleton(job, make_strategy(attention="eager", micro_batch=1))


@pytest.mark.torch
@pytest.mark.few(20)
@pytest.mark.parametrize("name", PLANNED)
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


POSITIONED = [name for name in PLANNED if registry()[name]["model_type"] not in SEQ2SEQ_TYPES]
"""Models whose configuration says how many positions they know: not those of relative ones."""


@pytest.mark.torch
@each("name", POSITIONED)
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
    "qwen3-30b-a3b-2507": ("3.3", True),  # model card: 30.5B in all
    "qwen3-235b-a22b": ("22", True),  # model card: 235B in all
    "qwen3-235b-a22b-2507": ("22", True),  # model card: 235B in all
    "tongyi-deepresearch-30b-a3b": ("3.3", True),  # model card: 30.5B in all
    **dict.fromkeys(
        ("nous-hermes-2-mixtral-8x7b", "dolphin-2.7-mixtral-8x7b"), ("12.9", True)
    ),  # Mixtral's network
    "qwen3-vl-30b-a3b": ("3.3", True),  # Qwen3 30B A3B's network beside its tower
    "qwen3-vl-235b-a22b": ("22", True),  # Qwen3 235B A22B's
    "qwen3-coder-30b-a3b": ("3.3", True),  # model card: 30.5B in all
    "qwen3-coder-480b-a35b": ("35", True),  # model card: 480B in all
    "moonlight-16b-a3b": ("3", True),  # model card: 16B in all
    # Embedding left out, output layer counted.
    "deepseek-v2-lite": ("2.4", False),  # model card: 15.7B in all
    "deepseek-coder-v2-lite": ("2.4", False),  # model card: 16B in all
    **dict.fromkeys(("deepseek-r1", "deepseek-v3.1"), ("37", False)),  # V3's network
    **dict.fromkeys(
        ("deepseek-v2", "deepseek-v2.5", "deepseek-coder-v2"), ("21", False)
    ),  # model cards: 236B in all
    **dict.fromkeys(
        ("kimi-k2", "kimi-k2-0905", "kimi-k2.5", "kimi-k2.6", "kimi-k2.7-code"), ("32", False)
    ),  # model cards: 1T in all
    "deepseek-v3": ("37", False),  # arXiv:2412.19437, abstract: 671B in all
    "gpt-oss-20b": ("3.6", False),  # model card: 20.9B in all
    "gpt-oss-120b": ("5.1", False),  # model card: 116.8B in all
}
"""Billions that are active, as they are published."""


def test_every_mixture_has_a_published_figure():
    assert set(PUBLISHED) == MIXTURES


@each("name", PUBLISHED)
def test_active_parameters_are_the_published_ones_rounded_or_cut_off(name):
    published, with_embedding = PUBLISHED[name]
    spec = load_model(name)
    left_out = 0 if with_embedding else num_elements(layout_of(spec).embedding)
    last_digit = 10.0 ** -len(published.partition(".")[2])
    billions = (active_parameters(spec) - left_out) / 1e9
    assert abs(billions - float(published)) < last_digit


@each("name", sorted(set(PLANNED) - MIXTURES))
def test_every_parameter_of_a_dense_model_is_active(name):
    spec = load_model(name)
    assert active_parameters(spec) == parameter_count(spec).total


@each("name", sorted(MIXTURES))
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
