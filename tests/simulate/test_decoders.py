"""Decoders of other kinds: what is simulated is what the profiler counts, and CUDA's kernels run.

As ``test_measured`` for llama and gpt2; routing, windows and caps decide no size.
"""

from functools import cache

import pytest
import torch

from brimful.build.assemble import build_skeleton
from brimful.build.batch import Batch
from brimful.simulate.run import simulate
from brimful.units import KIB, MIB
from brimful.values.results import BUFFERS, GRADIENTS, OPTIMIZER_STATE, PARAMETERS
from metered import meter_steps
from other_decoders import CONFIGS, EAGER_ONLY, make_decoder, make_decoder_job
from samples import make_cluster, make_strategy

pytestmark = pytest.mark.torch

WIDE = {"hidden_size": 128, "intermediate_size": 344, "vocab_size": 2000}
SIZES = {
    "qwen3_moe": {"moe_intermediate_size": 96},
    "deepseek_v3": {"moe_intermediate_size": 96, "q_lora_rank": 48, "kv_lora_rank": 32},
    "deepseek_v2": {"moe_intermediate_size": 96, "q_lora_rank": 48, "kv_lora_rank": 32},
}
SEQ_LEN = 192
CASES = [
    # type, method, base, precision, checkpointing, loss chunks, attention
    ("mistral", "full", "same", "fp32", "none", 1, "sdpa"),
    ("mistral", "lora", "same", "bf16", "full", 4, "eager"),
    ("qwen2", "lora", "same", "fp32", "none", 1, "sdpa"),
    ("qwen3", "full", "same", "bf16-mixed", "full:1", 1, "sdpa"),
    ("olmo2", "full", "same", "fp32", "full", 4, "eager"),
    ("phi3", "full", "same", "fp32", "none", 1, "sdpa"),
    ("phi3", "qlora", "nf4-double", "bf16-mixed", "none", 1, "eager"),
    ("granite", "full", "same", "bf16", "none", 4, "sdpa"),
    ("cohere", "lora", "same", "bf16-mixed", "none", 1, "sdpa"),
    ("gemma2", "full", "same", "fp32", "none", 1, "eager"),
    ("gemma2", "full", "same", "bf16-mixed", "full", 4, "eager"),
    ("gemma2", "lora", "same", "fp32", "full:1", 1, "eager"),
    ("gemma2", "qlora", "nf4-double", "bf16-mixed", "none", 4, "eager"),
    ("mixtral", "full", "same", "fp32", "none", 1, "sdpa"),
    ("mixtral", "full", "same", "bf16-mixed", "full", 4, "sdpa"),
    ("mixtral", "lora", "same", "bf16", "none", 1, "eager"),
    ("mixtral", "qlora", "nf4-double", "bf16-mixed", "none", 1, "sdpa"),
    ("qwen3_moe", "full", "same", "bf16", "full:1", 1, "sdpa"),
    ("qwen3_moe", "lora", "same", "fp32", "none", 4, "sdpa"),
    ("deepseek_v3", "full", "same", "fp32", "selective", 1, "sdpa"),
    ("deepseek_v3", "full", "same", "bf16-mixed", "none", 4, "eager"),
    ("deepseek_v3", "lora", "same", "bf16", "none", 1, "sdpa"),
    ("deepseek_v2", "full", "same", "fp32", "none", 1, "sdpa"),
    ("deepseek_v2", "lora", "same", "bf16-mixed", "full", 1, "eager"),
    ("gpt_oss", "full", "same", "fp32", "none", 1, "eager"),
    ("gpt_oss", "full", "same", "bf16", "full", 4, "eager"),
    ("gpt_oss", "lora", "same", "fp32", "none", 1, "eager"),
]
SCRATCH_BYTES = 32 * KIB
"""As for llama and gpt2: see ``test_measured.py``."""


def settings(case):
    model_type, method, base, precision, checkpointing, chunks, attention = case
    model = make_decoder(model_type, **WIDE, **SIZES.get(model_type, {}))
    job = make_decoder_job(
        model_type,
        method=method,
        base=base,
        model=model,
        precision=precision,
        seq_len=SEQ_LEN,
        global_batch=4 if method == "full" else 2,
    )
    strategy = make_strategy(
        activation_checkpointing=checkpointing, loss_chunks=chunks, attention=attention
    )
    return job, strategy


