"""The shortest sequence of blocks that shows every kind between its neighbours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.models.sequence import contexts, numbered, shown_by


@pytest.mark.parametrize(
    ("kinds", "shown"),
    [
        ([0] * 80, [0, 0, 0]),
        ([0] * 3 + [1] * 58, [0, 0, 0, 1, 1, 1]),
        ([0, 1] * 12, [0, 1, 0, 1, 0, 1]),
        ([0] + [1] * 47, [0, 1, 1, 1]),
    ],
)
def test_few_blocks_show_a_deep_model(kinds, shown):
    assert [kinds[place] for place in shown_by(kinds)] == shown


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30))
def test_every_block_is_shown_between_its_neighbours(told):
    kinds = numbered(told)
    shown = [kinds[place] for place in shown_by(kinds)]
    assert set(contexts(shown)) >= set(contexts(kinds))
    assert all(min(2, kinds.count(kind)) <= shown.count(kind) for kind in set(kinds))
