"""What is said of the loads of experts: hot ones, collapsed routers, and nothing of balance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.train.expert_load import LEAST_LOAD, alarm_of, drop_share, loads_of, worst_load
from brimful.values.run_files import ExpertRow


def row_of(*load, num_choices=2, **changes):
    blocks = tuple(range(len(load)))
    fields = {"step": 10, "num_steps": 10, "blocks": blocks, "num_choices": num_choices}
    return ExpertRow(load=load, **{**fields, **changes})


def test_balance_is_silent():
    (load,) = loads_of(row_of((500,) * 8))
    assert load.trouble is None
    assert load.imbalance == pytest.approx(1)
    assert load.num_at_work == pytest.approx(8)
    assert load.share == pytest.approx(load.fair_share) == pytest.approx(0.25)


def test_a_hot_expert_is_named_with_its_share():
    # 1,000 tokens of two choices each: 700 chose expert 1, the rest is even.
    row = row_of((186, 700, 186, 186, 186, 186, 185, 185))
    (load,) = loads_of(row)
    assert load.trouble == "hot"
    said = alarm_of(load, row)
    assert "hot expert 1 in block 0: 70% of the tokens chose it over the last 10 steps" in said
    assert "balanced 25%" in said


def test_a_collapsed_router_is_told_from_a_hot_expert():
    row = row_of((1000, 900, 50, 50, 0, 0, 0, 0), num_steps=1)
    (load,) = loads_of(row)
    assert load.trouble == "collapsed"
    assert "of 8 experts are at work in the last step" in alarm_of(load, row)


def test_few_tokens_are_noise():
    (load,) = loads_of(row_of((LEAST_LOAD - 1, 0, 0, 0), num_choices=1))
    assert load.trouble is None


def test_all_experts_chosen_by_all_are_no_trouble():
    (load,) = loads_of(row_of((500, 500), num_choices=2))
    assert load.trouble is None


def test_the_worst_block_is_found_and_uncounted_ones_are_left_out():
    row = row_of((0, 0, 0, 0), (500,) * 4, (900, 400, 400, 300), num_choices=1)
    assert worst_load(row).block == 2
    assert worst_load(row_of((0, 0))) is None


def test_what_was_dropped_is_a_share_of_all_tokens():
    assert drop_share(row_of((75, 25), num_choices=1, dropped=(10,))) == pytest.approx(0.1)
    assert drop_share(row_of((0, 0))) == 0


@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=64).filter(any))
def test_figures_stay_within_their_bounds(load):
    (found,) = loads_of(row_of(tuple(load), num_choices=1))
    assert 1 <= found.num_at_work <= len(load) * (1 + 1e-9)
    assert 1 - 1e-9 <= found.imbalance <= len(load) * (1 + 1e-9)
    assert load[found.busiest] == max(load)
