"""Where a token stands in its own document."""

import torch


def document_positions(segments: torch.Tensor) -> torch.Tensor:
    """Count every document's tokens from 0.

    ``segments``: [batch, tokens] of int32: the document of each token in its row. Returns [batch,
    tokens] of int64.
    """
    places = torch.arange(segments.shape[1], device=segments.device)
    starts = torch.where(begins_document(segments), places, 0)
    return places - starts.cummax(1).values


def begins_document(segments: torch.Tensor) -> torch.Tensor:
    """Tell which tokens are the first of their document, padding being one; booleans [B, S]."""
    begins = segments != segments.roll(1, 1)
    begins[:, 0] = True
    return begins
