"""Token files: text encoded once, kept on disk, mapped into memory. Knows no torch."""

import errno
import functools
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from brimful.errors import DataError, InputError, RunError
from brimful.files.writing import write_text
from brimful.text.escaping import json_text
from brimful.train.data.coder import TOKENIZER_FILE, Coder, code_documents
from brimful.train.data.corpus import Corpus, fingerprint, read_texts
from brimful.train.data.records import Skipped
from brimful.train.data.tokenizer import (
    encode_documents,
    read_tokenizer,
    train_tokenizer,
    unigram_entropy,
    write_tokenizer,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Tokens = npt.NDArray[np.unsignedinteger[Any]]

TOKENS_SCHEMA = "brimful.tokens/1"
_MANIFEST = "tokens.json"
_TRAIN = "train.bin"
_HELDOUT = "heldout.bin"


class TokenSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a folder of token files holds.

    Attributes:
        schema: ``TOKENS_SCHEMA``.
        fingerprint: Hash of the text, the split and the vocabulary.
        tokens_hash: Hash of the training tokens themselves: what a resumed run must find again.
        source: Where the text comes from, in words.
        vocab_size: Largest vocabulary that was allowed; decides the element type of the files.
        num_train_tokens: Tokens to train on.
        num_heldout_tokens: Tokens to judge by.
        unigram_entropy: Of the held-out tokens, in nats per token.
        skipped: Records that were left out; caches from before there were records have none.
    """

    schema: str
    fingerprint: str
    tokens_hash: str
    source: str
    vocab_size: int
    num_train_tokens: int
    num_heldout_tokens: int
    unigram_entropy: float
    skipped: tuple[Skipped, ...] = ()


class TokenFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A token set and where it lies."""

    path: Path
    tokens: TokenSet

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer that wrote it."""
        return self.path / TOKENIZER_FILE

    def train(self) -> "Tokens":
        """Map the training tokens."""
        return map_tokens(self.path / _TRAIN, vocab_size=self.tokens.vocab_size)

    def heldout(self) -> "Tokens":
        """Map the held-out tokens."""
        return map_tokens(self.path / _HELDOUT, vocab_size=self.tokens.vocab_size)


class Texts(msgspec.Struct, frozen=True, kw_only=True):
    """Text to encode, as often as it is asked for.

    Attributes:
        source: Where it comes from, in words.
        fingerprint: Hash of the text and the split.
        num_chars: Counts about how long the training text is.
        train: Reads the documents to train on.
        heldout: Reads those to judge by.
        skipped: Says what ``train`` left out, once it was read to its end.
    """

    source: str
    fingerprint: str
    num_chars: Callable[[], int]
    train: Callable[[], Iterator[str]]
    heldout: Callable[[], Iterator[str]]
    skipped: Callable[[], tuple[Skipped, ...]]


def corpus_texts(corpus: Corpus) -> Texts:
    """Return the documents of a corpus."""
    return Texts(
        source=corpus.source,
        fingerprint=fingerprint(corpus),
        num_chars=lambda: sum(document.num_bytes for document in corpus.train),
        train=lambda: read_texts(corpus.train),
        heldout=lambda: read_texts(corpus.heldout),
        skipped=tuple,
    )


def prepare_tokens(corpus: Corpus, *, vocab_size: int, cache: Path) -> TokenFolder:
    """Return the encoded corpus, by a tokenizer that is trained on it; see ``prepare_texts``."""
    return prepare_texts(corpus_texts(corpus), None, vocab_size=vocab_size, cache=cache)


def prepare_texts(
    texts: Texts, coder: Coder | None, *, vocab_size: int, cache: Path, hides: bool = False
) -> TokenFolder:
    """Return the encoded texts, from the cache or made now.

    ``coder``: the tokenizer; None: one is trained on the text. ``cache``: folder in which token
    folders are kept, one per text, tokenizer and vocabulary. ``hides``: whether a tokenizer that is
    trained has a token by which others are hidden. Returns the folder; a folder with its
    final name is always complete. Raises DataError: the text cannot be read. Raises RunError: the
    disk is full.
    """
    key = f"{texts.fingerprint}-{vocab_size}"
    own = f"{key}-hides" if hides else key
    key = own if coder is None else f"{key}-{coder.identity()}"

    def make(folder: Path) -> None:
        used = coder or _train(texts, vocab_size=vocab_size, hides=hides)
        _encode(texts, used, vocab_size=vocab_size, key=key, folder=folder)

    folder, tokens = cached_folder(cache, key, make=make, read=_read_manifest)
    return TokenFolder(path=folder, tokens=tokens)


Manifest = TypeVar("Manifest")


def cached_folder(
    cache: Path,
    key: str,
    *,
    make: Callable[[Path], None],
    read: Callable[[Path, str], Manifest | None],
) -> tuple[Path, Manifest]:
    """Return a folder of the cache, made now where it is not there or not whole.

    ``make``: fills a folder that is given its name only when it is whole. ``read``: reads a
    folder's manifest; None where it is not whole. Raises RunError: the disk is full.
    """
    folder = cache / key
    cached = read(folder, key)
    if cached is not None:
        return folder, cached
    temporary = cache / f".{key}.{os.getpid()}.tmp"
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        make(temporary)
        # A damaged folder makes way; one that another process finished meanwhile is as good.
        if read(folder, key) is None:
            shutil.rmtree(folder, ignore_errors=True)
            _rename_if_free(temporary, folder)
    except (OSError, RunError) as error:
        # --out does not decide where this lies, so disk_error's advice would mislead.
        cause = error if isinstance(error, OSError) else error.__cause__
        reason = getattr(cause, "strerror", None) or cause
        raise RunError(
            f"token files cannot be written to {cache} ({reason}); "
            f"free some space or set BRIMFUL_CACHE to another folder"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    made = read(folder, key)
    if made is None:
        raise DataError(f"{folder} changed while it was being made; delete it and start again")
    return folder, made


def _rename_if_free(temporary: Path, folder: Path) -> None:
    """Give a finished folder its name, unless another process was first."""
    try:
        temporary.rename(folder)
    except OSError as error:
        if error.errno not in {errno.EEXIST, errno.ENOTEMPTY}:
            raise


def map_tokens(path: Path, *, vocab_size: int) -> "Tokens":
    """Map a token file into memory, read-only."""
    import numpy as np

    if path.stat().st_size == 0:
        return np.zeros(0, token_dtype(vocab_size))
    tokens: Tokens = np.memmap(path, dtype=token_dtype(vocab_size), mode="r")
    return tokens


def _train(texts: Texts, *, vocab_size: int, hides: bool) -> Any:
    return train_tokenizer(
        texts.train(), vocab_size=vocab_size, num_chars=texts.num_chars(), hides=hides
    )


def _encode(texts: Texts, used: Any, *, vocab_size: int, key: str, folder: Path) -> None:
    """Write a folder; ``used``: a model's tokenizer, or one that was trained on the texts."""
    encode: Callable[[Iterable[str]], Iterator[list[int]]]
    if isinstance(used, Coder):
        used.save(folder)
        encode = functools.partial(code_documents, used)
    else:
        write_tokenizer(used, folder / TOKENIZER_FILE)
        encode = functools.partial(encode_documents, used)
    num_train, tokens_hash = _write_tokens(
        encode(texts.train()), folder / _TRAIN, vocab_size=vocab_size
    )
    skipped = texts.skipped()
    num_heldout, _ = _write_tokens(
        encode(texts.heldout()), folder / _HELDOUT, vocab_size=vocab_size
    )
    heldout = map_tokens(folder / _HELDOUT, vocab_size=vocab_size)
    manifest = TokenSet(
        schema=TOKENS_SCHEMA,
        fingerprint=key,
        tokens_hash=tokens_hash,
        source=texts.source,
        vocab_size=vocab_size,
        num_train_tokens=num_train,
        num_heldout_tokens=num_heldout,
        unigram_entropy=unigram_entropy(heldout),
        skipped=skipped,
    )
    write_text(folder / _MANIFEST, json_text(manifest, indent=2) + "\n")


def _write_tokens(encoded: Iterable[list[int]], path: Path, *, vocab_size: int) -> tuple[int, str]:
    import numpy as np

    num_tokens = 0
    digest = hashlib.blake2b(digest_size=16)
    with path.open("wb") as file:
        for ids in encoded:
            check_tokens(ids, vocab_size)
            content = np.asarray(ids, dtype=token_dtype(vocab_size)).tobytes()
            file.write(content)
            digest.update(content)
            num_tokens += len(ids)
        file.flush()
        os.fsync(file.fileno())
    return num_tokens, digest.hexdigest()


def check_tokens(ids: list[int], vocab_size: int) -> None:
    """Refuse a token that the model has no row for."""
    if ids and max(ids) >= vocab_size:
        raise InputError(
            f"the tokenizer writes token {max(ids)} and the model has vocab_size={vocab_size} "
            f"rows; use the model's own tokenizer, or --vocab-size {max(ids) + 1} or more"
        )


def token_dtype(vocab_size: int) -> "np.dtype[Any]":
    """Return the element type of token files."""
    import numpy as np

    # Little-endian on every machine, so that a folder can be copied.
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def _read_manifest(folder: Path, key: str) -> TokenSet | None:
    """Read a folder's manifest; None where it is missing, broken, or not what the files hold."""
    try:
        manifest = msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=TokenSet)
        sizes = [(folder / name).stat().st_size for name in (_TRAIN, _HELDOUT)]
        read_tokenizer(folder / TOKENIZER_FILE)
    except (OSError, ValueError):
        return None
    item_bytes = token_dtype(manifest.vocab_size).itemsize
    expected = [manifest.num_train_tokens * item_bytes, manifest.num_heldout_tokens * item_bytes]
    if manifest.schema != TOKENS_SCHEMA or manifest.fingerprint != key or sizes != expected:
        return None
    return manifest
