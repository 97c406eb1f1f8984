"""Token files: text encoded once, kept on disk, mapped into memory. Knows no torch."""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from brimful.errors import DataError, RunError
from brimful.files import write_bytes
from brimful.train.data.corpus import Corpus, Document, fingerprint, read_texts
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
TOKENIZER_FILE = "tokenizer.json"
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
    """

    schema: str
    fingerprint: str
    tokens_hash: str
    source: str
    vocab_size: int
    num_train_tokens: int
    num_heldout_tokens: int
    unigram_entropy: float


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


def prepare_tokens(corpus: Corpus, *, vocab_size: int, cache: Path) -> TokenFolder:
    """Return the encoded corpus, from the cache or made now.

    Args:
        corpus: The text.
        vocab_size: Rows of the model's embedding.
        cache: Folder in which token folders are kept, one per text and vocabulary.

    Returns:
        The folder; a folder with its final name is always complete.

    Raises:
        DataError: The text cannot be read.
        RunError: The disk is full.
    """
    key = f"{fingerprint(corpus)}-{vocab_size}"
    folder = cache / key
    cached = _read_manifest(folder, key)
    if cached is not None:
        return TokenFolder(path=folder, tokens=cached)
    temporary = cache / f".{key}.{os.getpid()}.tmp"
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        _encode(corpus, vocab_size=vocab_size, key=key, folder=temporary)
        # A damaged folder makes way; one that another process finished meanwhile is as good.
        if _read_manifest(folder, key) is None:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(FileExistsError):
                temporary.rename(folder)
    except (OSError, RunError) as error:
        raise _cache_error(cache, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    made = _read_manifest(folder, key)
    if made is None:
        raise DataError(f"{folder} changed while it was being made; delete it and start again")
    return TokenFolder(path=folder, tokens=made)


def _cache_error(cache: Path, error: OSError | RunError) -> RunError:
    # --out does not decide where this lies, so disk_error's advice would mislead.
    cause = error if isinstance(error, OSError) else error.__cause__
    reason = getattr(cause, "strerror", None) or cause
    return RunError(
        f"token files cannot be written to {cache} ({reason}); "
        f"free some space or set BRIMFUL_CACHE to another folder"
    )


def map_tokens(path: Path, *, vocab_size: int) -> "Tokens":
    """Map a token file into memory, read-only."""
    import numpy as np

    if path.stat().st_size == 0:
        return np.zeros(0, _dtype(vocab_size))
    tokens: Tokens = np.memmap(path, dtype=_dtype(vocab_size), mode="r")
    return tokens


def _encode(corpus: Corpus, *, vocab_size: int, key: str, folder: Path) -> None:
    num_chars = sum(document.num_bytes for document in corpus.train)
    tokenizer = train_tokenizer(
        read_texts(corpus.train), vocab_size=vocab_size, num_chars=num_chars
    )
    write_tokenizer(tokenizer, folder / TOKENIZER_FILE)
    num_train, tokens_hash = _write_tokens(
        tokenizer, corpus.train, folder / _TRAIN, vocab_size=vocab_size
    )
    num_heldout, _ = _write_tokens(
        tokenizer, corpus.heldout, folder / _HELDOUT, vocab_size=vocab_size
    )
    heldout = map_tokens(folder / _HELDOUT, vocab_size=vocab_size)
    manifest = TokenSet(
        schema=TOKENS_SCHEMA,
        fingerprint=key,
        tokens_hash=tokens_hash,
        source=corpus.source,
        vocab_size=vocab_size,
        num_train_tokens=num_train,
        num_heldout_tokens=num_heldout,
        unigram_entropy=unigram_entropy(heldout),
    )
    write_bytes(folder / _MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")


def _write_tokens(
    tokenizer: Any, documents: Iterable[Document], path: Path, *, vocab_size: int
) -> tuple[int, str]:
    import numpy as np

    num_tokens = 0
    digest = hashlib.blake2b(digest_size=16)
    with path.open("wb") as file:
        for ids in encode_documents(tokenizer, read_texts(documents)):
            content = np.asarray(ids, dtype=_dtype(vocab_size)).tobytes()
            file.write(content)
            digest.update(content)
            num_tokens += len(ids)
        file.flush()
        os.fsync(file.fileno())
    return num_tokens, digest.hexdigest()


def _dtype(vocab_size: int) -> "np.dtype[Any]":
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
    item_bytes = _dtype(manifest.vocab_size).itemsize
    expected = [manifest.num_train_tokens * item_bytes, manifest.num_heldout_tokens * item_bytes]
    if manifest.schema != TOKENS_SCHEMA or manifest.fingerprint != key or sizes != expected:
        return None
    return manifest
