"""One way in: from a source and a job to the batches of its steps."""

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from brimful.errors import DataError, FileFormatError, UnsupportedError
from brimful.train.data.batches import TokenBatches, heldout_batches, open_batches
from brimful.train.data.coder import (
    TOKENIZER_FILE,
    Coder,
    open_coder,
    own_coder,
    tokenizer_of_weights,
)
from brimful.train.data.encoders import encoder_for
from brimful.train.data.encoders.base import Encoder, Sample
from brimful.train.data.encoding import (
    Split,
    choose_split,
    parsed_records,
    streamed_split,
    training_texts,
)
from brimful.train.data.hiding import hiding_of
from brimful.train.data.module_data import ModuleBatches, open_module_data
from brimful.train.data.origin import TEXT_FIELD, Origin, open_origin, text_corpus
from brimful.train.data.records import Skipped, Tally
from brimful.train.data.rows import Answer, RowShape, to_batches
from brimful.train.data.sample_batches import FileWindows, SampleBatches, lay_out
from brimful.train.data.sample_cache import SampleFolder, SampleRecipe, prepare_samples
from brimful.train.data.samples import Arrays
from brimful.train.data.source import DataSource
from brimful.train.data.stream import (
    Stream,
    StreamSettings,
    StreamWindows,
    as_arrays,
    heldout_samples,
)
from brimful.train.data.tokenizer import (
    MAX_SAMPLE_CHARS,
    read_tokenizer,
    train_tokenizer,
    unigram_entropy,
    write_tokenizer,
)
from brimful.train.data.tokens import Texts, cached_folder, corpus_texts, prepare_texts
from brimful.values.job import MASKED, PREFERENCE, Job

if TYPE_CHECKING:
    from brimful.build.batch import Batch

_ANSWERS: dict[str, Answer] = {
    "sequence-classification": "class", "seq2seq": "target", "dpo": "pair",
}  # fmt: skip
_OWN_TOKENIZER = "own"


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run is trained on.

    Attributes:
        source: Where the data comes from, in words.
        num_train_samples: Samples of a pass; None: cut from one long text, or streamed.
        num_train_tokens: Tokens of a pass; None: streamed, so that nobody has counted them.
        num_train_targets: Those that are learnt; None: all, or streamed.
        num_heldout_tokens: Tokens to judge by.
        unigram_entropy: Of the held-out labels, in nats per label.
        num_truncated: Samples of which something was cut away at ``seq_len``.
        skipped: Records that were left out; of a stream, those met so far.
        template: The chat template, for people; empty where the task has none.
    """

    source: str
    num_train_samples: int | None
    num_train_tokens: int | None
    num_train_targets: int | None
    num_heldout_tokens: int
    unigram_entropy: float
    num_truncated: int
    skipped: tuple[Skipped, ...]
    template: str


Batches = TokenBatches | SampleBatches | ModuleBatches
"""Steps of batches by position: of one long text, of samples, or of a module's own data."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """Data that is ready to be trained on.

    Attributes:
        batches: The steps' batches, by position.
        heldout: The fixed sample to judge by.
        summary: What it is.
        tokenizer_folder: Holds ``tokenizer.json``; for all but plain text with a tokenizer of its
            own, everything that ``AutoTokenizer`` reads. None for a module, which reads no text.
        coder: The tokenizer, or None.
        data_hash: What a resumed run must find again.
    """

    batches: Batches
    heldout: "list[Batch]"
    summary: Summary
    tokenizer_folder: Path | None
    coder: Coder | None
    data_hash: str

    @property
    def tokenizer_path(self) -> Path | None:
        """The tokenizer that wrote it."""
        return None if self.tokenizer_folder is None else self.tokenizer_folder / TOKENIZER_FILE

    @property
    def num_skipped(self) -> int:
        """Records that were left out."""
        return sum(skipped.num_records for skipped in self.summary.skipped)


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    """What ``prepare`` is asked for."""

    source: DataSource
    job: Job
    micro_batch: int
    cache: Path
    num_eval_tokens: int
    num_judged: int

    @property
    def template(self) -> str | None:
        return self.source.chat_template

    @property
    def tokenizer(self) -> str | None:
        return self.source.tokenizer or tokenizer_of_weights(self.job.weights)


def prepare(  # noqa: PLR0913 - what is read, and how much of it is kept apart
    source: DataSource,
    job: Job,
    *,
    micro_batch: int,
    cache: Path,
    num_eval_tokens: int,
    num_judged: int = 0,
) -> Prepared:
    """Make the data of a job ready.

    ``micro_batch``: rows per forward pass. ``cache``: folder in which encoded data is kept between
    runs. ``num_eval_tokens``: about how large the fixed held-out sample is. ``num_judged``: rows of
    it at least, where there are as many; a micro-batch in any case. Raises DataError: the data is
    missing, broken (named by file and line), or too little. Raises InputError: the tokenizer cannot
    be used. Raises RunError: the disk is full.
    """
    request = _Request(
        source=source,
        job=job,
        micro_batch=micro_batch,
        cache=cache,
        num_eval_tokens=num_eval_tokens,
        num_judged=max(micro_batch, num_judged),
    )
    if job.task == "module":
        return _prepare_module(request)
    if source.streaming and job.task == MASKED:
        raise UnsupportedError(
            f"task={MASKED} is not streamed by this version; leave out --streaming"
        )
    if source.streaming:
        return _prepare_stream(request)
    if job.packing == "wrapped":
        return _prepare_tokens(request)
    return _prepare_samples(request)


def _prepare_module(request: _Request) -> Prepared:
    """Take a module's data from where its model comes from."""
    data = open_module_data(request.job, request.source, micro_batch=request.micro_batch)
    return Prepared(
        batches=data.batches,
        heldout=data.heldout,
        summary=Summary(
            source=f"the dataset of {request.job.model.name}",
            num_train_samples=len(data.batches.numbers),
            num_train_tokens=len(data.batches.numbers),
            num_train_targets=None,
            num_heldout_tokens=data.num_heldout,
            unigram_entropy=data.label_entropy,
            num_truncated=0,
            skipped=(),
            template="",
        ),
        tokenizer_folder=None,
        coder=None,
        data_hash=data.data_hash,
    )


