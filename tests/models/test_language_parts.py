"""Which known model the language part of a model that reads images or sounds is."""

import json
import re

import pytest

from brimful.errors import ModelConfigError, UnknownNameError
from brimful.models.config import load_model
from brimful.models.language_parts import find_part, language_parts
from brimful.models.names import find, without_qualifiers
from brimful.models.registry import registry
from each_case import each

SAME = {
    "qwen2.5-0.5b": ("OpenGVLab/InternVL3-1B", "OpenGVLab/InternVL2_5-1B", "AIDC-AI/Ovis2-1B"),
    "qwen2.5-7b": (
        "OpenGVLab/InternVL3-8B", "OpenGVLab/InternVL3-8B-hf", "internvl3:8b", "InternVL3 8B",
        "Qwen/Qwen2.5-Omni-7B-AWQ", "openbmb/MiniCPM-o-2_6", "nvidia/Cosmos-Reason1-7B",
    ),
    "qwen2-7b": (
        "llava-hf/llava-onevision-qwen2-7b-ov-hf", "lmms-lab/llava-onevision-qwen2-7b-si",
        "openbmb/MiniCPM-V-2_6", "openbmb/MiniCPM-V-2_6-int4", "allenai/Molmo-7B-D-0924",
        "Qwen/Qwen2-VL-7B-Instruct", "lmms-lab/LLaVA-Video-7B-Qwen2",
    ),
    "qwen3-8b": (
        "OpenGVLab/InternVL3_5-8B", "OpenGVLab/InternVL3_5-8B-Instruct", "openbmb/MiniCPM-V-4_5",
        "AIDC-AI/Ovis2.5-9B",
    ),
    "qwen1.5-7b": ("Qwen/Qwen2-Audio-7B-Instruct",),
    "internlm2.5-7b": ("OpenGVLab/InternVL2_5-8B-MPO", "OpenGVLab/InternVL2-8B"),
    "vicuna-7b": ("llava-hf/llava-1.5-7b-hf", "liuhaotian/llava-v1.5-7b", "llava:7b"),
    "llama-3-8b": ("xtuner/llava-llama-3-8b-v1_1", "openbmb/MiniCPM-Llama3-V-2_5"),
    "mistral-7b-v0.2": ("llava-hf/llava-v1.6-mistral-7b-hf",),
    "gemma-2b": ("google/paligemma-3b-pt-224", "vidore/colpali-v1.2"),
    "gemma-2-2b": ("google/paligemma2-3b-pt-448", "google/paligemma2-3b-mix-224"),
    "smollm2-1.7b": ("HuggingFaceTB/SmolVLM-Instruct", "HuggingFaceTB/SmolVLM2-2.2B-Instruct"),
    "smollm2-135m": ("HuggingFaceTB/SmolVLM-256M-Instruct",),
    "mistral-nemo-12b": ("mistralai/Pixtral-12B-2409", "unsloth/Pixtral-12B-2409-bnb-4bit"),
    "olmo-2-7b": ("allenai/Molmo-7B-O-0924",),
    "phi-3.5-mini": ("microsoft/Phi-3.5-vision-instruct",),
    "phi-4-mini": ("microsoft/Phi-4-multimodal-instruct",),
    "glm-4-9b": ("zai-org/GLM-4.1V-9B-Thinking", "zai-org/GLM-4.6V-Flash"),
    "glm-4.5-air": ("zai-org/GLM-4.5V", "zai-org/GLM-4.6V"),
    "moonlight-16b-a3b": (
        "moonshotai/Kimi-VL-A3B-Instruct", "moonshotai/Kimi-VL-A3B-Thinking-2506",
    ),
    "qwen3-30b-a3b": ("Qwen/Qwen3-Omni-30B-A3B-Instruct", "OpenGVLab/InternVL3_5-30B-A3B"),
    "command-r7b": ("CohereLabs/aya-vision-8b",),
    "deepseek-v2-lite": ("deepseek-ai/deepseek-vl2-small",),
    "llama-3.1-8b": ("fixie-ai/ultravox-v0_4_1-llama-3_1-8b", "HuggingFaceM4/Idefics3-8B-Llama3"),
    "llama-3.1-nemotron-nano-8b": ("nvidia/Llama-3.1-Nemotron-Nano-VL-8B-V1",),
    "nemotron-nano-12b-v2": ("nvidia/NVIDIA-Nemotron-Nano-12B-v2-VL-BF16",),
    "granite-3.1-2b": ("ibm-granite/granite-vision-3.3-2b",),
    "llama-3.2-11b-vision": ("meta-llama/Llama-Guard-3-11B-Vision",),
    "bart-large": ("microsoft/Florence-2-large", "microsoft/Florence-2-large-ft"),
}  # fmt: skip
OTHERS = (
    "OpenGVLab/InternVL4-8B", "OpenGVLab/InternVL3-7B", "moondream/moondream3-preview",
    "deepseek-ai/deepseek-vl2-tiny", "microsoft/Phi-4-vision", "llava", "Qwen/Qwen3-8B",
    "fixie-ai/ultravox-v0_4_1-llama-3_1-405b", "xtuner/llava-phi-4-mini", "", "-", "9" * 5000,
)  # fmt: skip


