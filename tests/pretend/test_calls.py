"""Empty stretches of a tape are filled with what like calls did, or refused."""

import numpy as np
import pytest

from brimful.pretend.blocks import NotPeriodicError
from brimful.pretend.calls import Call, fill
from brimful.pretend.recording_builder import Place, RecordingBuilder

NUM = 6
ORDER = [("forward", 0), ("forward", 1)] + [
    call for n in range(2, NUM) for call in (("backward", n - 2), ("forward", n))
]
ORDER += [("backward", NUM - 2), ("backward", NUM - 1)]
RUN = {0, 1, 2, 4, 5}
EVERY = set(range(NUM))
COLUMNS = ("events", "num_bytes", "born", "died", "op", "phase", "phase_starts", "marks", "item")


class Toy:
    """A stage that keeps 10 bytes of each micro-batch and hands on 7, and 4 on the way back.

    What a call gathers (20 bytes) the next one drops.
    """

    def __init__(self, run, *, odd=None, forgets=None):
        self.builder, self.calls = RecordingBuilder(), []
        self.run, self.odd, self.forgets = run, odd, forgets
        self.kept, self.gathered = {}, None

    def allocate(self, num_bytes, op):
        place = Place(op=op, owner="stage", node="", line=None, stream=0)
        return self.builder.allocate(num_bytes, (num_bytes,), "uint8", place)

    def step(self):
        for kind, number in ORDER:
            start = self.builder.spot()
            self.builder.begin_phase(f"step 1 {kind}")
            work = getattr(self, kind) if number in self.run else self.stand_in
            out = work(number)
            call = {"start": start, "stop": self.builder.spot(), "ran": number in self.run}
            self.calls.append(
                Call(stage=0, kind=kind, step=1, micro_batch=number, handed=(out,), **call)
            )
            self.builder.free(self.allocate(3, "message"))
            self.builder.free(out)
        self.builder.free(self.gathered)
        return self

    def gather(self):
        new = self.allocate(20, "gather")
        if self.gathered is not None:
            self.builder.free(self.gathered)
        self.gathered = new

    def forward(self, number):
        self.gather()
        self.kept[number] = self.allocate(10, "save")
        self.builder.mark()
        self.builder.free(self.allocate(5 + (number == self.odd), "temporary"))
        self.builder.cost("product", 1, 0, ())
        return self.allocate(7, "out")

    def backward(self, number):
        self.gather()
        if number != self.forgets:
            self.builder.free(self.kept[number])
        return self.allocate(4, "gradient")

    def stand_in(self, number):
        return self.allocate(1, f"stands for {number}")


def test_what_is_filled_in_is_the_whole_tape():
    few, whole = Toy(RUN).step(), Toy(EVERY).step().builder.build()
    filled = fill(few.builder.build(), few.calls)
    for column in COLUMNS:
        if column != "op":
            assert np.array_equal(getattr(filled, column), getattr(whole, column)), column
    assert [filled.ops[i] for i in filled.op] == [whole.ops[i] for i in whole.op]
    assert filled.costs == whole.costs
    assert filled.live_bytes().max() == whole.live_bytes().max()


def test_a_tape_without_gaps_stays_as_it_is():
    toy = Toy(EVERY).step()
    recording = toy.builder.build()
    filled = fill(recording, toy.calls)
    assert np.array_equal(filled.events, recording.events)
    assert np.array_equal(filled.phase_starts, recording.phase_starts)


def test_calls_that_differ_are_refused():
    toy = Toy(RUN, odd=4).step()
    with pytest.raises(NotPeriodicError, match="differ"):
        fill(toy.builder.build(), toy.calls)


def test_a_backward_that_leaves_something_is_refused():
    toy = Toy(RUN, forgets=2).step()
    with pytest.raises(NotPeriodicError):
        fill(toy.builder.build(), toy.calls)


def test_a_first_call_has_to_run():
    toy = Toy(EVERY - {0}).step()
    with pytest.raises(NotPeriodicError, match="like no other"):
        fill(toy.builder.build(), toy.calls)


def test_memory_of_other_streams_is_refused():
    toy = Toy(RUN).step()
    toy.builder.use_elsewhere(0)
    with pytest.raises(NotPeriodicError, match="other streams"):
        fill(toy.builder.build(), toy.calls)