def _prepare_tokens(request: _Request) -> Prepared:
    job, where = request.job, request.tokenizer
    coder = None if where is None else open_coder(where, request.template)
    folder = prepare_texts(
        _texts(request), coder, vocab_size=job.model.vocab_size, cache=request.cache,
        hides=job.task == MASKED,
    )  # fmt: skip
    tokens = folder.tokens
    coder = coder or own_coder(folder.tokenizer_path, request.template)
    hiding = hiding_of(coder, job) if job.task == MASKED else None
    return Prepared(
        batches=open_batches(folder.train(), job, micro_batch=request.micro_batch, hiding=hiding),
        heldout=heldout_batches(
            folder.heldout(),
            job,
            micro_batch=request.micro_batch,
            num_tokens=max(request.num_eval_tokens, request.num_judged * job.seq_len),
            hiding=hiding,
        ),
        summary=Summary(
            source=tokens.source,
            num_train_samples=None,
            num_train_tokens=tokens.num_train_tokens,
            num_train_targets=None,
            num_heldout_tokens=tokens.num_heldout_tokens,
            unigram_entropy=tokens.unigram_entropy,
            num_truncated=0,
            skipped=tokens.skipped,
            template="",
        ),
        tokenizer_folder=folder.path,
        coder=coder,
        data_hash=tokens.tokens_hash,
    )


def _texts(request: _Request) -> Texts:
    """Return the text of files, or that of records."""
    source = request.source
    corpus = None if source.heldout else text_corpus(source)
    if corpus is not None:
        return corpus_texts(corpus)
    encoder, origin = _opened(request)
    split = functools.cache(lambda: choose_split(origin, encoder, source))
    tallies: list[Tally] = []

    def skipped() -> tuple[Skipped, ...]:
        return tallies[-1].skipped()

    def read(*, heldout: bool) -> Iterator[str]:
        tally = Tally("skip" if heldout else source.on_bad_record)
        if not heldout:
            tallies.append(tally)
        for parsed in parsed_records(origin, encoder, split(), tally):
            if parsed.is_heldout == heldout:
                yield from encoder.texts(parsed.content)

    return Texts(
        source=origin.words,
        fingerprint=f"{origin.fingerprint(False)}-{_hash(source)}",
        num_chars=lambda: sum(map(len, read(heldout=False))),
        train=lambda: read(heldout=False),
        heldout=lambda: read(heldout=True),
        skipped=skipped,
    )


