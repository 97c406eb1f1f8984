import inspect

import pytest

from brimful import errors


def classes():
    return [
        c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == errors.__name__
    ]


def test_the_tree_in_the_docstring_is_the_tree_in_the_code():
    for cls in classes():
        assert cls.__name__ in errors.__doc__
        assert issubclass(cls, errors.BrimfulError)


def test_input_errors_are_value_errors_and_run_errors_runtime_errors():
    assert issubclass(errors.InputError, ValueError)
    assert issubclass(errors.RunError, RuntimeError)
    assert not issubclass(errors.UnsupportedError, ValueError)


@pytest.mark.parametrize(
    ("name", "words"),
    [("lama-7b", "did you mean llama-7b"), ("zzz", "known: gpt2, llama-7b"), ("GPT2", "gpt2")],
)
def test_an_unknown_name_gets_the_nearest_or_all(name, words):
    error = errors.unknown_name("model", name, ["llama-7b", "gpt2"], more="or give a folder")
    assert isinstance(error, errors.UnknownNameError)
    assert repr(name) in str(error)
    assert words in str(error)
    assert str(error).endswith("or give a folder")
