"""Pairs of answers as rows: two for each sample, the preferred answer first.

Shapes: B pairs of a micro-batch, S tokens of a row.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from brimful.train.data.encoders.preference import READ_CHOSEN, SCORED_CHOSEN, SCORED_REJECTED
from brimful.train.data.samples import Arrays

if TYPE_CHECKING:
    from brimful.build.batch import Batch


def longer_row(pair: Arrays) -> int:
    """Count the tokens of the longer of a pair's two rows."""
    num_chosen = _num_chosen(pair)
    return max(num_chosen, len(pair.inputs) - num_chosen)


def _num_chosen(pair: Arrays) -> int:
    is_chosen = (pair.labels == READ_CHOSEN) | (pair.labels == SCORED_CHOSEN)
    return int(is_chosen.sum())


def pair_batch(pairs: Sequence[Arrays], *, width: int, pad_id: int) -> "Batch":
    """Make a micro-batch of pairs.

    ``pairs``: samples of ``encoders.preference``.
    """
    import numpy as np
    import torch

    from brimful.build.batch import ANSWER, QUESTION, Batch

    inputs_B2S = np.full((len(pairs), 2, width), pad_id, np.int64)  # noqa: N806
    segments_B2S = np.zeros((len(pairs), 2, width), np.int32)  # noqa: N806
    for place, pair in enumerate(pairs):
        cut = _num_chosen(pair)
        is_scored = (pair.labels == SCORED_CHOSEN) | (pair.labels == SCORED_REJECTED)
        for side, span in enumerate((slice(0, cut), slice(cut, None))):
            tokens = pair.inputs[span]
            inputs_B2S[place, side, : len(tokens)] = tokens
            segments_B2S[place, side, : len(tokens)] = np.where(is_scored[span], ANSWER, QUESTION)
    return Batch(
        torch.from_numpy(inputs_B2S),
        torch.zeros(len(pairs), dtype=torch.int64),
        torch.from_numpy(segments_B2S),
        _references(pairs),
    )


def _references(pairs: Sequence[Arrays]) -> Any:
    import numpy as np
    import torch

    found = [pair.reference for pair in pairs if pair.reference is not None]
    if len(found) < len(pairs):
        return None
    return torch.from_numpy(np.stack(found).astype(np.float32))
