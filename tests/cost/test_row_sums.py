"""What the gradients of vectors leave beside them is in live bytes: where it matters, and where."""

import msgspec
import numpy as np
import pytest

from brimful.cost.estimate import estimate
from brimful.cost.profiles import Dimensions
from brimful.cost.row_sums import Event, RowSums, chips_of
from brimful.hardware.cuda_chips import chips
from brimful.hardware.cuda_reductions import row_sums_bytes
from brimful.hardware.gpus import load_cluster
from brimful.models.config import read_config
from brimful.search.grid import peaks_of
from brimful.search.grid_values import Search
from brimful.search.shop.shelf import Shelf
from brimful.search.solve import tabulate
from brimful.search.space import grids
from brimful.values.results import WORKSPACES
from cost.test_other_architectures import EXACT, errors, how, make_other, make_other_job
from samples import make_adapter, make_job, make_strategy
from search.shop.test_market import request
from search.test_grid import assert_rows_are_estimates
from search.test_solve import FREE, on_devices

TOKENS = 4096
CHIP = chips()[9, 0]
DIMS = Dimensions(B=2, S=2048, H=768, F=3072, A=12, K=12, D=64, V=1000, P=0, C=TOKENS, R=0)
BERT = {
    "model_type": "bert", "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 512, "max_position_embeddings": 512,
}  # fmt: skip


def bytes_of(*events, vectors=(768,)):
    """Return what is beside events: each its factors, a coefficient and whether it comes."""
    sums = RowSums(every="BS", vectors=frozenset(vectors), chips=(CHIP,))
    told = []
    for factors, coefficient, *mark in events:
        size = abs(coefficient) * np.prod([getattr(DIMS, f) for f in factors], dtype=float)
        terms = ((factors, abs(coefficient)),)
        told.append(Event(terms, int(size) if coefficient > 0 else 0, *mark))
    return sums.beside(told, DIMS)


NEWEST, INPUTS, WEIGHT = ("BS", 1536.0), ("BS", 6144.0), ("", 768 * 3072 * 2.0)
VECTOR, GOES, OTHER = ("", 1536.0), ("", -1536.0), ("BS", 2.0)


def test_a_bias_adds_up_as_many_rows_as_its_weight_was_multiplied_with():
    (*_, alone) = bytes_of(NEWEST, VECTOR)
    assert alone > 0
    assert bytes_of(INPUTS, WEIGHT, VECTOR)[-1] == alone
    assert bytes_of(INPUTS, WEIGHT, ("", -WEIGHT[1]), VECTOR)[-1] == alone  # in a bucket
    (*_, multiple) = bytes_of(INPUTS, VECTOR)  # a norm of four heads
    assert multiple >= alone


