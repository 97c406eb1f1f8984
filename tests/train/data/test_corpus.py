import os
import sysconfig
from pathlib import Path

import pytest

from brimful.errors import DataError
from brimful.train.data.corpus import (
    MIN_STANDARD_LIBRARY_BYTES,
    fingerprint,
    is_heldout,
    load_corpus,
    read_document,
    read_texts,
    standard_library,
)

STDLIB = Path(sysconfig.get_path("stdlib"))


@pytest.fixture(scope="module")
def library():
    return load_corpus(None)


def test_standard_library_is_big_enough_and_split_by_file(library):
    assert library.num_bytes >= MIN_STANDARD_LIBRARY_BYTES
    train = {document.name for document in library.train}
    heldout = {document.name for document in library.heldout}
    assert not train & heldout
    heldout_bytes = sum(document.num_bytes for document in library.heldout)
    assert 0.02 <= heldout_bytes / library.num_bytes <= 0.06
    assert all(is_heldout(name) for name in heldout)
    assert not any(is_heldout(name) for name in train)


def test_standard_library_is_its_sources_and_nothing_installed(library):
    names = [document.name for document in (*library.train, *library.heldout)]
    assert "ast.py" in names
    assert not [name for name in names if "site-packages" in name or "__pycache__" in name]
    assert not [name for name in names if name.startswith("_sysconfigdata")]
    assert len(names) == len(set(names))


def test_standard_library_keeps_the_order_of_names(library):
    again = standard_library(STDLIB)
    assert again == library
    assert fingerprint(again) == fingerprint(library)


def _write_library(root, sizes):
    for name, size in sizes.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)


def test_a_split_installation_is_filled_up_with_tests_then_tables(tmp_path):
    _write_library(
        tmp_path,
        {
            "ast.py": 4_000_000,
            "encodings/cp1.py": 3_000_000,
            "encodings/cp3.py": 3_000_000,
            "test/a.py": 4_000_000,
        },
    )
    corpus = standard_library(tmp_path)
    names = {document.name for document in (*corpus.train, *corpus.heldout)}
    assert names == {"ast.py", "test/a.py", "encodings/cp1.py"}


def test_too_small_a_library_says_both_sizes(tmp_path):
    _write_library(tmp_path, {"ast.py": 1_500_000})
    with pytest.raises(DataError, match=r"holds 1\.5 MB .* needs 10\.0 MB; .*--data"):
        standard_library(tmp_path)


def test_tests_in_other_encodings_are_left_out(tmp_path):
    _write_library(tmp_path, {"ast.py": 11_000_000})
    (tmp_path / "latin.py").write_bytes("# ä\n".encode("latin-1"))
    corpus = standard_library(tmp_path)
    assert {document.name for document in (*corpus.train, *corpus.heldout)} == {"ast.py"}


def test_one_file_is_cut_at_a_line_and_nothing_is_lost(tmp_path):
    path = tmp_path / "book.txt"
    text = "".join(f"line {number} äöü\n" for number in range(2000))
    path.write_text(text, "utf-8")
    corpus = load_corpus(path)
    head, tail = "".join(read_texts(corpus.train)), "".join(read_texts(corpus.heldout))
    assert head + tail == text
    assert head.endswith("\n")
    assert 0.02 <= len(tail) / len(text) <= 0.06


def test_one_file_without_lines_is_cut_between_characters(tmp_path):
    path = tmp_path / "line.txt"
    path.write_text("ä€😀" * 5000, "utf-8")
    corpus = load_corpus(path)
    assert "".join(read_texts((*corpus.train, *corpus.heldout))) == "ä€😀" * 5000
    assert corpus.heldout[0].num_bytes > 0


def test_a_folder_takes_text_files_and_leaves_hidden_ones(tmp_path):
    for name in ("a.py", "b.md", "sub/c.txt", "d.bin", ".git/e.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name * 100)
    corpus = load_corpus(tmp_path)
    names = {document.name for document in (*corpus.train, *corpus.heldout)}
    assert names == {"a.py", "b.md", "sub/c.txt"}
    assert corpus.train
    assert corpus.heldout


def test_missing_data_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.txt does not exist"):
        load_corpus(tmp_path / "nowhere.txt")


def test_a_folder_without_text_is_refused(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"1")
    with pytest.raises(DataError, match=r"holds no \.md, \.py, \.txt file"):
        load_corpus(tmp_path)


def test_empty_data_is_refused(tmp_path):
    (tmp_path / "x.txt").touch()
    with pytest.raises(DataError, match="is empty"):
        load_corpus(tmp_path)
    with pytest.raises(DataError, match="is empty"):
        load_corpus(tmp_path / "x.txt")


def test_other_encodings_are_named_with_file_and_byte(tmp_path):
    (tmp_path / "a.txt").write_text("fine\n")
    (tmp_path / "b.txt").write_bytes(b"fine \xff\n")
    with pytest.raises(DataError, match=r"b\.txt is not UTF-8 at byte 5"):
        load_corpus(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux's /proc")
def test_unreadable_data_is_named():
    # Even the superuser gets an I/O error from address 0 of a process.
    with pytest.raises(DataError, match="/proc/self/mem cannot be read"):
        load_corpus(Path("/proc/self/mem"))


def test_a_file_that_changes_is_noticed(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\n" * 100)
    corpus = load_corpus(path)
    os.truncate(path, 10)
    with pytest.raises(DataError, match="changed while it was being read"):
        read_document(corpus.heldout[0])


def test_the_fingerprint_sees_content_and_names(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\n" * 100)
    before = fingerprint(load_corpus(path))
    path.write_text("two\n" * 100)
    after = fingerprint(load_corpus(path))
    path.rename(tmp_path / "b.txt")
    renamed = fingerprint(load_corpus(tmp_path / "b.txt"))
    assert len({before, after, renamed}) == 3
