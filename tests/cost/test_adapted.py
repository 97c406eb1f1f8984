"""Adapters, 4-bit bases, selective checkpointing, other blocks: formulas give the simulation."""

import msgspec
import pytest
import torch

from brimful.build.model import skeleton_of
from brimful.build.quantize import nf4
from brimful.build.tasks.causal_lm import AutoModelForCausalLM
from brimful.cost import trained
from brimful.cost.estimate import estimate
from brimful.cost.trained import frozen_bytes, num_trained, trained_shapes
from brimful.models.config import layout_of, parameter_count, read_config
from brimful.models.targets import LINEAR
from brimful.simulate.run import simulate
from brimful.values.job import QUANTIZED
from brimful.values.results import BUFFERS, OPTIMIZER_STATE, PARAMETERS
from samples import CONFIGS, make_adapter, make_cluster, make_job, make_strategy

pytestmark = pytest.mark.torch

ROTARY_BYTES = 1024
"""More than the frequencies of rotary positions take, which no formula counts."""
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 640,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2 = {**CONFIGS["gpt2"], "n_embd": 256, "n_inner": 640, "n_head": 4, "vocab_size": 4096}
BASE = make_adapter(rank=12)


def model_of(model_type, **changes):
    config = GPT2 if model_type == "gpt2" else {**SIZES, "model_type": model_type}
    return read_config(f"small-{model_type}", {**config, **changes})


def job_of(model_type, precision="bf16", base=None, **model):
    adapter = None if base is None else msgspec.structs.replace(BASE, base=base)
    method = "full" if base is None else "qlora" if base == "nf4-double" else "lora"
    return make_job(
        model=model_of(model_type, **model),
        method=method,
        adapter=adapter,
        precision=precision,
        seq_len=384,
        global_batch=6,
    )


CASES = [
    (job_of("llama", "bf16", "same"), "none", 1),
    (job_of("gpt2", "bf16-mixed", "nf4-double"), "full", 1),
    (job_of("qwen3", "bf16-mixed", "nf4-double", tie_word_embeddings=True), "selective:3", 1),
    (job_of("phi3", "bf16-master", "same"), "selective", 1),
    (job_of("llama", "bf16-mixed", "bf16"), "full:2", 3),
    (job_of("olmo2", "bf16-mixed"), "selective:2", 5),
    (job_of("mistral", "bf16-mixed", "same", sliding_window=None), "selective", 1),
    (job_of("qwen2", "bf16", "nf4-double"), "full", 4),
    (job_of("phi3", "bf16", "nf4-double"), "none", 2),
    (job_of("qwen3", "fp32"), "full:4", 1),
]


def named(case):
    job, checkpointing, chunks = case
    base = job.adapter.base if job.adapter else "full"
    return f"{job.model.model_type}-{job.precision}-{base}-{checkpointing}-{chunks}"


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES, ids=named)
@pytest.mark.parametrize("micro_batch", [2, 1])
def test_the_prediction_is_the_simulation(case, micro_batch):
    job, checkpointing, chunks = case
    strategy = make_strategy(
        micro_batch=micro_batch, activation_checkpointing=checkpointing, loss_chunks=chunks
    )
    cluster = make_cluster("cuda")
    predicted, simulated = estimate(job, cluster, strategy), simulate(job, cluster, strategy)
    assert predicted.predicted_peak_allocated_bytes == pytest.approx(
        simulated.simulated_peak_allocated_bytes, rel=1e-3
    )
    mine = {item.name: item.num_bytes for item in predicted.items}
    theirs = {item.name: item.num_bytes for item in simulated.items}
    assert mine[PARAMETERS] == theirs[PARAMETERS]
    assert mine.get(BUFFERS, 0) == pytest.approx(theirs.get(BUFFERS, 0), abs=ROTARY_BYTES)
    assert mine[OPTIMIZER_STATE] == pytest.approx(theirs[OPTIMIZER_STATE], abs=ROTARY_BYTES)


@pytest.mark.few
@pytest.mark.parametrize("model_type", ["llama", "gpt2", "phi3"])
def test_what_trains_is_what_the_model_says(model_type):
    job = job_of(model_type, base="same")
    built = skeleton_of(AutoModelForCausalLM, job, make_strategy())
    shapes = [tuple(p.shape) for p in built.parameters() if p.requires_grad]
    assert trained_shapes(job) == shapes
    assert num_trained(job) == sum(torch.Size(shape).numel() for shape in shapes)
    frozen = [p for p in built.parameters() if not p.requires_grad]
    assert frozen_bytes(job) == (sum(p.numel() * p.element_size() for p in frozen), 0)


def test_blocks_of_scales_stand_twice_and_agree():
    assert (trained.NF4_BLOCK, trained.NF4_NESTED_BLOCK) == (nf4.BLOCK, nf4.NESTED_BLOCK)


@pytest.mark.parametrize("base", ["bf16", "nf4-double"])
def test_what_is_not_quantised_may_all_be_held_in_fp32(base):
    """PEFT's ``prepare_model_for_kbit_training`` does so: the embedding and the head above all."""
    none, every = (
        make_job(
            precision="bf16-mixed", method="qlora" if base in QUANTIZED else "lora",
            adapter=make_adapter(base=base, upcast=upcast),
        )
        for upcast in ("none", "all")
    )  # fmt: skip
    spec = none.model
    packed = [
        p.num_elements
        for run in layout_of(spec).blocks
        for p in run.parameters * run.num_blocks
        if base in QUANTIZED and p.kind in LINEAR
    ]
    plain = parameter_count(spec).total - sum(packed)
    more = frozen_bytes(every).parameters - frozen_bytes(none).parameters
    assert more == 2 * plain
    assert frozen_bytes(every).constants == frozen_bytes(none).constants
