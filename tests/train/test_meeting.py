"""Processes of a group meet in a store that earlier groups have written to."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from brimful.errors import RunError

pytestmark = pytest.mark.torch


def names_of(store, size, timeout_s=20.0):
    """What each process of a group calls it; threads stand for processes."""
    from brimful.train.meeting import named_anew

    with ThreadPoolExecutor(size) as pool:
        waiting = [
            pool.submit(named_anew, store, rank, size, timeout_s=timeout_s) for rank in range(size)
        ]
        return [one.result() for one in waiting]


@pytest.fixture
def store():
    import torch.distributed as dist

    return dist.HashStore()


@pytest.mark.parametrize("sizes", [[2, 2, 2], [4, 2, 4], [3, 1, 3, 3]])
def test_each_group_gets_a_name_of_its_own(store, sizes):
    names = [names_of(store, size) for size in sizes]
    assert all(len(set(of_group)) == 1 for of_group in names)
    assert len({of_group[0] for of_group in names}) == len(sizes)


def test_one_that_was_lost_in_the_middle_is_not_taken_for_its_successor(store):
    """The first process is gone when the others come; then it comes again."""
    from brimful.train.meeting import named_anew

    before = names_of(store, 2)[0]
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(named_anew, store, 1, 2, timeout_s=20.0)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.3)  # what the old first process wrote is no answer
        first = pool.submit(named_anew, store, 0, 2, timeout_s=20.0)
        assert first.result() == second.result() != before


@pytest.mark.parametrize(("rank", "missing"), [(0, "processes 1, 2"), (1, "process 0")])
def test_who_did_not_come_is_named(store, rank, missing):
    from brimful.train.meeting import named_anew

    with pytest.raises(RunError, match=f"{missing} did not come"):
        named_anew(store, rank, 3, timeout_s=0.2)
