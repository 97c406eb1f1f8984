"""How fast text is written at most, against sums made by hand."""

from functools import partial

import msgspec
import pytest

from brimful.cost.decoding import decoding_of
from brimful.cost.inference import InferenceJob
from brimful.cost.inference_shared import other_shared_formats, share_inference
from brimful.hardware.gpus import load_cluster
from brimful.models.config import load_model

cluster_of = partial(load_cluster, memory_limit_bytes=None)


def job(name="llama-3.1-8b", **changes):
    plain = InferenceJob(
        model=load_model(name),
        weights_format="bf16",
        compute="bf16",
        num_sequences=1,
        seq_len=2048,
        prompt_len=1024,
    )
    return msgspec.structs.replace(plain, **changes)


def test_a_token_reads_the_weights_but_one_row_of_the_embedding_and_the_cache():
    told = decoding_of(job(), cluster_of("h100-80gb"))
    weights = 2 * (8_030_261_248 - 128_256 * 4096)
    cache = 2 * 2 * 8 * 128 * 32 * 1024  # keys and values, 2 bytes, heads, width, blocks, tokens
    assert told.read_bytes == pytest.approx(weights + cache, rel=1e-4)
    assert told.most_tokens_per_s == pytest.approx(3.35e12 / told.read_bytes, rel=1e-3)
    assert told.first_token_s == pytest.approx(2 * 8_030_261_248 * 1024 / 989.4e12, rel=1e-2)


def test_the_last_token_reads_the_whole_cache():
    told = decoding_of(job(seq_len=131_072), cluster_of("h100-80gb"))
    more = 2 * 2 * 8 * 128 * 32 * (131_072 - 1024)
    assert told.last_tokens_per_s == pytest.approx(3.35e12 / (told.read_bytes + more), rel=1e-3)


def test_texts_share_the_weights_until_the_units_are_busy():
    one, many = (
        decoding_of(job(num_sequences=n, prompt_len=1), cluster_of("h100-80gb"))
        for n in (1, 10_000)
    )
    assert many.most_tokens_per_s < 10_000 * one.most_tokens_per_s / 2
    assert many.most_tokens_per_s == pytest.approx(989.4e12 / (2 * 8_030_261_248), rel=1e-2)


def test_what_rounds_activations_too_multiplies_in_int8():
    many = job(num_sequences=10_000, prompt_len=1)
    plain, rounded = (
        decoding_of(msgspec.structs.replace(many, weights_format=name), cluster_of("h100-80gb"))
        for name in ("int8", "llm-int8")
    )
    assert rounded.most_tokens_per_s == pytest.approx(2 * plain.most_tokens_per_s, rel=0.01)


def test_of_experts_a_token_reads_its_own():
    told = decoding_of(job("qwen3-30b-a3b", prompt_len=1), cluster_of("h100-80gb"))
    assert told.read_bytes < 2 * 3.4e9


def test_several_texts_read_the_experts_that_any_of_them_chose():
    told = decoding_of(job("qwen3-30b-a3b", prompt_len=1, num_sequences=3), cluster_of("h100-80gb"))
    experts = 48 * 128 * 3 * 2048 * 768  # blocks, experts, matrices of each
    others = 30_532_122_624 - experts - 151_936 * 2048
    share = 1 - (1 - 8 / 128) ** 3
    assert told.read_bytes == pytest.approx(2 * (others + share * experts), rel=1e-3)


def test_a_latent_cache_is_read_whole_by_each_gpu():
    """Of 61 blocks, 512 + 64 numbers of 2 bytes a token; keys and values are shared by heads."""
    asked = job("deepseek-v3", weights_format="int4", num_sequences=8, prompt_len=2000)
    short = msgspec.structs.replace(asked, prompt_len=1000)
    more = (
        decoding_of(asked, cluster_of("8xh200")).read_bytes
        - decoding_of(short, cluster_of("8xh200")).read_bytes
    )
    assert more == 8 * 1000 * 61 * (512 + 64) * 2


def test_several_gpus_read_their_shares():
    alone, both = (decoding_of(job(), cluster_of(gpus)) for gpus in ("rtx-3090", "2xrtx-3090"))
    assert both.most_tokens_per_s == pytest.approx(2 * alone.most_tokens_per_s)


def test_formats_that_fit_where_one_may_not():
    cluster = cluster_of("2xrtx-3090")
    large = job("llama-3.1-70b", weights_format="nf4", seq_len=8192, prompt_len=8192)
    assert share_inference(large, cluster).fits is None
    assert other_shared_formats(large, cluster) == ("int4", "nf4-double")
