"""What ended a script: whose error it is, told by what raised it and what it says."""

import sys

import pytest

from brimful.pretend.script_errors import own_traceback, read_error, sentence_of

_REAL, _HERE = "any real card would say the same", "only the pretend GPU lacks it"


def raised(tmp_path, text, *, stood_in=False, **names):
    """Run a text as a file of its own, and return what is read of what it raises."""
    (path := tmp_path / "script.py").write_text(text)
    try:
        exec(compile(text, str(path), "exec"), names)  # noqa: S102 - what is tested
    except Exception as error:  # noqa: BLE001 - any
        return read_error(error, stood_in=stood_in)
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a = undefined", _REAL),
        ("len(3)", _REAL),
        ("raise RuntimeError('mat1 and mat2 shapes cannot be multiplied (4x3 and 4x3)')", _REAL),
        ("raise RuntimeError('Found no NVIDIA driver on your system.')", _HERE),
        ("raise AssertionError('Torch not compiled with CUDA enabled')", _HERE),
        ("raise AssertionError('the loss grew')", _REAL),
        ("1 / 0", _REAL),
        ("raise NameError('my_cuda_helper')", _REAL),
        ("raise KeyError('meta tensor')", _REAL),
        ("raise NotImplementedError('no forward')", _REAL),
        ("class print(Exception): pass\nraise print('hello')", _REAL),
        ("import nothing_like_that", "this machine that lacks it"),
        ("open('nothing-like-that')", "this machine that lacks it"),
    ],
)
def test_whose_error_it_is_is_told_by_what_it_says(tmp_path, text, why):
    read = raised(tmp_path, text)
    assert why in read.why
    assert "script.py:" in read.where


@pytest.mark.parametrize(
    ("name", "package"),
    [("nothing_like_that.inside", "nothing-like-that"), ("fla", "flash-linear-attention")],
)
def test_what_to_install_is_said_of_a_package_that_is_not_here(tmp_path, name, package):
    assert raised(tmp_path, f"import {name}").remedy.endswith(f": pip install {package}")


def test_a_part_that_an_installed_package_lacks_is_not_to_be_installed(tmp_path):
    assert not raised(tmp_path, "import json.nothing").remedy


@pytest.mark.parametrize(
    ("text", "may_be"),
    [
        ("assert False, 'the loss grew'", True),
        ("1 / 0", True),
        ("{0: 1}[1]", True),
        ("import math\nmath.log(0)", True),
        ("raise RuntimeError('loss is zero')", True),
        ("a = undefined", False),
        ("len(3)", False),
        ("[].gone", False),
        ("if 0 > 1:\n    best = 1\nbest", True),
        ("def f():\n    if 0 > 1:\n        best = 1\n    return best\nf()", True),
        ("best = None\nbest.items()", True),
        ("best = None\nlen(best)", True),
    ],
)
def test_what_a_stand_in_may_have_decided_is_not_sworn_to(tmp_path, text, may_be):
    read = raised(tmp_path, text, stood_in=True)
    assert ("unless a number decides it" in read.why) is may_be
    assert "unless" not in raised(tmp_path, text).why


def test_a_missing_package_that_a_library_tells_in_its_own_words_is_one(tmp_path):
    text = (
        "try:\n    import nothing_like_that\nexcept ImportError as e:\n"
        "    raise RuntimeError('install it') from e\n"
    )
    assert "this machine that lacks it" in raised(tmp_path, text).why


def test_errors_that_go_round_in_a_circle_are_read(tmp_path):
    alone = raised(tmp_path, "e = ValueError('x')\nraise e from e\n")
    assert alone.said == "ValueError: x"
    text = "a, b = ValueError('a'), ValueError('b')\nb.__cause__ = a\nraise a from b\n"
    assert raised(tmp_path, text).said == "ValueError: a"


def test_errors_that_say_nothing_are_read(tmp_path):
    assert raised(tmp_path, "raise SyntaxError").said == "SyntaxError"
    text = "class E(Exception):\n    def __str__(self):\n        raise ValueError\nraise E\n"
    assert raised(tmp_path, text).said == "E"


@pytest.mark.torch
def test_what_needs_numbers_is_no_real_card_s(tmp_path):
    text = (
        "from torch._subclasses import fake_tensor as of\n"
        "raise of.UnsupportedOperatorException('mine.foo.default')\n"
    )
    assert _HERE in raised(tmp_path, text).why
    mixed = text.replace("UnsupportedOperatorException", "FakeTensorDeviceMismatchError")
    assert _REAL in raised(tmp_path, mixed.replace("('mine", "('cuda:0, cpu")).why


def test_tensors_and_devices_are_called_as_on_a_real_card(tmp_path):
    text = "raise TypeError(\"'FakeTensor' on gpu:0:\\nUnexpected keys a.b\")"
    read = raised(tmp_path, text)
    assert "'Tensor' on cuda:0: Unexpected keys a.b" in read.said


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
    assert len(read.last) == 3


def test_an_error_that_the_imitation_itself_raises_is_no_real_card_s(tmp_path):
    from brimful.pretend import largest

    read = raised(tmp_path, "f(['x'], None, None, first='fits')", f=largest.find_largest)
    assert _HERE in read.why
    assert read.where.endswith("script.py:1")
    assert sys.modules  # nothing of it stays
