"""A fact in fewer words yet stays on the screen, and takes more of them where there is room."""

import pytest

from brimful.show.summary import Fact, Meter, Summary
from brimful.show.terminal import summary_lines

PEAK = Fact("peak", "tensors " * 20, "classes " * 14, "one class")
OTHERS = tuple(Fact(f"fact {n}", "so") for n in range(4))


@pytest.mark.parametrize(("most", "num"), [(7, 1), (8, 2), (9, 3)])
def test_what_is_told_grows_with_the_room_there_is(most, num):
    summary = Summary("NO", "x.py", Meter(3, 2, "simulated"), (*OTHERS, PEAK))
    lines = [line.plain for line in summary_lines(summary, most)]
    assert len(lines) == 6 + num
    assert lines[6].startswith("peak")
    assert ("one class", "classes classes", "tensors tensors")[num - 1] in lines[6]
    assert all(f"fact {n}" in "".join(lines) for n in range(4))


def test_it_is_left_out_where_there_is_no_line():
    summary = Summary("NO", "x.py", Meter(3, 2, "simulated"), (*OTHERS, PEAK))
    assert [line.plain[:4] for line in summary_lines(summary, 6)][-1] == "fact"
