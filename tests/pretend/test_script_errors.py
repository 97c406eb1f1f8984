"""What ended a script: whose error it is, told by what raised it and what it says."""

import sys

import pytest

from brimful.pretend.script_errors import own_traceback, read_error, sentence_of

_REAL, _HERE = "any real card would say the same", "only the pretend GPU lacks it"


def raised(tmp_path, text, **names):
    """Run a text as a file of its own, and return what is read of what it raises."""
    (path := tmp_path / "script.py").write_text(text)
    try:
        exec(compile(text, str(path), "exec"), names)  # noqa: S102 - what is tested
    except Exception as error:  # noqa: BLE001 - any
        return read_error(error)
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a = undefined", _REAL),
        ("len(3)", _REAL),
        ("raise RuntimeError('mat1 and mat2 shapes cannot be multiplied (4x3 and 4x3)')", _REAL),
        ("raise RuntimeError('Found no NVIDIA driver on your system.')", _HERE),
        ("raise AssertionError('Torch not compiled with CUDA enabled')", _HERE),
        ("raise AssertionError('the loss grew')", "unless a number decides it"),
        ("1 / 0", "unless a number decides it"),
        ("import nothing_like_that", "this machine that lacks it"),
        ("open('nothing-like-that')", "this machine that lacks it"),
    ],
)
def test_whose_error_it_is_is_told_by_what_it_says(tmp_path, text, why):
    read = raised(tmp_path, text)
    assert why in read.why
    assert read.where.endswith("script.py:1")


def test_frames_of_libraries_are_left_out_and_the_innermost_own_line_is_named(tmp_path):
    text = "import json\ndef load():\n    return json.loads('{')\n\nload()\n"
    read = raised(tmp_path, text)
    assert read.where.endswith("script.py:3 (load)")
    shown = "\n".join(own_traceback(read))
    assert "decoder.py" not in shown
    assert shown.count("script.py") == 2
    assert read.last[0].startswith("json.decoder.JSONDecodeError")
    assert "raised JSONDecodeError" in sentence_of(read, name="script.py")


def test_notes_of_an_error_are_kept_and_long_messages_are_cut(tmp_path):
    text = "e = ValueError('x' * 999 + chr(10) + 'more')\ne.add_note('what to do')\nraise e\n"
    read = raised(tmp_path, text)
    assert len(read.said) < 200
    assert read.last[-1] == "what to do"
    assert len(read.last) == 2


def test_an_error_that_the_imitation_itself_raises_is_no_real_card_s(tmp_path):
    from brimful.pretend import largest

    read = raised(tmp_path, "f(['x'], None, None, first='fits')", f=largest.find_largest)
    assert _HERE in read.why
    assert read.where.endswith("script.py:1")
    assert sys.modules  # nothing of it stays
