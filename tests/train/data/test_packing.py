from hypothesis import given
from hypothesis import strategies as st

from brimful.train.data.packing import pack

LENGTHS = st.lists(st.integers(1, 64), max_size=200)


@given(LENGTHS)
def test_every_item_is_in_one_row_and_no_row_is_too_long(lengths):
    rows = pack(lengths, capacity=64)
    assert sorted(item for row in rows for item in row) == list(range(len(lengths)))
    assert all(sum(lengths[item] for item in row) <= 64 for row in rows)


@given(LENGTHS)
def test_no_two_rows_could_have_been_one_but_the_last_ones(lengths):
    # Best fit opens a row only when nothing fits: at most one row is half empty.
    rows = pack(lengths, capacity=64)
    assert sum(sum(lengths[item] for item in row) <= 32 for row in rows) <= 1


def test_the_tightest_row_is_chosen():
    assert pack([60, 50, 14, 4], capacity=64) == [[0, 3], [1, 2]]


@given(LENGTHS)
def test_the_same_lengths_give_the_same_rows(lengths):
    assert pack(lengths, capacity=64) == pack(list(lengths), capacity=64)
