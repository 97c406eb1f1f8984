"""One place per target: quoting that a shell undoes, comments of one line, JSON of any name."""

import json
import re
from pathlib import Path

import msgspec
import pytest

from brimful.errors import InputError
from brimful.text.escaping import (
    MOST_CHARACTERS,
    Line,
    check_line,
    comments,
    json_text,
    one_line,
    shell_words,
    visible,
    yaml_text,
)

SOURCE = Path(__file__).parents[2] / "src" / "brimful"


def test_a_newline_in_a_plans_name_is_no_line_of_a_script():
    assert comments(["tiny\ntouch harm"]) == ["# tiny\\ntouch harm"]
    assert shell_words(["a b", "x\ny'z"]) == "'a b' $'x\\x0ay\\'z'"


def test_an_argument_has_no_null_character():
    with pytest.raises(InputError, match="null character"):
        shell_words(["a\0b"])


@pytest.mark.parametrize("text", ["a\nb", "\t", "\x85", "\u2028", "\u202e", "\x1b[31m", "\ud800"])
def test_a_line_is_one_line(text):
    with pytest.raises(msgspec.ValidationError, match="regex"):
        msgspec.convert(text, Line)
    with pytest.raises(InputError, match="the name holds"):
        check_line(text, what="the name")
    assert visible(text).replace("\n", "").isprintable()


def test_a_line_is_not_endless():
    assert msgspec.convert("é" * MOST_CHARACTERS, Line)
    with pytest.raises(InputError, match=f"{MOST_CHARACTERS + 1} characters and at most"):
        check_line("x" * (MOST_CHARACTERS + 1), what="the name")
    assert len(one_line("x" * 10**6)) < 1000


def test_json_and_yaml_say_names_that_they_have_no_word_for():
    assert json.loads(json_text({"\udce9": 1})) == {"\\udce9": 1}
    assert json_text("\x9b\u2028<", also="<") == '"\\u009b\\u2028\\u003c"'
    assert yaml_text({"name": "1e3"}) == "name: '1e3'\n"


def test_nothing_else_escapes_or_prints():
    """What a second place would forget is why there is one."""
    own = re.compile(r"(?<![\w.])print\(|\bshlex\b|html import escape|safe_dump|unicode_escape")
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if own.search(path.read_text("utf-8"))
    }
    assert found == {"text/escaping.py", "text/terminal.py", "show/markup.py"}
