"""Tiny preference jobs and pairs of answers that the tests of many packages share."""

from brimful.values.job import Preference
from samples import make_adapter, make_job

PREFERENCE = Preference(beta=0.1, label_smoothing=0.0)


def make_pair_job(architecture="llama", **changes):
    fields = {"task": "dpo", "packing": "none", "preference": PREFERENCE}
    return make_job(architecture, **{**fields, **changes})


def make_lora(method="lora", **changes):
    """Return the fields of a job with adapters."""
    return {"method": method, "adapter": make_adapter(**changes)}


def make_pairs(job, *, step=0, number=None):
    """Make a step's pairs: questions and answers of many lengths, one question for both rows."""
    import torch

    from brimful.build.batch import ANSWER, QUESTION, Batch

    generator = torch.Generator().manual_seed(step)
    number = number or job.global_batch
    shape = (number, 2, job.seq_len)
    ids = torch.randint(1, job.model.vocab_size, shape, generator=generator)
    segments = torch.zeros(shape, dtype=torch.int32)
    for pair, (rows, marks) in enumerate(zip(ids, segments, strict=True)):
        question = 2 + (pair + step) % 4
        rows[1, :question] = rows[0, :question]
        for side in range(2):
            stop = question + 2 + (5 * pair + 7 * side + 3 * step) % (job.seq_len - question - 2)
            marks[side, :question], marks[side, question:stop] = QUESTION, ANSWER
    return Batch(ids * (segments > 0), torch.zeros(number, dtype=torch.int64), segments)


def cut_pairs(batch, size):
    """Cut pairs into micro-batches."""
    return [
        type(batch)(*(None if part is None else part[start : start + size] for part in batch))
        for start in range(0, len(batch.labels), size)
    ]
