"""Formulas of the first rung: exact where they are closed, monotone where they must be."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.cost.attending import scores_of
from brimful.cost.efficiency import size_of
from brimful.cost.estimate import allocatable_bytes, estimate
from brimful.cost.family import Family, body_of, family_of
from brimful.cost.memory import follow_family, profile_for, step_memory
from brimful.cost.profiles import Dimensions, Term, load_profile
from brimful.cost.states import states
from brimful.cost.step import family_work, step_seconds, update_bytes
from brimful.cost.trajectory import evaluate_terms
from brimful.cost.update import CPU, update_of
from brimful.errors import UnsupportedError
from brimful.hardware.cluster import MatrixRates
from brimful.models.config import load_model, parameter_count, registry
from brimful.values.results import LOGITS, SAVED_ACTIVATIONS
from each_case import each
from samples import make_cluster, make_job, make_model, make_strategy

NUM_LAYERS = 12


def job_of(**changes):
    model = make_model(
        hidden_size=256, intermediate_size=768, num_hidden_layers=NUM_LAYERS, vocab_size=4096
    )
    return make_job(**{"model": model, "seq_len": 256, "global_batch": 8, **changes})


def items(job, strategy, kernels="cuda"):
    return {i.name: i.num_bytes for i in estimate(job, make_cluster(kernels), strategy).items}


OFFICIAL = {
    name: entry["num_parameters_official"]
    for name, entry in registry().items()
    if "num_parameters" not in entry  # which says what is built where no formula does
}


@each("name", sorted(name for name, count in OFFICIAL.items() if count))
def test_parameter_counts_are_the_official_ones(name):
    difference = registry()[name].get("difference", {"num_parameters": 0})["num_parameters"]
    assert parameter_count(load_model(name)).total == OFFICIAL[name] + difference


@pytest.mark.parametrize(
    ("precision", "bytes_per_parameter"),
    [
        *(("fp32", 16), ("tf32", 16), ("bf16", 8), ("fp16", 8), ("bf16-mixed", 16)),
        *(("fp16-mixed", 16), ("bf16-master", 16), ("fp16-master", 16)),
    ],
)
def test_recipes_add_up_to_the_known_bytes_per_parameter(precision, bytes_per_parameter):
    """Rajbhandari et al. 2020, arXiv:1910.02054, section 3: 16 bytes with fp32 Adam."""
    job = job_of(precision=precision)
    held = states(job, update_of(job, CPU))
    assert sum(held) == bytes_per_parameter * parameter_count(job.model).total


strategies = st.builds(
    make_strategy,
    micro_batch=st.sampled_from([1, 2, 4, 8]),
    activation_checkpointing=st.sampled_from(
        ["none", "full", *(f"full:{k}" for k in range(1, 12))]
    ),
    loss_chunks=st.sampled_from([1, 2, 3, 4, 8, 16]),
    attention=st.sampled_from(["sdpa", "eager"]),
)
precisions = st.sampled_from(["fp32", "bf16", "bf16-mixed"])
kernel_kinds = st.sampled_from(["cpu", "cuda"])


@settings(deadline=None, max_examples=60)
@given(strategies, precisions, kernel_kinds)
def test_items_sum_to_the_peak_and_the_peak_is_that_of_a_phase(strategy, precision, kernels):
    result = estimate(job_of(precision=precision), make_cluster(kernels), strategy)
    peak = result.predicted_peak_allocated_bytes
    assert sum(i.num_bytes for i in result.items) == peak
    assert max(p.num_bytes for p in result.phases) == peak
    assert all(i.num_bytes > 0 for i in result.items)


@settings(deadline=None, max_examples=20)
@given(strategies, precisions, kernel_kinds)
def test_more_checkpointed_blocks_never_take_more_memory(strategy, precision, kernels):
    job = job_of(precision=precision)
    texts = ["none", *(f"full:{k}" for k in range(1, NUM_LAYERS)), "full"]
    ladder = [msgspec.structs.replace(strategy, activation_checkpointing=text) for text in texts]
    found = [items(job, rung, kernels) for rung in ladder]
    peaks = [sum(rung.values()) for rung in found]
    assert peaks == sorted(peaks, reverse=True)
    if strategy.loss_chunks == 1:
        saved = [rung[SAVED_ACTIVATIONS] for rung in found[:-1]]
        assert saved == sorted(saved, reverse=True)


@settings(deadline=None, max_examples=40)
@given(strategies, precisions, kernel_kinds)
def test_more_loss_chunks_never_take_more_for_the_logits(strategy, precision, kernels):
    """With as many tokens as vocabulary; with few, the head's own gradient outweighs logits."""
    job = job_of(precision=precision, seq_len=512)
    ladder = [
        msgspec.structs.replace(strategy, micro_batch=8, loss_chunks=n) for n in (1, 2, 4, 8, 16)
    ]
    found = [items(job, rung, kernels) for rung in ladder]
    logits = [rung.get(LOGITS, 0) for rung in found]
    assert logits == sorted(logits, reverse=True)
    peaks = [sum(rung.values()) for rung in found]
    assert peaks == sorted(peaks, reverse=True)


