"""What is there for a while as a model is loaded."""

from brimful.cost.load_transients import SENT_BYTES, sent_copies


def test_a_copy_that_ddp_sends_ends_with_what_fills_it():
    half, whole = SENT_BYTES // 2, SENT_BYTES
    assert sent_copies([half, half, 1]) == [2 * half, 1]
    assert sent_copies([1, whole, half, half - 1]) == [1 + whole, 2 * half - 1]
    assert sent_copies([3, 4]) == [7]
