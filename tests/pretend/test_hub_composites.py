"""What sees or hears has its whole configuration, where its published count bears it out."""

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from brimful import pretend
from brimful.models.encoders import why_other_count
from brimful.models.hub_configs import hub_configs
from brimful.models.registry import registry
from brimful.pretend.hub_composites import _families, composite_of, is_composite
from brimful.pretend.script_errors import read_error

pytestmark = pytest.mark.torch

NAME = "Qwen/Qwen2.5-VL-3B-Instruct"
UNPUBLISHED = {"qwen3-vl-235b-a22b", "ministral-3-8b", "ministral-3-14b"}
"""Of which a rounded count alone is known."""
NOT_BUILT = {"gemma-3n-e2b", "gemma-3n-e4b", "gemma-4-e2b", "gemma-4-e4b"}
"""Of which the sizes of what sees and hears are not known."""


def test_every_model_with_a_tower_is_whole_or_said_not_to_be():
    towers = {name for name in registry() if is_composite(name)} - {*hub_configs()}
    assert towers == {*_families()} | NOT_BUILT
    assert all("tower" in why_other_count(name) for name in towers - UNPUBLISHED)


@pytest.mark.parametrize("name", sorted(_families()))
def test_a_whole_configuration_builds_the_published_count(name):
    """But for what the count has twice, or of a module that the class has not."""
    config = composite_of(name)
    if name in UNPUBLISHED:
        assert config is None
        return
    made = AutoConfig.for_model(**config)
    assert made.text_config.hidden_size == registry()[name]["config"]["hidden_size"]
    assert getattr(made.vision_config, "out_hidden_size", made.text_config.hidden_size) == (
        made.text_config.hidden_size
    )


def test_another_count_is_not_borne_out(monkeypatch):
    changed = {**registry()["qwen2.5-vl-3b"], "num_parameters_official": 3_754_622_975}
    monkeypatch.setitem(registry(), "qwen2.5-vl-3b", changed)
    assert composite_of("qwen2.5-vl-3b") is None


def test_a_model_that_sees_is_made_whole():
    """Its configuration was its text part's, which has no token for an image."""
    with pretend.gpu("h100-80gb") as run:
        config = AutoConfig.from_pretrained(NAME)
        model = Qwen2_5_VLForConditionalGeneration.from_pretrained(NAME).cuda()
        tokens = torch.tensor([[9, config.image_token_id, 9, 9]], device="cuda")
        model(
            input_ids=tokens,
            labels=tokens,
            mm_token_type_ids=(tokens == config.image_token_id).long(),
            pixel_values=torch.ones(4, 1176, device="cuda"),
            image_grid_thw=torch.tensor([[1, 2, 2]], device="cuda"),
        ).loss.backward()
    assert config.image_token_id == 151655
    assert sum(x.numel() for x in model.parameters()) == 3_754_622_976  # as is published
    assert "qwen2.5-vl-3b's, whole by its count" in " ".join(run.report().assumptions)


def test_who_uploads_another_s_model_gets_all_of_it():
    with pretend.gpu("h100-80gb"):
        torch.ones(1, device="cuda")
        config = AutoConfig.from_pretrained("unsloth/Llama-3.2-11B-Vision-Instruct")
    assert config.model_type == "mllama"


def test_of_what_is_known_in_part_it_is_said_what_is_missing(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pretend.gpu("h100-80gb"):
        torch.ones(1, device="cuda")
        with pytest.raises(OSError, match="couldn't connect") as found:
            AutoConfig.from_pretrained("google/gemma-3n-E4B-it")
    read = read_error(found.value)
    assert "only the text part's configuration is shipped here" in read.remedy
    assert "put its config.json in a folder" in read.remedy


@pytest.mark.parametrize("kind", [AutoConfig, AutoTokenizer])
def test_what_a_stand_in_lacks_is_not_said_to_be_the_script_s_fault(kind):
    with pretend.gpu("h100-80gb") as run:
        torch.ones(1, device="cuda")
        thing = kind.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
        with pytest.raises(AttributeError) as found:
            thing.nothing_of_the_kind  # noqa: B018 - it is looked up
    assumed = run.tape.assumptions
    read = read_error(found.value, assumptions=assumed)
    assert "Brimful's stand-in for HuggingFaceTB/SmolLM2-135M-Instruct" in read.why
    assert "config.json" in read.remedy
    assert read_error(AttributeError("of another's"), assumptions=assumed).why != read.why
