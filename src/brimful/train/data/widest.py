"""The first steps at full width: where memory does not suffice, that shows at once.

Micro-batches are as wide as their own longest row, and a run that is measured or that runs out of
memory should meet the widest one before it has trained for an hour. What is added is padding,
hidden from attention and from the loss: it changes nothing but the order in which floats are added.

Shapes: B rows, S input tokens, T target tokens.
"""

from torch.nn.functional import pad

from brimful.build.batch import IGNORE_INDEX, Batch


def widest(batch: Batch, *, seq_len: int) -> Batch:
    """Fill the rows of a micro-batch up to the longest that a job allows.

    ``batch``: inputs [B, S], labels [B], [B, S] or [B, T], segments [B, S], and of pairs inputs and
    segments [B, 2, S]; without segments every row is whole, and the batch is returned as it is.
    """
    if batch.segments is None:
        return batch
    room = (0, seq_len - batch.inputs.shape[-1])
    labels = batch.labels
    if labels.ndim > 1:
        labels = pad(labels, (0, seq_len - labels.shape[1]), value=IGNORE_INDEX)
    return batch._replace(
        inputs=pad(batch.inputs, room), labels=labels, segments=pad(batch.segments, room)
    )
