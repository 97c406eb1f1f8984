"""Micro-batches as large as a job allows, of random tokens: what its first rows could look like.

The first row of each is full; the others are ragged where the packing pads. Knows nothing of
training.
"""

from collections.abc import Sequence
from typing import Any

import torch

from brimful.build.batch import IGNORE_INDEX, Batch
from brimful.build.user_module import take_sample
from brimful.models.bert import num_labels
from brimful.values.job import Job

DOCUMENTS = 4
"""Of a packed row."""


class FullBatches(Sequence[Batch]):
    """The micro-batches of one step, each made when it is asked for.

    So no two exist at a time, as on a device to which they are moved one after another. A list of
    them would be the host's memory, which on a CPU nothing tells from the device's.
    """

    def __init__(self, job: Job, *, micro_batch: int) -> None:
        """Take the sizes.

        Args:
            job: Says the task, the packing and the sizes.
            micro_batch: Rows of each.
        """
        self._job, self._rows = job, micro_batch

    def __len__(self) -> int:
        """Count the micro-batches of a step."""
        return self._job.global_batch // self._rows

    def __getitem__(self, index: Any) -> Batch:
        """Make one, the same whenever it is asked for."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        torch.manual_seed(index)
        return _batch(self._job, self._rows)


def _batch(job: Job, rows: int) -> Batch:
    if job.task == "module":
        return _pictures(job, rows)
    if job.packing == "documents":
        return _labelled(job, _documents(job, rows))
    if job.packing == "none":
        return _labelled(job, _texts(job, rows))
    ids = _ids(job, rows)
    return Batch(ids, ids)


def _ids(job: Job, rows: int) -> torch.Tensor:
    return torch.randint(3, job.model.vocab_size, (rows, job.seq_len))


def _pictures(job: Job, rows: int) -> Batch:
    inputs, labels = take_sample(job.model.name, rows)
    return Batch(inputs.normal_(), labels.random_(2))


def _documents(job: Job, rows: int) -> torch.Tensor:
    """Lay documents of random lengths into each row, and padding after all but the first's."""
    ends = torch.rand(rows, DOCUMENTS).sort(1).values
    ends[0, -1] = 1.0
    places = torch.arange(job.seq_len) / job.seq_len
    before = (places[None, :, None] >= ends[:, None, :]).sum(2)
    return torch.where(before < DOCUMENTS, before + 1, 0)


def _texts(job: Job, rows: int) -> torch.Tensor:
    """Lay one text of random length into each row; the first one's fills it."""
    lengths = torch.randint(job.seq_len // 2, job.seq_len + 1, (rows,))
    lengths[0] = job.seq_len
    return (torch.arange(job.seq_len) < lengths[:, None]).long()


def _labelled(job: Job, segments: torch.Tensor) -> Batch:
    rows, kept = len(segments), segments.to(torch.int32)
    ids = _ids(job, rows) * (segments > 0)
    if job.task == "sequence-classification":
        return Batch(ids, torch.randint(0, num_labels(job.model.hf_config), (rows,)), kept)
    texts = _ids(job, rows) if job.task == "seq2seq" else ids
    return Batch(ids, texts.masked_fill(segments == 0, IGNORE_INDEX), kept)