@each("typed, name", [(typed, name) for name, spelled in SAME.items() for typed in spelled])
def test_a_language_part_is_named(typed, name):
    near, words, on_top = without_qualifiers(typed)
    assert near == name
    assert words.startswith(f"its language part is {name}, without what images")
    assert on_top == "images"


@each("typed", OTHERS)
def test_another_version_or_size_is_of_no_language_part(typed):
    assert find_part(typed) is None


@pytest.mark.parametrize(
    "typed",
    [
        "microsoft/llava-med-v1.5-mistral-7b", "llava-qwen-7b", "llava-mistral-7b",
        "llava-gemma-7b", "llava-mpt-7b", "internvl3-8b-mistral", "InternVL3-8B-encoder",
    ],
)  # fmt: skip
def test_another_language_model_in_a_name_is_of_no_language_part(typed):
    """LLaVA-Med's was Vicuna 7B, and its name says Mistral."""
    assert find_part(typed) is None
    assert without_qualifiers(typed) == ("", "", "")


@pytest.mark.parametrize(
    ("typed", "model"),
    [
        ("llava-vicuna-7b", "vicuna-7b"),
        ("llava-yi-34b", "nous-hermes-2-yi-34b"),
        ("microsoft/llava-med-7b-delta", "vicuna-7b"),
    ],
)
def test_the_language_part_may_be_named_beside(typed, model):
    assert find_part(typed).model == model


@each("name", language_parts())
def test_every_name_of_the_table_means_itself_and_a_known_model(name):
    part = find_part(name.upper())
    assert part is not None
    assert part.of == name
    assert part.model in registry()
    assert find(name) is None, "a known model needs no line in the table"


def test_no_known_model_is_in_the_table():
    sources = [entry["source"] for entry in registry().values()]
    assert [name for name in (*registry(), *sources) if find_part(name)] == []


def test_what_is_beside_encoders_is_said():
    assert without_qualifiers("Qwen/Qwen2.5-Omni-7B")[1].endswith(", and the talker that speaks")


def test_a_refusal_names_the_language_part_and_leaves_room():
    with pytest.raises(UnknownNameError, match=re.escape("qwen2.5-7b")) as refused:
        load_model("internvl3-8b")
    assert refused.value.nearest == {"model": "qwen2.5-7b"}
    assert refused.value.on_top == "images"


def sizes(hidden_size, num_layers, width, num_heads, **more):
    return {"hidden_size": hidden_size, "num_hidden_layers": num_layers,
            "intermediate_size": width, "num_attention_heads": num_heads, **more}  # fmt: skip


