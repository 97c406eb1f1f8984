"""Data that is over for a loop that trains, and for no other."""

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.torch


def test_a_pass_that_makes_no_step_sees_all_of_the_data():
    from torch.utils.data import DataLoader

    from brimful.pretend.data_over import DataOver, following_data

    run, rows = SimpleNamespace(num_steps=0), list(range(40))
    data = DataOver(run)

    def train():
        seen = 0
        for _ in DataLoader(rows, batch_size=4):
            seen += 1
            run.num_steps += 1
            data.end_step(is_alike=run.num_steps > 1)
            if run.num_steps == 3:
                assert data.be_over()
        return seen

    with following_data(data):
        assert train() == 3
        assert train() == 1  # of every further pass that trains
        assert sum(map(len, DataLoader(rows, batch_size=4))) == len(rows)
        assert sum(map(len, DataLoader(list(rows), batch_size=4))) == len(rows)
    assert len(list(DataLoader(rows, batch_size=4))) == 10
