import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import DataError
from brimful.train.data.batches import (
    START,
    DataPosition,
    TokenBatches,
    heldout_batches,
    open_batches,
    shuffled,
)


def make_batches(num_tokens=1000, *, micro_batch=1, global_batch=4, seq_len=8, seed=3):
    return TokenBatches(
        tokens=np.arange(num_tokens, dtype=np.uint16),
        seq_len=seq_len,
        global_batch=global_batch,
        micro_batch=micro_batch,
        seed=seed,
    )


@given(num_items=st.integers(1, 700), seed=st.integers(0, 2**64), epoch=st.integers(0, 1000))
def test_shuffled_is_a_permutation(num_items, seed, epoch):
    order = [shuffled(i, num_items=num_items, seed=seed, epoch=epoch) for i in range(num_items)]
    assert sorted(order) == list(range(num_items))


def test_shuffled_handles_a_billion_items_in_no_memory():
    places = [shuffled(i, num_items=10**9, seed=1, epoch=0) for i in range(1000)]
    assert len(set(places)) == 1000
    assert 0.4e9 < np.mean(places) < 0.6e9


def test_shuffled_looks_random():
    # Over many seeds each item must come first about equally often: chi-square with 15 degrees of
    # freedom stays below 37.7 in 99.9 % of fair draws.
    num_draws = 3200
    firsts = [shuffled(0, num_items=16, seed=seed, epoch=0) for seed in range(num_draws)]
    counts = np.bincount(firsts, minlength=16)
    expected = num_draws / 16
    assert ((counts - expected) ** 2 / expected).sum() < 37.7


def test_seeds_and_epochs_have_orders_of_their_own():
    orders = {
        tuple(shuffled(i, num_items=100, seed=seed, epoch=epoch) for i in range(100))
        for seed in range(5)
        for epoch in range(5)
    }
    assert len(orders) == 25


def _starts(batches, position, num_steps):
    starts = []
    for _ in range(num_steps):
        windows, position = batches.windows_at(position)
        starts += windows[:, 0].tolist()
    return starts, position


def test_every_window_comes_once_per_epoch():
    batches = make_batches(8 * 20 + 1)
    starts, position = _starts(batches, START, 10)
    assert sorted(starts[:20]) == sorted(starts[20:]) == list(range(0, 160, 8))
    assert starts[:20] != starts[20:]
    assert position == DataPosition(epoch=2, index=0)


def test_a_step_may_span_two_epochs():
    batches = make_batches(8 * 6 + 1)
    starts, position = _starts(batches, START, 3)
    assert sorted(starts[:6]) == sorted(starts[6:]) == list(range(0, 48, 8))
    assert position == DataPosition(epoch=2, index=0)


@given(num_before=st.integers(0, 40), num_tokens=st.integers(50, 400))
def test_what_follows_a_position_does_not_depend_on_how_it_was_reached(num_before, num_tokens):
    batches = make_batches(num_tokens)
    whole, _ = _starts(batches, START, num_before + 5)
    _, position = _starts(batches, START, num_before)
    rest, _ = _starts(batches, position, 5)
    assert whole[num_before * 4 :] == rest


def test_windows_are_shifted_and_share_one_token():
    windows, _ = make_batches().windows_at(START)
    assert windows.shape == (4, 9)
    for row in windows:
        assert row.tolist() == list(range(row[0], row[0] + 9))


@pytest.mark.torch
@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_micro_batch_changes_neither_sequences_nor_order(micro_batch):
    import torch

    batches = make_batches(micro_batch=micro_batch)
    position = START
    for _ in range(40):
        windows, _ = batches.windows_at(position)
        step, position = batches.step_at(position)
        assert {len(batch.inputs) for batch in step} == {micro_batch}
        inputs = torch.cat([batch.inputs for batch in step])
        labels = torch.cat([batch.labels for batch in step])
        assert inputs.dtype == labels.dtype == torch.int64
        assert np.array_equal(inputs.numpy(), windows[:, :-1])
        assert np.array_equal(labels.numpy(), windows[:, 1:])


def test_too_little_text_for_a_step_says_both_numbers(plan_with):
    job = plan_with(global_batch=4, seq_len=32).job
    assert open_batches(np.zeros(129, np.uint16), job, micro_batch=1).num_windows == 4
    with pytest.raises(DataError, match=r"has 128 tokens and .* needs 129;"):
        open_batches(np.zeros(128, np.uint16), job, micro_batch=1)


@pytest.mark.torch
def test_the_heldout_sample_is_fixed_and_spread_over_the_text(plan_with):
    job = plan_with(seq_len=10).job
    tokens = np.arange(1001, dtype=np.uint16)
    batches = heldout_batches(tokens, job, micro_batch=2, num_tokens=50)
    starts = [int(row[0]) for batch in batches for row in batch.inputs]
    assert starts == [0, 200, 400, 600, 800]
    assert [len(batch.inputs) for batch in batches] == [2, 2, 1]


@pytest.mark.torch
def test_the_heldout_sample_is_never_more_than_there_is(plan_with):
    job = plan_with(seq_len=10).job
    batches = heldout_batches(np.arange(35, dtype=np.uint16), job, micro_batch=8, num_tokens=10**6)
    assert [batch.labels[:, -1].tolist() for batch in batches] == [[10, 20, 30]]


def test_too_little_heldout_text_says_both_numbers(plan_with):
    job = plan_with(seq_len=32).job
    with pytest.raises(DataError, match=r"held-out text has 32 tokens and .* needs 33;"):
        heldout_batches(np.zeros(32, np.uint16), job, micro_batch=1, num_tokens=100)
