"""Byte-level BPE, trained on the text that is trained on. Any text can be written with it."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.errors import FileFormatError, InputError
from brimful.files.writing import write_text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

END_OF_TEXT = "<|endoftext|>"
HIDDEN = "<|mask|>"
"""What stands in the place of a token that is hidden."""
NUM_BYTES = 256
MAX_SAMPLE_CHARS = 12_000_000
"""Merges are learnt from no more text than this, taken evenly from the whole."""

_PIECE_CHARS = 1 << 18
_PIECES_PER_CALL = 16


def train_tokenizer(
    texts: Iterable[str], *, vocab_size: int, num_chars: int, hides: bool = False
) -> Any:
    """Learn merges; the same texts give the same merges.

    ``vocab_size``: rows of the model's embedding; the vocabulary is at most this. ``num_chars``:
    about how long the texts are together; decides how thinly they are sampled. ``hides``: whether
    tokens are hidden by a token of their own. Returns a ``tokenizers.Tokenizer`` that knows all 256
    bytes and ``<|endoftext|>``.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab_size <= NUM_BYTES:
        raise InputError(
            f"vocab_size={vocab_size} cannot hold the {NUM_BYTES} bytes and {END_OF_TEXT}; "
            f"use {NUM_BYTES + 1} or more"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[END_OF_TEXT, HIDDEN] if hides else [END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    keep_one_in = max(1, -(-num_chars // MAX_SAMPLE_CHARS))
    pieces = (piece for text in texts for piece in split_text(text))
    tokenizer.train_from_iterator(islice(pieces, 0, None, keep_one_in), trainer)
    # A text that spells the marker out is text: only ``encode_documents`` ends documents.
    tokenizer.encode_special_tokens = True
    return tokenizer


def encode_documents(tokenizer: Any, texts: Iterable[str]) -> Iterator[list[int]]:
    """Turn texts into token ids, each text followed by the end-of-text token.

    ``tokenizer``: as ``train_tokenizer`` returns it. ``texts``: whole documents; a long one is
    encoded in pieces that end with a line. Yields ids in order; where one list ends says nothing.
    """
    end = tokenizer.token_to_id(END_OF_TEXT)
    pieces = ((piece, last) for text in texts for piece, last in _mark_last(split_text(text)))
    while group := list(islice(pieces, _PIECES_PER_CALL)):
        encoded = tokenizer.encode_batch_fast([piece for piece, _ in group])
        for (_, is_last), piece in zip(group, encoded, strict=True):
            yield piece.ids
            if is_last:
                yield [end]


def split_text(text: str) -> Iterator[str]:
    """Cut a text into pieces of bounded length, after a line end where there is one."""
    start = 0
    while len(text) - start > _PIECE_CHARS:
        newline = text.rfind("\n", start, start + _PIECE_CHARS)
        stop = newline + 1 if newline >= 0 else start + _PIECE_CHARS
        yield text[start:stop]
        start = stop
    yield text[start:]


def _mark_last(pieces: Iterator[str]) -> Iterator[tuple[str, bool]]:
    previous = next(pieces)
    for piece in pieces:
        yield previous, False
        previous = piece
    yield previous, True


def write_tokenizer(tokenizer: Any, path: Path) -> None:
    """Write ``tokenizer.json``, atomically."""
    write_text(path, tokenizer.to_str(pretty=True))


def read_tokenizer(path: Path) -> Any:
    """Read ``tokenizer.json``."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise FileFormatError(f"{path} is not a tokenizer ({error}); delete it") from error
    tokenizer.encode_special_tokens = True
    return tokenizer


def hiding_words(tokenizer: Any) -> dict[str, str]:
    """Return what ``transformers`` is told of the token that hides others, where there is one."""
    return {} if tokenizer.token_to_id(HIDDEN) is None else {"mask_token": HIDDEN}


def unigram_entropy(tokens: "npt.NDArray[np.unsignedinteger[Any]]") -> float:
    """Entropy of the tokens under their own frequencies: H = -sum p ln p.

    This is the lowest loss that any model without context can reach on these tokens. The
    frequencies of the training text would give a cross-entropy, which is never lower (Gibbs), so
    this is the harder bar; a model below it has learnt to use context.

    Returns nats per token; 0 for no tokens.
    """
    import numpy as np

    counts = np.bincount(np.asarray(tokens).ravel())
    counts = counts[counts > 0]
    if not len(counts):
        return 0.0
    frequencies = counts / counts.sum()
    return float(-(frequencies * np.log(frequencies)).sum()) + 0.0