@settings(deadline=None, max_examples=15)
@given(strategies, precisions, kernel_kinds)
def test_an_array_of_block_counts_is_each_count_alone(strategy, precision, kernels):
    job, cluster = job_of(precision=precision), make_cluster(kernels)
    profile = profile_for(job, strategy.attention, cluster.device, family_of(job, strategy))
    family = family_of(job, strategy)
    moved = update_bytes(job, cluster.device, states(job, update_of(job, CPU)), family)
    for counts in ([0], list(range(1, NUM_LAYERS)), [NUM_LAYERS]):
        body = body_of(counts[0], NUM_LAYERS)
        family = Family(strategy.micro_batch, strategy.loss_chunks, body, np.array(counts), "full")
        peak, _ = follow_family(job, profile, cluster.device, family, by_item=False)
        work = family_work(job, profile, family, moved_by_update=moved)
        size = size_of(job, family.micro_batch)
        scores = scores_of(job, strategy.attention, cluster.device)
        seconds = step_seconds(work, job, cluster.device, size, scores)
        for column, count in enumerate(counts):
            text = f"full:{count}" if count else "none"
            alone = msgspec.structs.replace(strategy, activation_checkpointing=text)
            assert (
                step_memory(job, alone, profile, cluster.device).items.sum()
                == peak.level[0, column]
            )
            one = family_work(job, profile, family_of(job, alone), moved_by_update=moved)
            for many, single in zip(work, one, strict=True):
                assert many[column] == pytest.approx(single[0], rel=1e-12)
            assert sum(part[column] for part in seconds) == pytest.approx(
                estimate(job, cluster, alone).predicted_step_s
            )


def test_matrix_work_is_six_flops_per_weight_and_token_and_eight_when_recomputed():
    """Kaplan et al. 2020, arXiv:2001.08361, section 2.1: 2 forward, 4 backward.

    Recomputation stops before each block's last product, whose result nobody needs.
    """
    job, cluster = job_of(precision="bf16"), make_cluster("cuda")  # a fused attention kernel
    count = parameter_count(job.model)
    blocks = NUM_LAYERS * (count.block - 2 * job.model.hidden_size)
    last = NUM_LAYERS * job.model.intermediate_size * job.model.hidden_size
    for text, in_blocks in (("none", 6 * blocks), ("full", 8 * blocks - 2 * last)):
        strategy = make_strategy(activation_checkpointing=text)
        family = family_of(job, strategy)
        profile = profile_for(job, strategy.attention, cluster.device, family)
        work = family_work(job, profile, family, moved_by_update=0)
        expected = job.tokens_per_step * (in_blocks + 6 * count.head)
        assert work.matrix_flops[0] == pytest.approx(expected, rel=1e-12)


def test_unknown_rates_give_an_unknown_time_and_never_zero():
    cluster = make_cluster("cuda", matrix_flops_per_s=MatrixRates(fp32=0, bf16=0))
    result = estimate(job_of(), cluster, make_strategy())
    assert result.predicted_step_s is None
    assert result.predicted_step_band_s is None
    assert result.predicted_step_time is None


@pytest.mark.parametrize("spare", [0, -1])
def test_a_job_fits_up_to_the_last_byte(spare):
    job, strategy = job_of(), make_strategy()
    peak = estimate(job, make_cluster(), strategy).predicted_peak_allocated_bytes
    cluster = make_cluster(usable_bytes=peak + spare)
    assert estimate(job, cluster, strategy).fits is (spare >= 0)


def test_a_cuda_context_is_taken_off_and_a_cpu_has_none():
    assert allocatable_bytes(make_cluster("cpu").device) == make_cluster().device.usable_bytes
    cuda = make_cluster("cuda").device
    assert 0.5e9 < cuda.usable_bytes - allocatable_bytes(cuda) < 1e9
    result = estimate(job_of(), make_cluster("cuda"), make_strategy())
    peak = result.predicted_peak_allocated_bytes
    assert (
        peak <= result.predicted_peak_reserved_bytes.low < result.predicted_peak_reserved_bytes.high
    )
    assert result.predicted_peak_reserved_bytes.high < result.predicted_process_bytes.high
    assert estimate(job_of(), make_cluster("cpu"), make_strategy()).predicted_process_bytes is None


def test_a_formula_is_a_sum_of_products():
    dims = Dimensions(B=2, S=3, H=5, F=7, A=1, K=1, D=1, V=11, P=13, C=3, R=0)
    assert evaluate_terms((Term("BSH", 4.0), Term("V", -0.5), Term("", 8.0)), dims) == 122.5
    assert evaluate_terms((), dims) == 0


def test_a_profile_that_was_not_shipped_is_named_with_the_command_that_makes_it():
    with pytest.raises(UnsupportedError, match=r"mamba\.hf.*brimful profile"):
        load_profile("mamba.hf.fp32.sdpa.cpu")
