"""Micro-batches of random tokens for every task and packing of the cases; the first row is full.

What a step's peak follows is the longest row, so that one of each micro-batch is as long as rows
get. The others are ragged where the packing leaves padding, as data is.
"""

import torch

from brimful.build.batch import ANSWER, IGNORE_INDEX, QUESTION, Batch
from brimful.models.bert import num_labels
from brimful.values.job import Job
from brimful.values.strategy import Strategy

NUM_DOCUMENTS = 4
"""Of a packed row."""
_FIRST_TOKEN = 3
"""Tokens below it mean something to some models: padding, beginning, end."""


def random_batches(job: Job, strategy: Strategy) -> list[Batch]:
    """Make one step's micro-batches on the host."""
    generator = torch.Generator().manual_seed(job.seed)
    num_batches = job.global_batch // strategy.micro_batch
    return [_batch(job, strategy.micro_batch, generator) for _ in range(num_batches)]


def _batch(job: Job, rows: int, generator: torch.Generator) -> Batch:
    if job.task == "dpo":
        return _pairs(job, rows, generator)
    if job.packing == "wrapped":
        ids = _ids(job, (rows, job.seq_len + 1), generator)
        return Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
    segments = _segments(job, rows, generator)
    return _labelled(job, _ids(job, segments.shape, generator), segments, generator)


def _ids(job: Job, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    return torch.randint(_FIRST_TOKEN, job.model.vocab_size, shape, generator=generator)


def _segments(job: Job, rows: int, generator: torch.Generator) -> torch.Tensor:
    """Cut rows into documents of random lengths, from 1; 0 is padding: [rows, tokens]."""
    num = NUM_DOCUMENTS if job.packing == "documents" else 1
    ends = torch.rand(rows, num, generator=generator).sort(1).values
    ends[0, -1] = 1.0
    places = torch.arange(job.seq_len) / job.seq_len
    before = (places[None, :, None] >= ends[:, None, :]).sum(2)
    before[:, 0] = 0  # no row is nothing but padding
    return torch.where(before < num, before + 1, 0).to(torch.int32)


def _labelled(
    job: Job, ids: torch.Tensor, segments: torch.Tensor, generator: torch.Generator
) -> Batch:
    """Add what is learnt: the next token of each, a text, or a class of each row."""
    inputs = ids * (segments > 0)
    if job.task == "sequence-classification":
        classes = num_labels(job.model.hf_config)
        return Batch(inputs, torch.randint(classes, (len(ids),), generator=generator), segments)
    wanted = _ids(job, tuple(ids.shape), generator)
    return Batch(inputs, wanted.masked_fill(segments == 0, IGNORE_INDEX), segments)


def _pairs(job: Job, rows: int, generator: torch.Generator) -> Batch:
    """Make pairs of answers to one question: the first answer of the first pair fills its row."""
    ids = _ids(job, (rows, 2, job.seq_len), generator)
    question = job.seq_len // 4
    ids[:, 1, :question] = ids[:, 0, :question]
    stops = torch.randint(question + 1, job.seq_len + 1, (rows, 2, 1), generator=generator)
    stops[0, 0] = job.seq_len
    places = torch.arange(job.seq_len)
    marks = torch.where(places < question, QUESTION, ANSWER).expand_as(ids)
    segments = torch.where(places < stops, marks, 0).to(torch.int32)
    return Batch(ids * (segments > 0), torch.zeros(rows, dtype=torch.int64), segments)
