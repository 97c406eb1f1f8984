"""FlexAttention on the pretend GPU: what the code takes that Inductor writes for a card."""

from collections import Counter
from functools import cache

import pytest
import torch
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

from brimful.pretend.recording import TO_HOST
from brimful.simulate.attempt import attention_flops
from brimful.simulate.traced import trace
from brimful.techniques.runnable import check_strategy
from samples import make_job, make_model, make_strategy

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # the compiler's own

ROWS, TOKENS, HEADS, GROUPS, WIDTH, LAYERS = 2, 512, 4, 2, 64, 2
QUERIES, KEYS = ROWS * HEADS * TOKENS * WIDTH * 2, ROWS * GROUPS * TOKENS * WIDTH * 2
SUMS = ROWS * HEADS * TOKENS * 4
BLOCKS = -(-TOKENS // 128)
MODEL = make_model(
    "llama", hidden_size=HEADS * WIDTH, intermediate_size=688, vocab_size=2000,
    num_attention_heads=HEADS, num_key_value_heads=GROUPS, num_hidden_layers=LAYERS,
)  # fmt: skip


MODELS = {"llama": MODEL, "gpt2": make_model("gpt2", n_embd=64, n_layer=LAYERS)}


def job_of(**changes):
    return make_job(**{
        "model": MODEL, "precision": "bf16", "packing": "documents", "seq_len": TOKENS,
        "global_batch": ROWS, **changes,
    })  # fmt: skip


@cache
def recorded(
    compiles="none", attention="flex", again="none", packing="documents", of="llama", **how
):
    """Trace two steps on a card, with what they compute."""
    torch._dynamo.utils.counters.clear()
    strategy = make_strategy(
        attention=attention, compile=compiles, activation_checkpointing=again,
        micro_batch=ROWS, **how,
    )  # fmt: skip
    job = job_of(packing=packing, model=MODELS[of])
    check_strategy(job, strategy)
    traced = trace(job, strategy, imitate="cuda", capability=9.0, num_steps=2, count_costs=True)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return traced.recording, graphs, dict(torch._dynamo.utils.counters["graph_break"])


def made(recording):
    """Count what Inductor's code allocated, by bytes."""
    return Counter(
        int(num_bytes)
        for op, num_bytes in zip(recording.op, recording.num_bytes, strict=True)
        if "empty_strided" in recording.ops[op]
    )


def test_by_itself_it_takes_what_its_kernels_write():
    """Forward: its result and two sums for each query; backward: delta and three gradients.

    Nothing repeats grouped keys and values, and no scores are there.
    """
    recording, graphs, breaks = recorded()
    assert (graphs, breaks) == (1, {})  # all blocks, documents and steps share one
    taken = made(recording)
    assert taken[QUERIES] % (2 * LAYERS) == taken[KEYS] % (2 * LAYERS) == 0
    assert taken == {QUERIES: 2 * 2 * LAYERS, KEYS: 2 * 2 * LAYERS, SUMS: 2 * 3 * LAYERS}


def test_what_it_keeps_is_its_result_and_a_sum_for_each_query():
    flex, flash = (
        recorded(attention=name, packing="wrapped")[0].live_bytes().max()
        for name in ("flex", "flash")
    )
    assert abs(int(flex) - int(flash)) < 0.01 * int(flash)  # which keeps as much


@pytest.mark.few(1)  # pretend/test_compiled.py has a model that is one graph
@pytest.mark.parametrize("compiles", ["blocks", "model"])
def test_in_a_compiled_block_it_is_part_of_the_graph(compiles):
    recording, graphs, breaks = recorded(compiles)
    assert (graphs, breaks) == (2 if compiles == "model" else 1, {})
    assert recording.live_bytes().max() < recorded()[0].live_bytes().max()


def test_a_block_mask_is_a_few_integers_for_each_block_of_scores():
    recording, *_ = recorded()
    integers = [
        int(num_bytes)
        for shape, num_bytes in zip(recording.shape_dtype, recording.num_bytes, strict=True)
        if recording.shapes[shape][1] == "int32"
    ]
    assert ROWS * BLOCKS * BLOCKS * 4 in integers


@pytest.mark.few
@pytest.mark.parametrize(("compiles", "again", "times"), [
    ("none", "none", 1), ("blocks", "full", 2), ("none", "selective", 1), ("none", "full", 2),
    ("blocks", "none", 1), ("blocks", "selective", 1),
])  # fmt: skip
def test_its_flops_are_those_of_any_attention(compiles, again, times):
    recording, *_ = recorded(compiles, again=again)
    query = (ROWS, HEADS, TOKENS, WIDTH)
    assert_attended(recording, query, times=times)


def assert_attended(recording, query, times=1):
    forward = 2 * LAYERS * times * sdpa_flop_count(query, query, query)
    backward = 2 * LAYERS * sdpa_backward_flop_count(query, query, query, query)
    assert attention_flops(recording) == {
        "flex_attention": forward, "flex_attention_backward": backward,
    }  # fmt: skip


def test_queries_and_keys_of_one_product_are_one_argument_of_its_kernel():
    recording, *_ = recorded("blocks", of="gpt2")
    gpt2 = MODELS["gpt2"]
    assert_attended(recording, (ROWS, gpt2.num_heads, TOKENS, gpt2.head_dim))


def test_what_blocks_are_given_alike_is_not_sent_to_the_host():
    """Block masks, and which document a token is of, which decides inside of a block of scores."""
    recording, *_ = recorded(again="full", offload=f"activations:{LAYERS}")
    sent = Counter(
        sum(cost.moved_bytes) for cost in recording.costs if cost.op == TO_HOST
    )  # fmt: skip
    hidden = ROWS * TOKENS * HEADS * WIDTH * 2
    assert set(sent) == {hidden}
