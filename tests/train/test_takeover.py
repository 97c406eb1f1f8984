"""What is written down when memory runs out, and what is said of it."""

import msgspec
import pytest
import torch

from brimful.errors import FileFormatError, RunError
from brimful.train import takeover
from brimful.train.metrics import add_row, open_metrics, read_metrics
from brimful.train.takeover import Shortage, Ways
from brimful.train.whereabouts import Whereabouts
from brimful.values.run_files import TakeoverRow
from brimful.values.run_words import describe_takeover

pytestmark = pytest.mark.torch


@pytest.fixture
def plan(plan_with):
    return plan_with()


def other(plan, **changes):
    strategy = msgspec.structs.replace(plan.strategy, **changes)
    return msgspec.structs.replace(plan, strategy=strategy)


def shortage_of(plan, **changes):
    fields = {"step": 3, "phase": "optimizer", "reason": "no more", "strategy": plan.strategy}
    return Shortage(**{**fields, **changes})


def row_of(plan, **changes):
    fields = {
        "step": 3, "phase": "backward", "limit_bytes": 2**30, "reason": "no more",
        "failed": plan.strategy, "taken": other(plan, micro_batch=1, loss_chunks=4).strategy,
        "in_place": True,
    }  # fmt: skip
    return TakeoverRow(**{**fields, **changes})


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("shapes do not match"), False),
        (KeyError("can't allocate memory"), False),
    ],
)
def test_which_errors_say_that_memory_ran_out(error, is_one):
    assert takeover.ran_out(error) == is_one


def test_what_is_kept_of_an_error_holds_none_of_its_frames(plan):
    where = Whereabouts(plan.strategy)
    where.step, where.phase = 2, "forward"
    kept = takeover.shortage_of(torch.OutOfMemoryError("first line\nsecond"), where)
    assert kept == shortage_of(plan, step=2, phase="forward", reason="first line")


def test_a_sentence_says_step_phase_limit_and_what_changed(plan):
    assert describe_takeover(row_of(plan)) == (
        "out of memory in step 3, backward at a limit of 1.00 GiB: micro_batch 2 -> 1, "
        "loss_chunks 1 -> 4; the step is taken again"
    )
    away = describe_takeover(row_of(plan, phase="load", in_place=False))
    assert away.startswith("out of memory in loading")
    assert away.endswith("from the newest checkpoint")


def test_no_strategy_is_asked_about_twice(plan):
    asked = []

    def following(now, failed):
        asked.append(failed)
        return other(now, micro_batch=1)

    rows = (row_of(plan), row_of(plan, failed=other(plan, loss_chunks=8).strategy))
    found, row = takeover.taken_over(plan, shortage_of(plan), rows, Ways(following), in_place=False)
    assert found == other(plan, micro_batch=1)
    assert asked == [(plan.strategy, other(plan, loss_chunks=8).strategy)]
    assert (row.failed, row.taken) == (plan.strategy, found.strategy)
    assert row.limit_bytes == 2**31


def test_where_nothing_is_left_the_numbers_are_said(plan):
    ways = Ways(lambda _plan, _failed: None)
    with pytest.raises(RunError, match=r"step 3, optimizer after 1 strategy.*2\.00 GiB.*no more"):
        takeover.taken_over(plan, shortage_of(plan), (), ways, in_place=False)


def test_a_note_is_found_by_the_next_process_and_then_forgotten(plan, tmp_path):
    assert takeover.noted_shortage(tmp_path) is None
    for rank in (3, 1):
        takeover.note_shortage(tmp_path, shortage_of(plan, rank=rank))
    assert takeover.noted_shortage(tmp_path) == shortage_of(plan, rank=1)
    takeover.forget_shortages(tmp_path)
    assert takeover.noted_shortage(tmp_path) is None


def test_a_damaged_note_is_said(plan, tmp_path):
    takeover.note_shortage(tmp_path, shortage_of(plan))
    (tmp_path / ".out-of-memory" / "0.json").write_text("{")
    with pytest.raises(FileFormatError, match=r"0\.json cannot be read .*; delete it"):
        takeover.noted_shortage(tmp_path)


def test_a_resume_cuts_steps_and_keeps_that_memory_ran_out(plan, tmp_path):
    path = tmp_path / "metrics.jsonl"
    for step in (5, 9):
        add_row(path, row_of(plan, step=step))
    path.write_bytes(path.read_bytes() + b'{"kind": "train", "st')  # cut off by a kill
    add_row(path, row_of(plan, step=11))
    open_metrics(path, last_step=4).close()
    assert [row.step for row in read_metrics(path)] == [5, 9, 11]
    known = takeover.strategies_of(read_metrics(path))
    assert known == (plan.strategy, other(plan, micro_batch=1, loss_chunks=4).strategy)
