"""Which kernels compute scores: what a formula says, and what PyTorch's dispatcher picks."""

import msgspec
import pytest

from brimful.cost.attending import scores_of, scores_on_tape
from brimful.hardware.devices import gpus
from brimful.models.config import read_config
from brimful.simulate.attempt import attention_flops
from brimful.simulate.run import trace
from other_models import make_other_job
from samples import make_job, make_model, make_strategy

pytestmark = pytest.mark.torch

MISTRAL = {
    "model_type": "mistral", "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2,
    "num_key_value_heads": 1, "num_hidden_layers": 2, "vocab_size": 64, "sliding_window": 32,
}  # fmt: skip
GEMMA = {
    **MISTRAL, "model_type": "gemma3_text", "num_hidden_layers": 3, "head_dim": 32,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}  # fmt: skip
WIDE = make_model(hidden_size=640, num_attention_heads=2, num_key_value_heads=2)


def windowed(config):
    return make_job(model=read_config("small", config), precision="bf16", seq_len=64)


JOBS = {
    "one text": make_job(precision="bf16"),
    "documents": make_job(precision="bf16", packing="documents"),
    "padded pair": msgspec.structs.replace(make_other_job("bart"), precision="bf16"),
    "window": windowed(MISTRAL),
    "a row as long as its window": windowed({**MISTRAL, "sliding_window": 64}),
    "two windows of three": windowed(GEMMA),
    "wide heads": make_job(model=WIDE, precision="bf16"),
}


@pytest.mark.few  # each job on a card, and one on both
@pytest.mark.parametrize("gpu", ["h100-80gb", "a100-80gb"])
@pytest.mark.parametrize("name", JOBS)
def test_the_kernels_are_those_that_ran(name, gpu):
    job, strategy, device = JOBS[name], make_strategy(attention="sdpa"), gpus()[gpu]
    place = {"imitate": "cuda", "capability": device.capability}
    flops = attention_flops(trace(job, strategy, **place, count_costs=True).recording)
    ran = scores_on_tape(flops, job, strategy.attention)
    said = scores_of(job, strategy.attention, device)
    assert [each[1:] for each in sorted(ran)] == [each[1:] for each in sorted(said)]
    assert [each.share for each in sorted(ran)] == pytest.approx([s.share for s in sorted(said)])
