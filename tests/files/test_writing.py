import errno

import pytest

from brimful.errors import RunError
from brimful.files.writing import cache_dir, disk_error, write_bytes, write_text


def test_a_file_is_written_with_its_folders_and_nothing_beside_it(tmp_path):
    path = tmp_path / "a" / "b" / "file.txt"
    write_text(path, "größe")
    write_text(path, "twice")
    assert path.read_text("utf-8") == "twice"
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary(tmp_path, monkeypatch):
    path = tmp_path / "file.txt"
    write_text(path, "old")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match="no space left on the disk"):
        write_bytes(path, b"new")
    assert path.read_text("utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]


def test_a_file_where_a_folder_should_be_is_said(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="cannot be written"):
        write_text(tmp_path / "file" / "inside", "x")


def test_other_errors_name_the_path_and_the_way_out(tmp_path):
    error = disk_error(tmp_path, PermissionError(errno.EACCES, "Permission denied"))
    assert str(tmp_path) in str(error)
    assert "Permission denied" in str(error)
    assert "--out" in str(error)


def test_the_cache_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("BRIMFUL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "brimful"
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("BRIMFUL_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir().parts[-2:] == (".cache", "brimful")