QWEN = sizes(3584, 28, 18944, 28, model_type="qwen2", vocab_size=151674)
GEMMA = sizes(2048, 35, [16384] * 35, 8, model_type="gemma3n_text", vocab_size=262400)
LLAMA = sizes(4096, 40, 14336, 32, model_type="mllama_text_model", vocab_size=128256)


@pytest.mark.parametrize(
    ("folder", "config", "name"),
    [
        ("InternVL3-8B", {"model_type": "internvl_chat", "llm_config": QWEN}, "qwen2.5-7b"),
        ("mine", {"model_type": "internvl_chat", "llm_config": QWEN}, "qwen2-7b"),
        ("mine", {"model_type": "gemma3n", "text_config": GEMMA}, "gemma-3n-e4b"),
        ("mine", {"model_type": "mllama", "text_config": LLAMA}, "llama-3.2-11b-vision"),
        ("MiniCPM-V-2_6", {**QWEN, "model_type": "minicpmv"}, "qwen2-7b"),
    ],
)
def test_a_configuration_of_such_a_model_names_its_language_part(tmp_path, folder, config, name):
    (tmp_path / folder).mkdir()
    text = json.dumps({"vision_config": {"hidden_size": 1024}, **config})
    (tmp_path / folder / "config.json").write_text(text)
    with pytest.raises(ModelConfigError, match="reads images or sounds") as refused:
        load_model(str(tmp_path / folder))
    assert refused.value.nearest == {"model": name}
    assert refused.value.on_top == "images"


TEXT = {"hidden_size": 512, "num_hidden_layers": 4}


@pytest.mark.parametrize("folder", ["llava-7b", "my-llm"])
def test_a_folder_of_text_alone_does_not_see_by_its_name(tmp_path, folder):
    (tmp_path / folder).mkdir()
    text = json.dumps({"model_type": "my_llm", **TEXT})
    (tmp_path / folder / "config.json").write_text(text)
    with pytest.raises(ModelConfigError, match="has model_type 'my_llm' and this") as refused:
        load_model(str(tmp_path / folder))
    assert not refused.value.nearest
    assert not refused.value.on_top


@pytest.mark.parametrize(
    "more",
    [
        {"vision_config": {}}, {"mm_vision_tower": "clip"}, {"img_processor": {}},
        {"audio_processor": {}}, {"text_config": {}}, {"llm_cfg": {}}, {"language_config": {}},
        {"model_type": "molmo"}, {"model_type": "minicpmv"}, {"model_type": "llava_qwen"},
    ],
)  # fmt: skip
def test_a_folder_that_sees_may_be_named_by_its_name(tmp_path, more):
    (tmp_path / "Molmo-7B-D-0924").mkdir()
    text = json.dumps({"model_type": "mine", **TEXT, **more})
    (tmp_path / "Molmo-7B-D-0924" / "config.json").write_text(text)
    with pytest.raises(ModelConfigError, match="reads images or sounds") as refused:
        load_model(str(tmp_path / "Molmo-7B-D-0924"))
    assert refused.value.nearest == {"model": "qwen2-7b"}


@pytest.mark.parametrize("model_type", [None, 3, [], {}])
def test_a_type_that_is_no_text_is_refused_whatever_the_folder_is_called(tmp_path, model_type):
    (tmp_path / "llava-7b").mkdir()
    text = json.dumps({"model_type": model_type, **TEXT})
    (tmp_path / "llava-7b" / "config.json").write_text(text)
    with pytest.raises(ModelConfigError, match="has model_type") as refused:
        load_model(str(tmp_path / "llava-7b"))
    assert not refused.value.nearest


def test_a_misspelt_model_of_the_table_is_answered_by_its_language_part():
    with pytest.raises(UnknownNameError, match="almost as internvl3-8b") as refused:
        load_model("intervl3-8b")
    assert refused.value.nearest == {"model": "qwen2.5-7b"}
    assert refused.value.on_top == "images"
