"""Unrolling, on recordings made by hand in which every event is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.pretend.blocks import NotPeriodicError, Pattern, block_of, units_of_blocks
from brimful.pretend.recording import NEVER
from brimful.pretend.recording_builder import Place, RecordingBuilder
from brimful.pretend.unroll import unroll_blocks

PATTERN = Pattern(stack="h", num_prefix=0, period=1)


def place(owner, op="op", stream=0):
    return Place(op=op, owner=owner, node="", line=None, stream=stream)


def take(builder, num_bytes, owner, **where):
    return builder.allocate(num_bytes, (num_bytes,), "uint8", place(owner, **where))


def program(num_blocks, sizes, *, num_steps=1, num_micro_batches=1, special=NEVER):
    """Train blocks that keep, drop and hand on tensors of the given sizes.

    Args:
        num_blocks: How many.
        sizes: What each allocates in forward: the odd ones are freed at once, the even ones kept.
        num_steps: Steps.
        num_micro_batches: Of each step.
        special: Number of a block that allocates one byte more.
    """
    b = RecordingBuilder()
    for block in range(num_blocks):
        b.set_item(take(b, 64, f"h.{block}"), "parameters")
    for step in range(1, num_steps + 1):
        grads = []
        for _ in range(num_micro_batches):
            _forward_and_backward(b, num_blocks, sizes, step, grads, special)
        b.begin_phase(f"step {step} optimizer")
        norms = take(b, 4 * len(grads), "")
        b.mark()
        for row in (norms, *grads):
            b.free(row)
    return b.build()


def _forward_and_backward(b, num_blocks, sizes, step, grads, special):  # noqa: PLR0913, PLR0917
    b.begin_phase(f"step {step} forward")
    hidden, kept = take(b, 32, "embed"), []
    for block in range(num_blocks):
        rows = [take(b, size, f"h.{block}", stream=i % 2) for i, size in enumerate(sizes)]
        for row in rows[1::2]:
            b.free(row)
            b.use_elsewhere(row)
            b.wait()
        out = take(b, 32 + (block == special), f"h.{block}.out")
        b.free(hidden)  # one block's output is freed in the next
        hidden = out
        kept.append(rows[::2])
    b.free(hidden)
    b.begin_phase(f"step {step} backward")
    is_first, ahead = not grads, None
    for block in reversed(range(num_blocks)):
        gathered = ahead or take(b, 48, f"h.{block}")
        ahead = take(b, 48, f"h.{block}", op="prefetch") if block else None
        for row in kept.pop():
            b.free(row)
        if is_first:
            grads.append(take(b, 64, f"h.{block}"))
        b.free(gathered)


def told(recording):
    """Every row with its names, and the order of events."""
    rows = [
        (
            int(recording.num_bytes[i]),
            recording.owners[recording.owner[i]],
            recording.ops[recording.op[i]],
            recording.items[recording.item[i]],
            recording.phases[recording.phase[i]],
            recording.shapes[recording.shape_dtype[i]],
            *(int(c[i]) for c in (recording.stream, recording.born, recording.died)),
            int(recording.in_use_until[i]),
        )
        for i in range(len(recording.num_bytes))
    ]
    ordered = (recording.events, recording.phase_starts, recording.marks)
    return rows, [column.tolist() for column in ordered], recording.phases


SIZES = st.lists(st.integers(1, 100), max_size=6)


@given(sizes=SIZES, num_traced=st.integers(5, 7), num_more=st.integers(0, 9))
def test_unrolled_blocks_equal_the_whole(sizes, num_traced, num_more):
    unrolled = unroll_blocks(
        program(num_traced, sizes),
        shallow=program(1, sizes),
        pattern=PATTERN,
        num_blocks=num_traced + num_more,
    )
    assert told(unrolled) == told(program(num_traced + num_more, sizes))


@given(sizes=SIZES, num_blocks=st.integers(6, 12))
def test_every_tensor_is_freed_once_and_after_its_birth(sizes, num_blocks):
    recording = unroll_blocks(
        program(5, sizes), shallow=program(1, sizes), pattern=PATTERN, num_blocks=num_blocks
    )
    assert sorted(recording.events[recording.events >= 0]) == list(range(len(recording.born)))
    freed = ~recording.events[recording.events < 0]
    assert len(set(freed.tolist())) == len(freed)
    assert np.all(recording.died[freed] > recording.born[freed])
    assert recording.live_bytes()[-1] == 64 * num_blocks


def test_the_blocks_asked_for_change_nothing_if_they_were_traced():
    deep = program(4, [8])
    assert unroll_blocks(deep, shallow=deep, pattern=PATTERN, num_blocks=4) is deep


@pytest.mark.parametrize("special", [1, 2])
def test_an_inner_block_unlike_its_neighbour_is_refused(special):
    deep = program(4, [8], special=special)
    with pytest.raises(NotPeriodicError, match="units 1 and 2 differ in event"):
        unroll_blocks(deep, shallow=program(1, [8]), pattern=PATTERN, num_blocks=9)


@pytest.mark.parametrize("special", [0, 4])
def test_the_first_and_the_last_block_may_be_special(special):
    deep, shallow = program(5, [8], special=special), program(1, [8])
    unrolled = unroll_blocks(deep, shallow=shallow, pattern=PATTERN, num_blocks=9)
    whole = program(9, [8], special=special if special == 0 else 8)
    assert told(unrolled) == told(whole)


def test_what_grows_unevenly_outside_the_blocks_is_refused():
    deep, shallow = program(4, [8]), program(2, [8])
    norms = np.flatnonzero(np.array(deep.ops)[deep.op] == "op")[-1]
    deep.num_bytes[norms] += 1
    with pytest.raises(NotPeriodicError, match="not by as much with each"):
        unroll_blocks(deep, shallow=shallow, pattern=PATTERN, num_blocks=9)


def test_too_few_units_are_refused():
    with pytest.raises(NotPeriodicError, match="2 units were traced"):
        unroll_blocks(program(2, [8]), shallow=program(1, [8]), pattern=PATTERN, num_blocks=9)


def test_fewer_than_traced_are_refused():
    deep, shallow = program(4, [8], num_micro_batches=4, num_steps=3), program(1, [8])
    with pytest.raises(NotPeriodicError, match="cannot be unrolled"):
        unroll_blocks(deep, shallow=shallow, pattern=PATTERN, num_blocks=3)


def test_blocks_are_told_from_paths_that_look_alike():
    assert block_of("h.12.mlp", "h") == 12
    assert block_of("h.12", "h") == 12
    assert block_of("h", "h") == block_of("h.norm", "h") == block_of("", "h") == -1
    assert block_of("head.3", "h") == block_of("model.h.3", "h") == -1


def test_prefix_and_rest_are_no_units():
    recording = program(9, [])
    pattern = Pattern(stack="h", num_prefix=2, period=3)
    units = units_of_blocks(recording, pattern, adopted={})
    assert units.count == 2
    assert units.of_row[:9].tolist() == [-1, -1, 0, 0, 0, 1, 1, 1, -1]
