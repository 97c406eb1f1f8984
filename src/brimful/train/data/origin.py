"""Which files or data set a source means, and their records, as often as they are asked for."""

import hashlib
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from brimful.errors import DataError
from brimful.train.data.corpus import (
    USER_SUFFIXES,
    Corpus,
    Document,
    load_corpus,
    read_document,
    standard_library,
)
from brimful.train.data.readers import READERS, SUFFIXES
from brimful.train.data.readers.base import COMPRESSED, Needs, open_bytes
from brimful.train.data.readers.data_sets import (
    identity,
    is_saved,
    open_hub,
    open_saved,
    read_data_set,
)
from brimful.train.data.records import Broken, Record
from brimful.train.data.source import STDLIB, DataSource
from brimful.units import MIB
from brimful.values.job import Task

Items = Iterator[Record | Broken]

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_ABOUT = ("readme", "license", "licence", "notice", "changelog", "citation")
TEXT_FIELD = "text"
_NUM_OPENED = 100
"""Files of a folder that are opened at once to see whether they can be."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Records to train on, and perhaps others to judge by.

    Attributes:
        words: Where they come from, for people.
        read: Reads the records to train on, from the first.
        read_heldout: Reads those to judge by; None: a share of the others is to be held out.
        fingerprint: Hashes what is read; with True only names and sizes, which is quick.
        is_text: Whether the records are documents of plain text, in the field ``text``.
    """

    words: str
    read: Callable[[], Items]
    read_heldout: Callable[[], Items] | None
    fingerprint: Callable[[bool], str]
    is_text: bool


def open_origin(source: DataSource, needs: Needs) -> Origin:
    """Find what a source means; reads no record yet.

    ``needs``: fields that records must have. Raises DataError: there is nothing, or nothing of use.
    """
    origin = _open(source, needs)
    if source.heldout is None:
        return origin
    alone = msgspec.structs.replace(source, path=source.heldout, heldout=None)
    judged = _open(alone, needs)
    return msgspec.structs.replace(
        origin,
        read=_all_of(origin),
        read_heldout=_all_of(judged),
        fingerprint=lambda quick: f"{origin.fingerprint(quick)}-{judged.fingerprint(quick)}",
    )


def check_present(source: DataSource, task: Task) -> None:
    """Refuse a source that names nothing, or nothing to read, before anything is done for it.

    ``task``: what is trained; a module brings data of its own. Raises DataError: there is no such
    file or folder, it is empty, or it cannot be read.
    """
    if task == "module":
        return
    for path in filter(None, (source.path, source.heldout)):
        format_ = _format(msgspec.structs.replace(source, path=path))
        if path != STDLIB and format_ != "datasets":
            _check_readable(Path(path))


def _check_readable(path: Path) -> None:
    """Refuse what holds no byte, or has a file that cannot be opened."""
    try:
        if path.is_dir():
            next(path.iterdir(), None)  # rglob passes over what it must not read
        found = _visible(path) if path.is_dir() else [path]
        for file in found[:_NUM_OPENED]:
            file.open("rb").close()
        is_empty = not any(file.stat().st_size for file in found)
    except OSError as error:
        place, reason = error.filename or path, error.strerror
        raise DataError(f"--data {place} cannot be read ({reason}); check the file") from error
    if is_empty:
        what = "holds no file with anything in it" if path.is_dir() else "is empty"
        raise DataError(f"--data {path} {what}; give a file with text or records in it")


def text_corpus(source: DataSource) -> Corpus | None:
    """Return the documents of a source of plain text; None for any other."""
    if source.path == STDLIB:
        return standard_library(Path(sysconfig.get_path("stdlib")))
    if _format(source) != "text":
        return None
    return load_corpus(Path(source.path))


def _open(source: DataSource, needs: Needs) -> Origin:
    corpus = text_corpus(source)
    if corpus is not None:
        return Origin(
            words=corpus.source,
            read=lambda: _read_documents(corpus.train),
            read_heldout=lambda: _read_documents(corpus.heldout),
            fingerprint=lambda quick: _hash_corpus(corpus, quick=quick),
            is_text=True,
        )
    if _format(source) != "datasets":
        return _of_files(source, needs)
    return _of_data_set(source, needs)


