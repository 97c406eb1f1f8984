"""A recording survives its file, a million events stay small, and a wrong file is one sentence."""

import io
import random
import zipfile
from dataclasses import fields, replace

import numpy as np
import pytest

from brimful.errors import FileFormatError, InputError, RunError
from brimful.pretend.recording import OpCost
from brimful.pretend.tape_file import load_recording, save_recording

from .recordings import long_run, small_run

LIMIT_BYTES = 100e6
COSTS = (OpCost(3, 1, "aten.mm.default", 10**15, 0, ()), OpCost(4, 1, "aten.add", 0, 7, (1, 2)))


def equal(one, other):
    for field in fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype, field.name
            assert np.array_equal(a, b), field.name
        else:
            assert a == b, field.name
    return True


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "tape.npz"
    save_recording(small_run(), path)
    return path


def rewritten(path, **changed):
    """Replace members of the archive; None drops one."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files} | changed
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_a_recording_comes_back_as_it_was(tmp_path):
    recording = replace(small_run(), costs=COSTS, lines=("", "é.py:3", "x\n", "]", "}", "\\", ","))
    save_recording(recording, tmp_path / "tape.npz")
    assert equal(load_recording(tmp_path / "tape.npz"), recording)


def test_an_empty_recording_comes_back(tmp_path):
    recording = long_run(0)
    save_recording(recording, tmp_path / "tape.npz")
    assert equal(load_recording(tmp_path / "tape.npz"), recording)


def test_a_million_events_stay_below_100_mb(tmp_path):
    recording = long_run(1_000_000)
    columns = [getattr(recording, field.name) for field in fields(recording)]
    in_memory = sum(column.nbytes for column in columns if isinstance(column, np.ndarray))
    path = tmp_path / "tape.npz"
    save_recording(recording, path)
    assert in_memory < LIMIT_BYTES
    assert path.stat().st_size < LIMIT_BYTES
    assert equal(load_recording(path), recording)


def test_a_million_events_that_are_all_allocations_stay_below_100_mb():
    # The worst a tape can be: nothing is ever freed, so that every event is a row.
    row_bytes = sum(
        column.itemsize
        for column in (getattr(small_run(), field.name) for field in fields(small_run()))
        if isinstance(column, np.ndarray) and len(column) == len(small_run().num_bytes)
    )
    assert 1e6 * (row_bytes + 8) < LIMIT_BYTES


def test_numpy_alone_can_read_it(saved):
    with np.load(saved, allow_pickle=False) as file:
        assert np.array_equal(file["events"], small_run().events)


def test_no_array_holds_objects(saved):
    with np.load(saved, allow_pickle=False) as file:
        assert all(not file[name].dtype.hasobject for name in file.files)


# -- wrong files --


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        load_recording(tmp_path / "none.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY", b"\x80\x04N.", b"text"])
def test_a_file_of_something_else(tmp_path, content):
    path = tmp_path / "tape.npz"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="give one saved by brimful"):
        load_recording(path)


def test_another_archive_of_arrays(tmp_path):
    np.savez(tmp_path / "tape.npz", weights=np.zeros(3))
    with pytest.raises(FileFormatError, match="an npz file and no recording"):
        load_recording(tmp_path / "tape.npz")


def test_an_archive_with_a_pickle_in_it_is_not_unpickled(saved):
    content = io.BytesIO()
    np.lib.format.write_array(content, np.array([print], dtype=object), allow_pickle=True)
    rewritten(saved, op=None)
    with zipfile.ZipFile(saved, "a") as archive:
        archive.writestr("op.npy", content.getvalue())
    with pytest.raises(FileFormatError, match="cannot be read as a recording"):
        load_recording(saved)


def test_another_version_says_both(saved):
    with np.load(saved) as file:
        texts = file["texts"].tobytes().replace(b"brimful.tape/1", b"brimful.tape/2")
    rewritten(saved, texts=np.frombuffer(texts, dtype=np.uint8))
    with pytest.raises(FileFormatError, match=r"'brimful\.tape/2' and this version"):
        load_recording(saved)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"op": None}, "column op is missing"),
        ({"op": np.zeros(14)}, "column op is float64"),
        ({"op": np.zeros((14, 2), np.int32)}, "2 dimensions"),
        ({"op": np.zeros(3, np.int32)}, "column op has 3 rows of 14"),
        ({"op": np.full(14, 999, np.int32)}, "column op points outside"),
        ({"events": np.array([99])}, "an event is of none of the 14 rows"),
        ({"died": np.full(14, 10**6)}, "born or died at none"),
        ({"phase_starts": np.zeros(1, np.int64)}, "1 starts of 4 phases"),
        ({"texts": np.frombuffer(b"{]", dtype=np.uint8)}, "damaged"),
        ({"texts": np.frombuffer(b'{"schema":"brimful.tape/1"}', dtype=np.uint8)}, "missing"),
    ],
)
def test_columns_that_do_not_fit_together(saved, changed, words):
    rewritten(saved, **changed)
    with pytest.raises(FileFormatError, match=words):
        load_recording(saved)


def test_any_wrong_byte_is_found_or_does_no_harm(saved):
    rng = random.Random(0)  # noqa: S311 - no secret
    whole, found = saved.read_bytes(), 0
    for _ in range(300):
        broken = bytearray(whole)
        broken[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        saved.write_bytes(broken[: rng.choice([len(whole), rng.randrange(len(whole))])])
        try:
            assert equal(load_recording(saved), small_run())
        except FileFormatError:
            found += 1
    assert found > 250


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"):
        save_recording(small_run(), tmp_path / "file" / "tape.npz")
