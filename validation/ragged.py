"""Made-up samples of uneven lengths with masked labels, and the rows that a trainer makes of them.

Knows the batches of the build path and nothing of how they are trained on.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from brimful.build.batch import ANSWER, IGNORE_INDEX, QUESTION, Batch
from brimful.values.job import PREFERENCE, Job

NUM_LABELS, FEWEST_LABELS = 3, 2
PER_ROW = 2
"""Documents of a packed row; the rest of it is padding."""


class Sample(NamedTuple):
    """One document, text or picture, and what should come out of it.

    Of a pair of answers tokens and what they are, [2, answers, tokens].
    """

    inputs: torch.Tensor
    labels: torch.Tensor


def samples_of(job: Job, *, step: int) -> list[Sample]:
    """Make the samples of one step, the same whatever the strategy; one has no target at all."""
    generator = torch.Generator().manual_seed(1000 * job.seed + step)
    num = job.global_batch * (PER_ROW if job.packing == "documents" else 1)
    made = [_sample(job, generator, place) for place in range(num)]
    silent = made[-1]
    return [*made[:-1], silent._replace(labels=torch.full_like(silent.labels, IGNORE_INDEX))]


def _sample(job: Job, generator: torch.Generator, place: int) -> Sample:
    if job.task == "module":
        return Sample(
            torch.randn(1, 16, 16, generator=generator),
            torch.randint(0, NUM_LABELS, (), generator=generator),
        )
    if job.task == PREFERENCE:
        return Sample(_pair(job, generator), torch.zeros((), dtype=torch.int64))
    ids = torch.randint(3, job.model.vocab_size, (_length(job, generator),), generator=generator)
    if job.task == "sequence-classification":
        num_labels = job.model.hf_config.get("num_labels", FEWEST_LABELS)
        return Sample(ids, torch.randint(0, num_labels, (), generator=generator))
    if job.task == "seq2seq":
        shape = (_length(job, generator),)
        return Sample(ids, torch.randint(3, job.model.vocab_size, shape, generator=generator))
    labels = torch.cat([ids[1:], torch.tensor([IGNORE_INDEX])])
    labels[: place % 4] = IGNORE_INDEX
    return Sample(ids, labels)


def _pair(job: Job, generator: torch.Generator) -> torch.Tensor:
    """Make two answers of other lengths behind one question."""
    ids = torch.randint(3, job.model.vocab_size, (2, job.seq_len), generator=generator)
    question = int(torch.randint(1, job.seq_len - 1, (), generator=generator))
    ids[1, :question] = ids[0, :question]
    kinds = torch.zeros_like(ids)
    for row in kinds:
        end = int(torch.randint(question + 1, job.seq_len + 1, (), generator=generator))
        row[:question], row[question:end] = QUESTION, ANSWER
    return torch.stack([ids * (kinds > 0), kinds])


def _length(job: Job, generator: torch.Generator) -> int:
    if job.packing == "wrapped":
        return job.seq_len
    most = job.seq_len // (PER_ROW if job.packing == "documents" else 1)
    return int(torch.randint(2, most + 1, (), generator=generator))


def batches_of(job: Job, samples: list[Sample], *, micro_batch: int) -> list[Batch]:
    """Lay samples into rows and rows into micro-batches, as the job's packing says."""
    if job.task == "module":
        rows = [(sample.inputs, sample.labels, torch.zeros(())) for sample in samples]
    elif job.task == PREFERENCE:
        rows = [(sample.inputs[0], sample.labels, sample.inputs[1]) for sample in samples]
    elif job.packing == "documents":
        pairs = zip(samples[::2], samples[1::2], strict=True)
        rows = [_packed(job, pair) for pair in pairs]
    else:
        rows = [_padded(job, sample) for sample in samples]
    return list(_grouped(job, rows, micro_batch))


def _grouped(job: Job, rows: list[tuple[torch.Tensor, ...]], micro_batch: int) -> Iterator[Batch]:
    for start in range(0, len(rows), micro_batch):
        columns = zip(*rows[start : start + micro_batch], strict=True)
        inputs, labels, segments = (torch.stack(column) for column in columns)
        whole = job.packing == "wrapped" or job.task == "module"
        yield Batch(inputs, labels, None if whole else segments.to(torch.int32))


def _padded(job: Job, sample: Sample) -> tuple[torch.Tensor, ...]:
    labels = sample.labels
    if labels.ndim:
        labels = _filled(labels, job.seq_len, IGNORE_INDEX)
    ones = torch.ones_like(sample.inputs)
    return _filled(sample.inputs, job.seq_len, 0), labels, _filled(ones, job.seq_len, 0)


def _packed(job: Job, documents: tuple[Sample, ...]) -> tuple[torch.Tensor, ...]:
    numbers = [torch.full_like(d.inputs, n) for n, d in enumerate(documents, start=1)]
    return (
        _filled(torch.cat([d.inputs for d in documents]), job.seq_len, 0),
        _filled(torch.cat([d.labels for d in documents]), job.seq_len, IGNORE_INDEX),
        _filled(torch.cat(numbers), job.seq_len, 0),
    )


def _filled(row: torch.Tensor, length: int, value: int) -> torch.Tensor:
    return torch.cat([row, row.new_full((length - len(row),), value)])