def test_a_body_that_is_pooled_adds_up_fewer_rows_than_there_are_tokens():
    (*_, pooled) = bytes_of(("BS", INPUTS[1] / 4), WEIGHT, VECTOR)
    assert pooled == row_sums_bytes(TOKENS // 4, 768, 2, CHIP)
    assert pooled < bytes_of(INPUTS, WEIGHT, VECTOR)[-1]


def test_weight_and_bias_of_a_norm_are_made_by_a_kernel_that_leaves_nothing():
    assert bytes_of(NEWEST, VECTOR, VECTOR) == [0, 0, 0]
    assert bytes_of(NEWEST, VECTOR, GOES, VECTOR, GOES) == [0] * 5
    assert any(bytes_of(NEWEST, VECTOR, OTHER, NEWEST, VECTOR))


def test_an_embedding_of_few_rows_is_no_vector():
    assert bytes_of(NEWEST, VECTOR, ("", -1.0, "embedding")) == [0, 0, 0]


def test_what_is_cast_is_added_up_once():
    wide = ("", 3072.0)
    narrowed = bytes_of(("BS", 3072.0), wide, VECTOR, OTHER)
    assert narrowed[1] > 0
    assert narrowed[2] == 0
    widened = bytes_of(NEWEST, VECTOR, OTHER, wide)
    assert widened[1] > 0
    assert widened[3] == 0


def test_a_size_is_of_the_type_of_which_there_are_whole_rows():
    """512 bytes are 128 numbers of four bytes and 256 of two, and both are vectors here."""
    rows, weight = ("BS", 2048.0), ("", 256 * 1024 * 2.0)
    told = bytes_of(rows, weight, ("", 512.0), vectors=(128, 256))[-1]
    assert told == bytes_of(rows, weight, ("", 512.0), vectors=(256,))[-1]


def test_a_vector_of_few_rows_leaves_nothing():
    assert bytes_of(("B", 100.0), VECTOR) == [0, 0]


def test_adapters_have_no_vectors_and_a_cpu_no_blocks_of_threads():
    gpu = load_cluster("h100-80gb", memory_limit_bytes=None).device
    job = make_job()
    assert chips_of(job, gpu) == (CHIP,)
    assert chips_of(job, msgspec.structs.replace(gpu, capability=0.0)) == ()
    adapted = msgspec.structs.replace(job, method="lora", adapter=make_adapter())
    assert chips_of(adapted, gpu) == ()


@pytest.mark.torch
@pytest.mark.parametrize("strategy", [{}, {"activation_checkpointing": "full"}])
def test_an_encoder_is_its_simulation(strategy):
    """At its own widths; its MLP's biases were 2 % of the peak."""
    pytest.importorskip("torch")
    from brimful.cost.needed import needed
    from brimful.cost.programs import kernels_of
    from brimful.simulate.on_demand import trace_needs

    model = read_config("small-bert", BERT)
    job = make_job(
        model=model, task="sequence-classification", packing="none", precision="bf16",
        seq_len=512, global_batch=8,
    )  # fmt: skip
    how_run = make_strategy(micro_batch=4, attention="sdpa", **strategy)
    cluster = load_cluster("h100-80gb", memory_limit_bytes=None)
    needs = needed(job, how_run)
    kernels = kernels_of(cluster.device)
    trace_needs(job, how_run.attention, kernels, needs, watch=lambda _state: None)
    assert abs(errors(job, how_run)) < 2 * EXACT  # a few KB


def test_items_add_up_and_say_workspaces():
    job = make_other_job("gpt2-gelu", "medium", "bf16", global_batch=2)
    cluster = load_cluster("h100-80gb", memory_limit_bytes=None)
    found = estimate(job, cluster, how("gpt2-gelu", "full", 8))
    own = {item.name: item.num_bytes for item in found.items}
    assert sum(own.values()) == found.predicted_peak_allocated_bytes
    assert own[WORKSPACES] > 2 * 2**25  # cuBLAS's, and c_fc's bias


@pytest.mark.few(1)
@pytest.mark.parametrize("num_devices", [1, 4])
def test_rows_of_a_search_know_them(num_devices):
    """On chips that split sums otherwise, so that peaks differ by more than cuBLAS's workspace."""
    model, peaks = make_other("gpt2-gelu", "medium", n_layer=4), []
    for gpu in ("h100-80gb", "a100-80gb"):
        job = make_job(model=model, precision="bf16", seq_len=1024, global_batch=16)
        cluster = load_cluster(gpu, memory_limit_bytes=None)
        job, cluster = on_devices(job, cluster, num_devices)
        table = tabulate(job, cluster, "sdpa", grids(job, FREE, attention="sdpa", cluster=cluster))
        rows = np.random.default_rng(0).permutation(len(table.peak_bytes))[:40]
        assert_rows_are_estimates(job, cluster, table, rows)
        peaks.append(table.peak_bytes)
    assert len(np.unique(np.rint(peaks[0] - peaks[1]))) > 2


def test_chips_of_a_market_share_the_peaks_that_hang_on_none():
    model = make_other("gpt2-gelu", "medium", n_layer=4)
    job = make_job(model=model, precision="bf16", seq_len=1024, global_batch=4)
    shelf, shared = Shelf(request(job=job)), []
    for gpu in ("h100-80gb", "a100-80gb"):
        cluster = load_cluster(gpu, memory_limit_bytes=None)
        search = shelf.search(cluster)
        own = Search(job, cluster, "sdpa", held={}, levels={}, works={}, waits={})
        for grid in shelf.space(cluster):
            np.testing.assert_array_equal(peaks_of(search, grid), peaks_of(own, grid))
        shared.append(set(search.insides))
    assert {type(key) for key in shared[1]} == {int, tuple}
    assert len(shared[1]) > len(shared[0])
