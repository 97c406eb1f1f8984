"""The instant at which a CUDA kernel adds up the gradient of the embedding's rows.

Of many indices it first makes partial sums in fp32, as large as a few gradients of the hidden
states; their size hangs on thresholds, so that no profile has it. It happens when every other
gradient is there, which makes it a peak of its own.
"""

import numpy as np
from numpy.typing import NDArray

from brimful.cost.family import Family, family_micro_batches, family_tokens
from brimful.cost.recipes import RECIPES
from brimful.cost.trajectory import Peak
from brimful.values.job import Job
from brimful.values.results import GRADIENTS, ITEM_NAMES, TRANSIENTS, WORKSPACES

FEW_INDICES = 3072
"""Up to so many are added up by one kernel without partial sums."""
ROWS_PER_PARTIAL = 10
_ACCUMULATED_BYTES, _INDEX_BYTES = 4, 8


def embedding_workspace(*, num_tokens: int, vocab_size: int, hidden_size: int) -> int:
    """Return the bytes of partial sums and sorted indices.

    Source: ``aten/src/ATen/native/cuda/EmbeddingBackwardKernel.cu``,
    ``embedding_backward_cuda_kernel``; ``Embedding.cu`` for the threshold.
    """
    if num_tokens <= FEW_INDICES:
        return 0
    segments = min(num_tokens, vocab_size)
    partials = num_tokens // ROWS_PER_PARTIAL + segments
    indices = 3 * num_tokens + 2 * segments + partials + 2
    return partials * hidden_size * _ACCUMULATED_BYTES + indices * _INDEX_BYTES


def with_embedding(job: Job, family: Family, peak: Peak, *, there: float, by_item: bool) -> Peak:
    """Compare the peak of forward and backward with the embedding's instant.

    ``peak``: of a step; its ``end`` holds every gradient that stays. ``there``: bytes of other
    gradients at that instant. ``by_item``: whether its rows are items; else there is one row, the
    total.
    """
    taken, beside = embedding_bytes(job, family)
    here = peak.end + _rows(by_item=by_item, workspace=taken, transient=beside, gradients=there)
    higher = (here.sum(0) > peak.level.sum(0)) & (taken > 0)
    return peak._replace(level=np.where(higher, here, peak.level))


def embedding_bytes(job: Job, family: Family) -> tuple[int, int]:
    """Return the partial sums, and the gradients beside them that are about to be dropped."""
    model, num_tokens = job.model, family_tokens(job, family)
    element = RECIPES[job.precision].gradient
    vocab_size = -(-model.vocab_size // family.tp)
    taken = embedding_workspace(
        num_tokens=num_tokens, vocab_size=vocab_size, hidden_size=model.hidden_size
    )
    is_added = model.tied_embeddings or keeps_gradients(job, family) or family.is_spread
    beside = num_tokens * model.hidden_size * element
    beside += is_added * vocab_size * model.hidden_size * element
    return taken, beside


def keeps_gradients(job: Job, family: Family) -> bool:
    """Whether gradients of one micro-batch are there when those of the next are computed."""
    return family_micro_batches(job, family) > 1 and not family.sends_each


def _rows(
    *, by_item: bool, workspace: int, transient: int, gradients: float
) -> NDArray[np.float64]:
    if not by_item:
        return np.array([[workspace + transient + gradients]])
    rows = np.zeros((len(ITEM_NAMES), 1))
    rows[ITEM_NAMES.index(WORKSPACES)] = workspace
    rows[ITEM_NAMES.index(TRANSIENTS)] = transient
    rows[ITEM_NAMES.index(GRADIENTS)] = gradients
    return rows
