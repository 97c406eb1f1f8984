"""Which text is trained on, and which files of it are held out. Knows no tokenizer and no torch."""

import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from brimful.errors import DataError
from brimful.units import MIB

MIN_STANDARD_LIBRARY_BYTES = 10_000_000
HELDOUT_PERMILLE = 55
"""5.5 % of the files (4 % of the standard library's bytes) or of one file's bytes."""

USER_SUFFIXES = (".md", ".py", ".txt")
_FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__"})
_TESTS = frozenset({"test", "tests", "idle_test"})
_TABLES = "encodings"
_BUILD_RECORD = "_sysconfigdata"


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of one file; it starts and stops between characters.

    Attributes:
        name: Path relative to the corpus, with forward slashes.
        path: Where the file is.
        start_byte: First byte of the stretch.
        stop_byte: The byte after its last one.
    """

    name: str
    path: Path
    start_byte: int
    stop_byte: int

    @property
    def num_bytes(self) -> int:
        """Length of the stretch."""
        return self.stop_byte - self.start_byte


class Corpus(msgspec.Struct, frozen=True, kw_only=True):
    """Text to train on and text to judge by; no file is in both (one file is cut in two).

    Attributes:
        source: Where it comes from, in words.
        train: Documents to train on, in a fixed order.
        heldout: Documents that no optimizer step sees.
    """

    source: str
    train: tuple[Document, ...]
    heldout: tuple[Document, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all documents."""
        return sum(document.num_bytes for document in (*self.train, *self.heldout))


def load_corpus(data: Path | None) -> Corpus:
    """Find the text to train on.

    ``data``: a UTF-8 text file or a folder of .md, .py and .txt files; None takes the sources of
    the Python standard library that runs this program. Returns the documents; their text stays on
    disk.
    """
    if data is None:
        return standard_library(Path(sysconfig.get_path("stdlib")))
    if data.is_dir():
        return _split(str(data), _user_documents(data))
    if data.exists():
        return _split(str(data), [_whole(data.name, data, _read_bytes(data))])
    raise DataError(f"--data {data} does not exist; give a UTF-8 text file or a folder of them")


def standard_library(root: Path) -> Corpus:
    """Take the standard library's own sources, the same ones on every installation of a release.

    The library proper is always taken whole. Installations that ship it in pieces (Debian) are
    filled up to ``MIN_STANDARD_LIBRARY_BYTES`` with its tests, then with its encoding tables, as
    far as they are there.

    ``root``: the ``stdlib`` folder of an interpreter.
    """
    documents: list[Document] = []
    total_bytes = 0
    for tier, paths in enumerate(_tiers(root)):
        for path in paths:
            if tier and total_bytes >= MIN_STANDARD_LIBRARY_BYTES:
                break
            content = _read_bytes(path)
            # A few of the library's tests are written in other encodings on purpose.
            if _bad_byte(content) is None and content:
                documents.append(_whole(path.relative_to(root).as_posix(), path, content))
                total_bytes += len(content)
    if total_bytes < MIN_STANDARD_LIBRARY_BYTES:
        raise DataError(
            f"{root} holds {total_bytes / 1e6:.1f} MB of Python sources and training needs "
            f"{MIN_STANDARD_LIBRARY_BYTES / 1e6:.1f} MB; give text of your own with --data"
        )
    version = ".".join(map(str, sys.version_info[:3]))
    return _split(f"the standard library of Python {version}", documents)


def read_document(document: Document) -> str:
    """Read the text of a document."""
    content = _read_bytes(document.path)[document.start_byte : document.stop_byte]
    if len(content) != document.num_bytes or _bad_byte(content) is not None:
        raise DataError(f"{document.path} changed while it was being read; start again")
    return content.decode()


def read_texts(documents: Iterable[Document]) -> Iterator[str]:
    """Read documents one after the other; one of them is in memory at a time."""
    return map(read_document, documents)


def fingerprint(corpus: Corpus) -> str:
    """Hash names, contents and the split, so that changed data is noticed."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (corpus.train, corpus.heldout):
        for document in part:
            text = read_document(document).encode()
            digest.update(f"{document.name}\0{len(text)}\0".encode())
            digest.update(text)
        digest.update(b"\0heldout\0")
    return digest.hexdigest()


def _tiers(root: Path) -> tuple[list[Path], list[Path], list[Path]]:
    library: list[Path] = []
    tests: list[Path] = []
    tables: list[Path] = []
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).as_posix()):
        parts = path.relative_to(root).parts
        if _FOREIGN & set(parts) or parts[0].startswith(_BUILD_RECORD) or not path.is_file():
            continue
        is_test = bool(_TESTS & set(parts[:-1]))
        tier = tests if is_test else tables if parts[0] == _TABLES else library
        tier.append(path)
    return library, tests, tables


def _user_documents(root: Path) -> list[Document]:
    paths = [
        path
        for path in root.rglob("*")
        if path.suffix in USER_SUFFIXES
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(root).parts)
    ]
    if not paths:
        raise DataError(f"--data {root} holds no {', '.join(USER_SUFFIXES)} file; give another")
    names = sorted((path.relative_to(root).as_posix(), path) for path in paths)
    return [_whole(name, path, _read_bytes(path)) for name, path in names]


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the file") from error


def _bad_byte(content: bytes) -> int | None:
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


def _whole(name: str, path: Path, content: bytes) -> Document:
    bad_byte = _bad_byte(content)
    if bad_byte is not None:
        raise DataError(f"{path} is not UTF-8 at byte {bad_byte}; convert it or leave it out")
    return Document(name=name, path=path, start_byte=0, stop_byte=len(content))


def _split(source: str, documents: list[Document]) -> Corpus:
    """Hold out by file; where the hash would take none or all, by the tail of the longest file."""
    documents = [document for document in documents if document.num_bytes]
    if not documents:
        raise DataError(f"--data {source} is empty; give a file with text in it")
    heldout = [document for document in documents if is_heldout(document.name)]
    train = [document for document in documents if not is_heldout(document.name)]
    if not heldout or not train:
        longest = max(documents, key=lambda document: document.num_bytes)
        content = _read_bytes(longest.path)
        target = longest.num_bytes * (1000 - HELDOUT_PERMILLE) // 1000
        newline = content.rfind(b"\n", max(0, target - MIB), target)
        cut = newline + 1 if newline >= 0 else _character_start(content, target)
        head, tail = (
            msgspec.structs.replace(longest, stop_byte=cut),
            msgspec.structs.replace(longest, start_byte=cut),
        )
        train = [head if document is longest else document for document in documents]
        heldout = [tail]
    return Corpus(source=source, train=tuple(train), heldout=tuple(heldout))


def is_heldout(name: str) -> bool:
    """Say whether a file is held out; depends on its relative path and nothing else."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 1000 < HELDOUT_PERMILLE


def _character_start(content: bytes, position: int) -> int:
    # Continuation bytes of UTF-8 are 10xxxxxx.
    while position and content[position] & 0xC0 == 0x80:  # noqa: PLR2004 - the bits just named
        position -= 1
    return position
