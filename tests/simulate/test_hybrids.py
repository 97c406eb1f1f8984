"""Decoders that make their masks themselves: what is simulated is what the profiler counts."""

import pytest
import torch

from brimful.build.batch import Batch
from brimful.models.config import read_config
from brimful.simulate.run import simulate
from hybrids import HYBRID, SPARSE
from metered import meter_steps
from samples import make_adapter, make_cluster, make_job, make_strategy

pytestmark = pytest.mark.torch

SIZES = {
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 2000,
    "max_position_embeddings": 512,
}
SEQ_LEN = 192
CASES = {
    "opt": ({"ffn_dim": 344, "word_embed_proj_dim": 128}, "eager"),
    "lfm2": (HYBRID["lfm2"], "sdpa"),
    "qwen3_next": (HYBRID["qwen3_next"], "sdpa"),
    "nemotron_h": (HYBRID["nemotron_h"], "sdpa"),
    "deepseek_v32": (SPARSE["deepseek_v32"], "eager"),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("model_type", CASES)
def test_a_hybrid_peaks_where_it_was_simulated_to(model_type, method):
    own, attention = CASES[model_type]
    job = make_job(
        model=read_config(model_type, {"model_type": model_type, **SIZES, **own}),
        seq_len=SEQ_LEN,
        global_batch=4,
        method=method,
        **({"precision": "bf16-mixed", "adapter": make_adapter()} if method == "lora" else {}),
    )
    checkpointing = "full" if method == "lora" else "none"
    strategy = make_strategy(activation_checkpointing=checkpointing, attention=attention)
    ids = torch.randint(0, 2000, (4, SEQ_LEN), generator=torch.Generator().manual_seed(0))
    measured = meter_steps(job, strategy, [Batch(rows, rows) for rows in ids.split(2)])
    simulated = simulate(job, make_cluster("cpu"), strategy)
    assert simulated.simulated_peak_allocated_bytes == pytest.approx(
        measured.measured_peak_allocated_bytes, rel=1e-3
    )
