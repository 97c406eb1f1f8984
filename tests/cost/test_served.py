"""MXFP4, in which gpt-oss is published: experts packed, all else in 16 bits, read in chunks."""

import pytest
from tests.models.meta import SMALL

from brimful.cost.decoding import decoding_of
from brimful.cost.exported import exported_format
from brimful.cost.formats import CHUNK
from brimful.cost.held import held_bytes
from brimful.cost.inference import InferenceJob, check_inference, estimate_inference
from brimful.cost.inference_limits import limits, other_formats
from brimful.errors import UnsupportedError
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model, read_config
from brimful.units import GIB

CHECKPOINTS = {"gpt-oss-120b": 60.8, "gpt-oss-20b": 12.8}
"""GiB. Source: table 1 of OpenAI 2025, arXiv:2508.10925."""


def job_of(model="gpt-oss-120b", **changes):
    fields = {
        "model": load_model(model),
        "weights_format": "mxfp4",
        "compute": "bf16",
        "num_sequences": 8,
        "seq_len": 32768,
        "prompt_len": 32768,
    }
    return InferenceJob(**{**fields, **changes})


def h100():
    return load_cluster("h100-80gb", memory_limit_bytes=None)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_weights_are_as_large_as_the_checkpoint_that_is_published(name):
    held = held_bytes(load_model(name), "mxfp4", "bf16")
    assert held.total / GIB == pytest.approx(CHECKPOINTS[name], abs=0.1)
    assert held.constants * 16 == held.quantized


@pytest.mark.torch
def test_packed_experts_are_those_of_transformers():
    import torch
    from transformers import GptOssConfig
    from transformers.integrations.mxfp4 import Mxfp4GptOssExperts

    spec = read_config(
        "tiny", {"model_type": "gpt_oss", **SMALL["gpt_oss"], "intermediate_size": 96}
    )
    with torch.device("meta"):
        stack = Mxfp4GptOssExperts(GptOssConfig(**spec.hf_config))
    held, plain = held_bytes(spec, "mxfp4", "bf16"), held_bytes(spec, "bf16", "bf16")
    sizes = {name: p.numel() * p.element_size() for name, p in stack.named_parameters()}
    packed = sum(size for name, size in sizes.items() if not name.endswith("bias"))
    assert held.quantized == spec.num_layers * packed
    biases = sum(size for name, size in sizes.items() if name.endswith("bias"))
    assert held.whole == plain.whole - spec.num_layers * (4 * packed + biases // 2 - biases)


def test_a_window_keeps_its_tokens_alone():
    estimate = estimate_inference(job_of(), h100())
    cache = next(item.num_bytes for item in estimate.items if item.name == "KV cache")
    token = 2 * 8 * 64 * 2
    assert cache == pytest.approx(8 * 18 * token * (32768 + 128), rel=1e-6)
    assert estimate.fits
    assert any(f"{CHUNK:,} tokens" in line for line in estimate.assumptions)


def test_users_are_as_many_as_have_room():
    found = limits(job_of(), h100())
    estimate = estimate_inference(job_of(num_sequences=found.num_sequences), h100())
    assert 10 <= found.num_sequences <= 16
    assert estimate.fits
    assert not estimate_inference(job_of(num_sequences=found.num_sequences + 1), h100()).fits


def test_a_token_reads_its_experts_packed_and_all_else_whole():
    one = decoding_of(job_of(num_sequences=1, seq_len=1, prompt_len=1), h100())
    active, dense = 4 / 128 * 114.7e9 * 4.25 / 8, 2 * (0.96e9 + 0.58e9)
    assert one.read_bytes == pytest.approx(active + dense, rel=0.05)


def test_it_is_shown_beside_others_where_it_is_published_and_packs_stacks_alone():
    for name, is_there in (("gpt-oss-20b", True), ("qwen3-30b-a3b", False), ("qwen3-8b", False)):
        others = other_formats(
            job_of(name, weights_format="bf16", seq_len=512, prompt_len=512), h100()
        )
        assert ("mxfp4" in {each.weights_format for each in others}) is is_there
    with pytest.raises(UnsupportedError, match="packs stacked experts alone") as refused:
        check_inference(job_of("qwen3-8b"))
    assert refused.value.nearest == {"weights_format": "nf4"}


def test_a_configuration_as_published_is_read():
    config = {"quantization_config": {"quant_method": "mxfp4"}, "model_type": "gpt_oss"}
    assert exported_format(read_config("mine", config)) is None
