"""Models that read images or sounds too, trained on text: the part that reads it, and no other."""

import pytest
import torch
import transformers

from brimful.build.assemble import build_program, build_skeleton
from brimful.build.batch import Batch
from brimful.build.blocks import body_of, decoder_blocks, idle_parameters
from brimful.build.layout import read_built
from brimful.build.step import evaluate, micro_step
from brimful.models.config import default_task, layout_of, read_config
from brimful.models.generic import auto_class_of
from brimful.models.layout import all_parameters
from samples import make_adapter, make_job, make_strategy

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")
TEXT = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 97, "max_position_embeddings": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SIGHT = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
SOUND = {
    "d_model": 16, "hidden_size": 16, "encoder_layers": 3, "num_hidden_layers": 3,
    "encoder_attention_heads": 2, "num_attention_heads": 2, "encoder_ffn_dim": 24,
    "intermediate_size": 24, "num_mel_bins": 8,
}  # fmt: skip
MODELS = {
    "gemma3": {
        "text_config": {**TEXT, "model_type": "gemma3_text", "sliding_window": 64},
        "vision_config": {**SIGHT, "model_type": "siglip_vision_model"},
        "mm_tokens_per_image": 4, "image_token_index": 96,
    },
    "voxtral": {
        "text_config": {**TEXT, "model_type": "llama"}, "audio_config": SOUND,
        "audio_token_id": 96,
    },
    "git": {**TEXT, "vision_config": SIGHT},
}  # fmt: skip


def job_of(model_type, **changes):
    model = read_config(f"tiny-{model_type}", {"model_type": model_type, **MODELS[model_type]})
    assert default_task(model) == "causal-lm"
    return make_job(model=model, **changes)


@pytest.mark.parametrize("model_type", MODELS)
def test_text_goes_through_the_part_that_reads_it_as_in_its_own_forward(model_type):
    job = job_of(model_type)
    program = build_program(job, make_strategy(attention="eager"), CPU)
    assert len(decoder_blocks(program.model)) == 2
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 90, (2, job.seq_len), generator=generator)
    auto = getattr(transformers, auto_class_of(model_type))
    plain = auto.from_config(program.model.config, attn_implementation="eager").eval()
    plain.load_state_dict(program.model.state_dict())
    with torch.no_grad():
        logits = plain(input_ids=ids, use_cache=False).logits
    labels = ids.roll(-1, 1)
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert evaluate(program, [Batch(ids, labels)]) == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.parametrize("model_type", MODELS)
def test_what_no_text_goes_through_is_frozen_and_in_no_layout(model_type):
    job = job_of(model_type)
    program = build_program(job, make_strategy(attention="eager"), CPU)
    idle, inner = (
        idle_parameters(program.model),
        {id(p) for p in body_of(program.model).parameters()},
    )
    assert idle
    assert not any(parameter.requires_grad for parameter in idle.values())
    assert model_type == "git" or not any(id(parameter) in inner for parameter in idle.values())
    ids = torch.ones((2, job.seq_len), dtype=torch.int64)
    micro_step(program, Batch(ids, ids), num_targets=2 * job.seq_len)
    trained = {n for n, p in program.model.named_parameters() if p.requires_grad}
    without = {n for n in trained if program.model.get_parameter(n).grad is None}
    assert all(name.startswith("git.") for name in without)  # of its projection of images
    built = read_built(job, "eager")
    assert sorted(built.idle) == sorted(tuple(p.shape) for p in idle.values())
    assert {p.name for p in all_parameters(layout_of(job.model))} == trained


def test_adapters_are_beside_layers_that_text_goes_through_alone():
    job = job_of("gemma3", method="lora", adapter=make_adapter())
    skeleton = build_skeleton(job, make_strategy(attention="eager"))
    adapted = {n for n, p in skeleton.named_parameters() if p.requires_grad}
    assert adapted
    assert all("language_model" in name for name in adapted)
