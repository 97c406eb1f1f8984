"""Samples of a data set, from the cache or made now. Knows no torch."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from brimful.errors import DataError
from brimful.files.writing import write_text
from brimful.text.escaping import json_text
from brimful.train.data.coder import TOKENIZER_FILE, Coder
from brimful.train.data.encoders.base import Encoder
from brimful.train.data.encoding import Split, encode_parsed, parsed_records
from brimful.train.data.origin import Origin
from brimful.train.data.records import Skipped, Tally, describe_skipped
from brimful.train.data.samples import (
    SAMPLE_FILES,
    SampleFile,
    Written,
    file_bytes,
    map_samples,
    write_samples,
)
from brimful.train.data.source import DataSource
from brimful.train.data.tokenizer import read_tokenizer, unigram_entropy
from brimful.train.data.tokens import cached_folder

SAMPLES_SCHEMA = "brimful.samples/1"
_MANIFEST = "samples.json"
_TRAIN, _HELDOUT = "train", "heldout"
_MAX_COUNTED = 1 << 24
"""Labels whose frequencies are counted; a million times more say the same."""


class SampleSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a folder of samples holds.

    Attributes:
        schema: ``SAMPLES_SCHEMA``.
        fingerprint: Hash of the records and of how they were read.
        source: Where they come from, in words.
        vocab_size: Decides the element type of the files.
        train: Samples to train on.
        heldout: Samples to judge by.
        num_truncated: Samples of which something was cut away.
        skipped: Records that were left out.
        unigram_entropy: Of the held-out labels, in nats per label.
    """

    schema: str
    fingerprint: str
    source: str
    vocab_size: int
    train: Written
    heldout: Written
    num_truncated: int
    skipped: tuple[Skipped, ...]
    unigram_entropy: float


class SampleFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A set of samples and where it lies."""

    path: Path
    samples: SampleSet

    def train(self) -> SampleFile:
        """Map the samples to train on."""
        return map_samples(self.path / _TRAIN, vocab_size=self.samples.vocab_size)

    def heldout(self) -> SampleFile:
        """Map the samples to judge by."""
        return map_samples(self.path / _HELDOUT, vocab_size=self.samples.vocab_size)


class SampleRecipe(msgspec.Struct, frozen=True, kw_only=True):
    """What samples are made of, and how.

    Attributes:
        origin: The records.
        encoder: How they become samples.
        coder: Makes or opens the tokenizer; asked only where the samples are not cached.
        coder_identity: What stands for that tokenizer.
        choose_split: Tells held-out records; asked only where the samples are not cached.
        source: How records are read.
        task: The job's task.
        seq_len: The longest sample.
        vocab_size: Rows of the model's embedding.
    """

    origin: Origin
    encoder: Encoder
    coder: Callable[[], Coder]
    coder_identity: str
    choose_split: Callable[[], Split]
    source: DataSource
    task: str
    seq_len: int
    vocab_size: int

    def key(self) -> str:
        """Name the folder of these samples."""
        encoder = self.encoder
        settings = msgspec.json.encode(
            (self.source, self.task, self.seq_len, encoder.needs, encoder.identity)
        )
        digest = hashlib.blake2b(settings, digest_size=8).hexdigest()
        return f"{self.origin.fingerprint(False)}-{self.vocab_size}-{self.coder_identity}-{digest}"


def prepare_samples(recipe: SampleRecipe, *, cache: Path) -> SampleFolder:
    """Return the samples of a recipe, from the cache or made now.

    Raises DataError: a record cannot be used, or nothing is left. Raises RunError: the disk is
    full.
    """
    key = recipe.key()
    folder, samples = cached_folder(
        cache, key, make=lambda folder: _make(recipe, folder, key), read=_read_manifest
    )
    return SampleFolder(path=folder, samples=samples)


def _make(recipe: SampleRecipe, folder: Path, key: str) -> None:
    coder, split = recipe.coder(), recipe.choose_split()
    tally = Tally(recipe.source.on_bad_record)
    coder.save(folder)
    train = _write(recipe, coder, split, tally, folder / _TRAIN)
    heldout = _write(recipe, coder, split, tally, folder / _HELDOUT)
    for written, purpose in ((train, "train on"), (heldout, "judge by")):
        if not written.num_targets:
            raise DataError(
                f"{recipe.origin.words} leaves nothing to {purpose} (left out: "
                f"{describe_skipped(tally.skipped())}); correct the records, raise seq_len="
                f"{recipe.seq_len}, or give other data"
            )
    labels = map_samples(folder / _HELDOUT, vocab_size=recipe.vocab_size).labels[:_MAX_COUNTED]
    manifest = SampleSet(
        schema=SAMPLES_SCHEMA,
        fingerprint=key,
        source=recipe.origin.words,
        vocab_size=recipe.vocab_size,
        train=train,
        heldout=heldout,
        num_truncated=tally.num_truncated,
        skipped=tally.skipped(),
        unigram_entropy=unigram_entropy(labels[labels >= 0]),
    )
    write_text(folder / _MANIFEST, json_text(manifest, indent=2) + "\n")


def _write(recipe: SampleRecipe, coder: Coder, split: Split, tally: Tally, folder: Path) -> Written:
    """Write one part; the parts are read one after the other, so that neither is held in memory."""
    is_heldout = folder.name == _HELDOUT
    # Records that cannot be parsed are counted when the first part is read.
    parsing = Tally("skip") if is_heldout else tally
    parsed = parsed_records(recipe.origin, recipe.encoder, split, parsing)
    kept = (item for item in parsed if item.is_heldout == is_heldout)
    made = encode_parsed(kept, recipe.encoder, coder, recipe.seq_len, tally)
    samples = (sample for group in made for sample in group)
    return write_samples(samples, folder, vocab_size=recipe.vocab_size)


def _read_manifest(folder: Path, key: str) -> SampleSet | None:
    """Read a folder's manifest; None where it is missing, broken, or not what the files hold."""
    try:
        manifest = msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=SampleSet)
        read_tokenizer(folder / TOKENIZER_FILE)
        whole = all(
            (folder / part / name).stat().st_size == num_bytes
            for part, written in ((_TRAIN, manifest.train), (_HELDOUT, manifest.heldout))
            for name, num_bytes in zip(
                SAMPLE_FILES, file_bytes(written, vocab_size=manifest.vocab_size), strict=True
            )
        )
    except (OSError, ValueError):
        return None
    return (
        manifest
        if whole
        and (manifest.schema, manifest.fingerprint)
        == (
            SAMPLES_SCHEMA,
            key,
        )
        else None
    )
