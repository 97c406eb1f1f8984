import pytest
import shape

LOOSE_MODULES, FILE_LINES, FUNCTION_LINES = 6, 500, 60


@pytest.fixture(scope="module")
def files():
    return shape.read()


def test_what_stands_beside_the_packages_fits_one_hand():
    assert len(shape.loose()) <= LOOSE_MODULES, "give it a room"


def test_no_file_is_longer_than_a_sitting(files):
    assert not [each for each in shape.file_lines(files) if each.num_lines > FILE_LINES]


def test_no_function_is_longer_than_a_screen(files):
    assert not [each for each in shape.function_lines(files) if each.num_lines > FUNCTION_LINES]


def test_args_and_returns_stand_on_the_public_api_only(files):
    assert not shape.inner_sections(files, shape.public_names())


def test_sections_are_found_off_the_api_and_left_on_it(tmp_path, monkeypatch):
    monkeypatch.setattr(shape, "SOURCE", tmp_path / "brimful")
    (tmp_path / "brimful").mkdir()
    (tmp_path / "brimful" / "a.py").write_text(
        'def told(x):\n    """Tell.\n\n    Args:\n        x: What.\n    """\n\n\n'
        'def inner(x):\n    """Do.\n\n    Returns:\n        It.\n    """\n'
    )
    found = shape.inner_sections(shape.read(tmp_path / "brimful"), {"brimful.a.told"})
    assert found == ["brimful.a.inner"]


def test_helpers_lines_and_code_are_counted(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text(
        '"""Words."""\n\n# a comment\n\n\ndef _once():\n    """Words\n    of two lines."""\n'
        "    return 1  # one\n\n\ndef _twice():\n    return _once()\n\n\n"
        "def _both():\n    return _twice() + _twice()\n"
    )
    monkeypatch.setattr(shape, "SOURCE", tmp_path)
    (file,) = files = shape.read(tmp_path)
    assert file.num_lines == 17
    assert shape.code_lines(file) == 6
    assert shape.used_once(files) == [(2, "a.py:6 _once")]
    assert max(shape.function_lines(files)).num_lines == 2
