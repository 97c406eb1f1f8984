"""What sees is given images by its own processor, though none of its files is on this machine."""

import importlib.util

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer

from brimful import pretend
from brimful.pretend.hub_processors import words_of, write_processor
from brimful.pretend.hub_tokenizers import write_tokenizer

Image = pytest.importorskip("PIL.Image")
pytestmark = pytest.mark.torch

TEXT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
SEEING = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 56, "patch_size": 14,
}  # fmt: skip
KINDS = {
    "gemma3": {
        "image_token_index": 50, "boi_token_index": 51, "eoi_token_index": 52,
        "mm_tokens_per_image": 4,
        "text_config": TEXT, "vision_config": {**SEEING, "vision_use_head": False},
    },
    "llava": {
        "image_token_index": 50, "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": {**SEEING, "model_type": "clip_vision_model", "projection_dim": 32},
    },
    "idefics3": {
        "image_token_id": 50, "scale_factor": 2, "text_config": {**TEXT, "model_type": "llama"},
        "vision_config": SEEING,
    },
}  # fmt: skip
CHAT = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "how much"}]},
    {"role": "assistant", "content": "twelve"},
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_takes_as_many_tokens_as_the_model_makes_of_it(kind, tmp_path):
    """The class of the model compares both itself, and runs here, tiny, with real numbers."""
    config = AutoConfig.for_model(kind, **KINDS[kind])
    config.save_pretrained(tmp_path)
    write_tokenizer(tmp_path, config, [])
    assert write_processor(tmp_path, config, {})
    processor = AutoProcessor.from_pretrained(tmp_path)
    text = processor.apply_chat_template(CHAT)
    image = Image.new("RGB", (100, 80))
    both = processor(text=[text], images=[[image]], return_tensors="pt")
    assert 50 in both["input_ids"]
    assert AutoModelForImageTextToText.from_config(config)(**both).logits.isfinite().all()


def test_a_model_of_the_hub_has_a_processor():
    """``AutoProcessor`` found no file of it."""
    name = "Qwen/Qwen3-VL-2B-Instruct"
    image = Image.new("RGB", (640, 480))
    with pretend.gpu("h100-80gb") as run:
        torch.ones(1, device="cuda")
        config = AutoConfig.from_pretrained(name)
        processor = AutoProcessor.from_pretrained(name)
        text = processor.apply_chat_template(CHAT, tokenize=False)
        both = processor(text=[text], images=[image])
    (tokens,), (grid,) = both["input_ids"], both["image_grid_thw"]
    assert "<|vision_start|><|image_pad|><|vision_end|>" in text
    assert tokens.count(config.image_token_id) == 15 * 20 == int(grid.prod()) // 4
    assert tokens.count(config.vision_start_token_id) == 1
    assert processor.image_processor.size["longest_edge"] == 4096**2  # as is published
    assert any("its published size" in line for line in run.report().assumptions)
    if not importlib.util.find_spec("torchvision"):
        with pytest.raises(ImportError, match="torchvision, which is not installed"):
            processor.video_processor([])


def test_a_configuration_that_lies_alone_in_a_folder_has_all_that_is_beside_it(tmp_path):
    """As a program is told to put one there whose model is known to nobody."""
    config = AutoConfig.for_model("llava", **KINDS["llava"])
    config.save_pretrained(tmp_path)
    with pretend.gpu("h100-80gb") as run:
        torch.ones(1, device="cuda")
        processor = AutoProcessor.from_pretrained(tmp_path)
        text = processor.apply_chat_template(CHAT)
    assert processor.tokenizer(text)["input_ids"].count(50) == 1
    assert any(
        f"{tmp_path} holds a configuration alone" in line for line in run.report().assumptions
    )


def test_what_sees_alone_has_no_tokenizer():
    """``AutoProcessor`` took the one that was made for what makes images ready."""
    with pretend.gpu("h100-80gb"):
        torch.ones(1, device="cuda")
        processor = AutoProcessor.from_pretrained("google/vit-base-patch16-224")
    assert processor(Image.new("RGB", (30, 20)))["pixel_values"][0].shape == (3, 224, 224)


def test_contents_as_lists_are_texts_to_what_reads_alone():
    with pretend.gpu("h100-80gb"):
        torch.ones(1, device="cuda")
        tokenizer = AutoTokenizer.from_pretrained("HuggingFaceTB/SmolLM2-135M-Instruct")
    chats = [
        [{"role": "user", "content": said}] for said in ("a b", [{"type": "text", "text": "a b"}])
    ]
    assert len({tuple(row) for row in tokenizer.apply_chat_template(chats)["input_ids"]}) == 1


@pytest.mark.parametrize("kind", ["llama4", "aya_vision"])
def test_where_patches_have_a_word_it_is_the_one_that_a_model_looks_for(kind):
    config = AutoConfig.for_model(kind)
    words = words_of(config)
    patch = next(word for name, word in words.named.items() if name.endswith("patch_token"))
    assert words.rows[patch] == config.image_token_index
    assert words.rows[words.places["image"]] is None
