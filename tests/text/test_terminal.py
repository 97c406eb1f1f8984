"""Lines for people, as wide as their terminal."""

import sys

from brimful.cli.progress import Progress
from brimful.text import terminal
from brimful.text.terminal import folded, say, silenced

LONG = (
    "brimful: tp=3 does not divide num_heads=40 of a model, whatever is trained, so that it is "
    "refused here; use 1, 2, 4 or 8"
)


def test_what_is_wider_than_a_terminal_is_folded_between_words():
    lines = folded(LONG, 80).split("\n")
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("brimful: tp=3")
    assert all(line.startswith(" " * 9) for line in lines[1:])
    assert " ".join(" ".join(lines).split()) == LONG
    assert folded(LONG, 200) == LONG
    assert folded("tracing: " + "x" * 90, 80).split("\n") == ["tracing:", "x" * 90]


def test_only_a_terminal_is_folded_for(monkeypatch, capsys):
    say(LONG, file=sys.stderr)
    assert capsys.readouterr().err == LONG + "\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(
        terminal.shutil, "get_terminal_size", lambda: type("S", (), {"columns": 60})
    )
    say(LONG, file=sys.stderr)
    assert max(map(len, capsys.readouterr().err.splitlines())) <= 60


def test_nothing_is_said_beside_an_answer_that_is_being_printed(capsys):
    with silenced(), Progress("searching", quiet=False) as progress:
        progress.note("found")
        say("a line of the answer")
        say("what is looked at", file=sys.stderr)
    say("behind it", file=sys.stderr)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("a line of the answer\n", "behind it\n")