def _opened(request: _Request) -> tuple[Encoder, Origin]:
    encoder = encoder_for(request.job, request.source)
    origin = open_origin(request.source, encoder.needs)
    if origin.is_text and request.source.text_field != TEXT_FIELD:
        plain = msgspec.structs.replace(request.source, text_field=TEXT_FIELD)
        encoder = encoder_for(request.job, plain)
    return encoder, origin


def _hash(value: object) -> str:
    return hashlib.blake2b(msgspec.json.encode(value), digest_size=8).hexdigest()


def _prepare_samples(request: _Request) -> Prepared:
    job, source = request.job, request.source
    encoder, origin = _opened(request)
    split = functools.cache(lambda: choose_split(origin, encoder, source))
    where = request.tokenizer
    if where is None:
        identity = f"{_OWN_TOKENIZER}{_hash(request.template)}"
        coder = functools.partial(_trained, request, origin, encoder, split)
    else:
        opened = open_coder(where, request.template)
        identity, coder = opened.identity(), functools.partial(_same, opened)
    recipe = SampleRecipe(
        origin=origin,
        encoder=encoder,
        coder=coder,
        coder_identity=identity,
        choose_split=split,
        source=source,
        task=job.task,
        seq_len=job.seq_len,
        vocab_size=job.model.vocab_size,
    )
    folder = prepare_samples(recipe, cache=request.cache)
    used = own_coder(folder.path / TOKENIZER_FILE, request.template) if where is None else coder()
    return _from_folder(request, folder, used)


def _same(coder: Coder) -> Coder:
    return coder


def _trained(
    request: _Request, origin: Origin, encoder: Encoder, split: Callable[[], Split]
) -> Coder:
    """Train a tokenizer on the texts of the records, or take it from the cache."""
    source, vocab_size = request.source, request.job.model.vocab_size
    quick = source.streaming
    key = f"tokenizer-{origin.fingerprint(quick)}-{vocab_size}-{_hash((source, request.job.task))}"

    def texts() -> Iterator[str]:
        found = training_texts(origin, encoder, split(), source.on_bad_record)
        return _front(found, MAX_SAMPLE_CHARS) if quick else found

    def make(folder: Path) -> None:
        num_chars = 0 if quick else sum(map(len, texts()))
        tokenizer = train_tokenizer(texts(), vocab_size=vocab_size, num_chars=num_chars)
        write_tokenizer(tokenizer, folder / TOKENIZER_FILE)

    folder, _ = cached_folder(request.cache, key, make=make, read=_read_tokenizer_folder)
    return own_coder(folder / TOKENIZER_FILE, request.template)


def _front(texts: Iterator[str], num_chars: int) -> Iterator[str]:
    taken = 0
    for text in texts:
        yield text
        taken += len(text)
        if taken >= num_chars:
            return


def _read_tokenizer_folder(folder: Path, _key: str) -> Path | None:
    try:
        read_tokenizer(folder / TOKENIZER_FILE)
    except FileFormatError:
        return None
    return folder