def tokens(job, *, seed):
    generator = torch.Generator().manual_seed(seed)
    shape = (job.global_batch, job.seq_len)
    return torch.randint(0, job.model.vocab_size, shape, generator=generator)


def metered(job, strategy, ids):
    """Meter two real steps, in the order in which production does."""
    batches = [Batch(rows, rows) for rows in ids.split(strategy.micro_batch)]
    return meter_steps(job, strategy, batches)


@cache
def measured(case):
    job, strategy = settings(case)
    return metered(job, strategy, tokens(job, seed=0))


@cache
def simulated(case, kernels="cpu"):
    job, strategy = settings(case)
    return simulate(job, make_cluster(kernels), strategy)


def allowed_bytes(case, num_bytes):
    return SCRATCH_BYTES if case[3] == "fp32" else max(0.005 * num_bytes, MIB)


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_phase_peaks_where_it_was_simulated_to(case):
    peak = measured(case).measured_peak_allocated_bytes
    difference = simulated(case).simulated_peak_allocated_bytes - peak
    assert abs(difference) <= allowed_bytes(case, peak)
    phases = {phase.phase: phase.num_bytes for phase in measured(case).phases}
    assert [phase.phase for phase in simulated(case).phases] == list(phases)
    for phase in simulated(case).phases:
        difference = phase.num_bytes - phases[phase.phase]
        assert abs(difference) <= allowed_bytes(case, phase.num_bytes)


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_lasts_is_the_same_to_the_byte(case):
    seen = {item.name: item.num_bytes for item in measured(case).items}
    expected = {item.name: item.num_bytes for item in simulated(case).items}
    for name in (PARAMETERS, BUFFERS, OPTIMIZER_STATE):
        assert seen[name] == expected.get(name, 0)


@pytest.mark.few(2)
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("model_type", CONFIGS)
def test_every_decoder_runs_on_a_pretend_card(model_type, method):
    """What lasts is what the model consists of; the kernels are CUDA's."""
    attention = "eager" if model_type in EAGER_ONLY else "sdpa"
    case = (model_type, method, "same", "bf16", "full", 4, attention)
    items = {item.name: item.num_bytes for item in simulated(case, "cuda").items}
    skeleton = build_skeleton(*settings(case))
    assert items[PARAMETERS] == sum(p.nbytes for p in skeleton.parameters())
    moments = 2 * sum(p.nbytes for p in skeleton.parameters() if p.requires_grad)
    assert items[OPTIMIZER_STATE] == pytest.approx(moments, rel=0.05)  # and a count for each


# The mixtures whose bytes are compared above route differently when they are measured.
@pytest.mark.long
@pytest.mark.parametrize("model_type", ["mixtral", "deepseek_v3", "gpt_oss"])
def test_where_tokens_are_routed_decides_no_size(model_type):
    """Rows of one token, all of it routed alike, take what random tokens take."""
    case = next(c for c in CASES if c[:2] == (model_type, "full") and c[3] == "fp32")
    job, strategy = settings(case)
    one_token = torch.full((job.global_batch, job.seq_len), 7)
    peaks = [
        metered(job, strategy, ids).measured_peak_allocated_bytes
        for ids in (tokens(job, seed=1), tokens(job, seed=2), one_token)
    ]
    assert max(peaks) - min(peaks) <= SCRATCH_BYTES


def test_a_window_costs_the_bytes_of_its_mask():
    """Fused attention keeps the mask of a window, one for all blocks, where it would keep none."""
    case = next(c for c in CASES if c[:2] == ("mistral", "full"))
    job, strategy = settings(case)
    whole = make_decoder_job(
        "mistral",
        model=make_decoder("mistral", **WIDE, sliding_window=SEQ_LEN),
        seq_len=SEQ_LEN,
    )
    saved = [
        next(
            i.num_bytes
            for i in simulate(j, make_cluster("cpu"), strategy).items
            if "saved" in i.name
        )
        for j in (job, whole)
    ]
    assert saved[0] - saved[1] >= 4 * SEQ_LEN**2


def test_experts_are_among_the_gradients():
    case = next(c for c in CASES if c[:2] == ("qwen3_moe", "full"))
    items = {item.name: item.num_bytes for item in simulated(case).items}
    assert items[GRADIENTS] == items[PARAMETERS]