def _all_of(origin: Origin) -> Callable[[], Items]:
    def read() -> Items:
        yield from origin.read()
        if origin.read_heldout is not None:
            yield from origin.read_heldout()

    return read


def _format(source: DataSource) -> str:
    if source.path == STDLIB:
        return "text"
    path = Path(source.path)
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DataError(f"--data {path} is a pipe or a device and is not read; give a file")
    if not path.exists():
        if source.format == "datasets" or (
            source.format == "auto" and _HUB_NAME.fullmatch(source.path) and not _suffix(path)
        ):
            return "datasets"
        raise DataError(
            f"--data {path} does not exist; give a UTF-8 text file, a .jsonl, .json, .csv or "
            f".parquet file, a folder of them, or a data set's name"
        )
    if path.is_dir() and is_saved(path) and source.format in ("auto", "datasets"):
        return "datasets"
    if source.format != "auto":
        return source.format
    return _format_of_folder(path) if path.is_dir() else SUFFIXES.get(_suffix(path), "text")


def _format_of_folder(folder: Path) -> str:
    """Tell records from text by what most clearly is data; a README beside it is none."""
    paths = _visible(folder)
    found = {SUFFIXES[_suffix(path)] for path in paths if _suffix(path) in SUFFIXES}
    texts = [path for path in paths if path.suffix in USER_SUFFIXES and not _is_about(path)]
    # Settings and the like are .json too, so that among text such files say nothing.
    records = found - {"json"} or (found if not texts else set())
    if not records:
        return "text"
    if texts or len(records) > 1:
        kinds = ", ".join([*sorted(records), *(["text"] if texts else [])])
        raise DataError(
            f"--data {folder} holds files of {1 + len(records) - (not texts)} kinds ({kinds}); "
            f"choose one with --data-format"
        )
    return records.pop()


def _is_about(path: Path) -> bool:
    return path.stem.lower().startswith(_ABOUT)


def _suffix(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def _visible(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _read_documents(documents: Iterable[Document]) -> Items:
    for document in documents:
        yield Record({TEXT_FIELD: read_document(document)}, document.name)


def _hash_corpus(corpus: Corpus, *, quick: bool) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in (corpus.train, corpus.heldout):
        for document in part:
            digest.update(f"{document.name}\0{document.num_bytes}\0".encode())
            if not quick:
                digest.update(read_document(document).encode())
        digest.update(b"\0heldout\0")
    return digest.hexdigest()


def _of_files(source: DataSource, needs: Needs) -> Origin:
    path, format_ = Path(source.path), _format(source)
    paths = [path]
    if path.is_dir():
        paths = [found for found in _visible(path) if SUFFIXES.get(_suffix(found)) == format_]
    if not paths:
        raise DataError(f"--data {path} holds no {format_} file; give another, or --data-format")
    names = [(found, found.relative_to(path.parent).as_posix()) for found in paths]

    def read() -> Items:
        for found, name in names:
            yield from READERS[format_](found, name, needs)

    return Origin(
        words=source.path,
        read=read,
        read_heldout=None,
        fingerprint=lambda quick: _hash_files(names, quick=quick),
        is_text=False,
    )


def _hash_files(names: Iterable[tuple[Path, str]], *, quick: bool) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path, name in names:
        with open_bytes(path):
            digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        if not quick:
            with path.open("rb") as file:
                while content := file.read(MIB):
                    digest.update(content)
    return digest.hexdigest()


def _of_data_set(source: DataSource, needs: Needs) -> Origin:
    is_folder = Path(source.path).exists()
    opened = open_saved(source) if is_folder else open_hub(source)
    name = f"{source.path}[{source.split}]"

    def fingerprint(_quick: bool) -> str:  # noqa: FBT001 - the library knows one way only
        words = f"{source.path}\0{source.config}\0{source.split}\0{identity(opened)}"
        return hashlib.blake2b(words.encode(), digest_size=16).hexdigest()

    return Origin(
        words=name,
        read=lambda: read_data_set(opened, name, needs),
        read_heldout=None,
        fingerprint=fingerprint,
        is_text=False,
    )