def _from_folder(request: _Request, folder: SampleFolder, coder: Coder) -> Prepared:
    job, samples, shape = request.job, folder.samples, _shape(request.job, coder)
    train, heldout = folder.train(), folder.heldout()
    _check_enough(len(train), job, samples.source)
    packed = job.packing == "documents"
    windows = FileWindows(train, seq_len=job.seq_len, packed=packed, seed=job.seed)
    num_picked = min(
        len(heldout),
        max(
            request.num_judged,
            request.num_eval_tokens * len(heldout) // max(1, samples.heldout.num_tokens),
        ),
    )
    picked = [heldout.sample(pick * len(heldout) // num_picked) for pick in range(num_picked)]
    return Prepared(
        batches=SampleBatches(
            windows, shape, global_batch=job.global_batch, micro_batch=request.micro_batch
        ),
        heldout=_heldout(picked, request, shape),
        summary=Summary(
            source=samples.source,
            num_train_samples=samples.train.num_samples,
            num_train_tokens=samples.train.num_tokens,
            num_train_targets=samples.train.num_targets,
            num_heldout_tokens=samples.heldout.num_tokens,
            unigram_entropy=_bar(job, samples.unigram_entropy),
            num_truncated=samples.num_truncated,
            skipped=samples.skipped,
            template=_template_words(job, coder),
        ),
        tokenizer_folder=folder.path,
        coder=coder,
        data_hash=samples.train.hash,
    )


def _prepare_stream(request: _Request) -> Prepared:
    job, source = request.job, request.source
    encoder, origin = _opened(request)
    split = functools.cache(lambda: streamed_split(origin, encoder, share=source.heldout_share))
    where = request.tokenizer
    if where is None:
        coder = _trained(request, origin, encoder, split)
    else:
        coder = open_coder(where, request.template)
    stream = Stream(origin=origin, encoder=encoder, coder=coder, split=split())
    settings = StreamSettings(
        seq_len=job.seq_len,
        layout=job.packing,
        buffer=source.shuffle_buffer,
        seed=job.seed,
        vocab_size=job.model.vocab_size,
    )
    judged = heldout_samples(
        stream,
        settings,
        num_tokens=request.num_eval_tokens,
        num_samples=request.num_judged,
    )
    tally, shape = Tally(source.on_bad_record), _shape(job, coder)
    windows = StreamWindows(stream, settings, tally)
    windows.window_at(0, 0)
    key = f"stream-{origin.fingerprint(True)}-{coder.identity()}-{_hash((source, job.seq_len))}"
    folder, _ = cached_folder(request.cache, key, make=coder.save, read=_read_tokenizer_folder)
    return Prepared(
        batches=SampleBatches(
            windows, shape, global_batch=job.global_batch, micro_batch=request.micro_batch
        ),
        heldout=_heldout([as_arrays(sample) for sample in judged], request, shape),
        summary=_stream_summary(origin, judged, tally, job, coder),
        tokenizer_folder=folder,
        coder=coder,
        data_hash=_hash(key),
    )


def _stream_summary(
    origin: Origin, judged: Sequence[Sample], tally: Tally, job: Job, coder: Coder
) -> Summary:
    import numpy as np

    labels = np.concatenate([np.asarray(sample.labels) for sample in judged])
    return Summary(
        source=f"{origin.words}, streamed",
        num_train_samples=None,
        num_train_tokens=None,
        num_train_targets=None,
        num_heldout_tokens=sum(len(sample.inputs) for sample in judged),
        unigram_entropy=_bar(job, unigram_entropy(labels[labels >= 0])),
        num_truncated=tally.num_truncated,
        skipped=tally.skipped(),
        template=_template_words(job, coder),
    )


def _bar(job: Job, entropy: float) -> float:
    """Return the loss to pass: of pairs that of the reference model, which prefers neither."""
    return math.log(2) if job.task == PREFERENCE else entropy


def _shape(job: Job, coder: Coder) -> RowShape:
    configured = job.model.hf_config.get("pad_token_id")
    pad_id = configured if isinstance(configured, int) else coder.pad_id
    return RowShape(
        seq_len=job.seq_len,
        pad_id=pad_id if 0 <= pad_id < job.model.vocab_size else 0,
        answer=_ANSWERS.get(job.task, "tokens"),
        whole=job.packing == "wrapped",
    )


def _template_words(job: Job, coder: Coder) -> str:
    return coder.template_words if job.task in {"chat", "dpo"} else ""


def _heldout(picked: Sequence[Arrays], request: _Request, shape: RowShape) -> "list[Batch]":
    packed = request.job.packing == "documents"
    lengths = [len(sample.inputs) for sample in picked]
    rows = lay_out(lengths, seq_len=request.job.seq_len, packed=packed)
    return to_batches(
        [[picked[item] for item in row] for row in rows], shape, micro_batch=request.micro_batch
    )


def _check_enough(num_samples: int, job: Job, source: str) -> None:
    if num_samples < job.global_batch:
        raise DataError(
            f"{source} has {num_samples} samples to train on and one step of global_batch="
            f"{job.global_batch} needs {job.global_batch}; give more data or lower global_batch"
        )
