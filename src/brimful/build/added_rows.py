"""Rows that a model has beyond its checkpoint: tokens that were added to its vocabulary.

As ``resize_token_embeddings`` of ``transformers`` does it (``mean_resizing``): each new row is the
mean of the old ones plus noise whose covariance is a billionth of theirs, so that a new token's
logit begins among those of the others, not above them all (Hewitt 2021, "Initializing New Word
Embeddings for Pretrained Language Models"). There the covariance is formed and factorised; here the
same distribution is drawn as random combinations of the old rows, without either.
"""

import torch

NOISE = 1e-9
"""The covariance of the noise as a share of that of the rows; Source: ``modeling_utils.py``."""


def draw_shares(num_new: int, num_old: int, device: torch.device) -> torch.Tensor:
    """Draw how much of each old row is in each new one: [new, old]."""
    return torch.randn((num_new, num_old), dtype=torch.float32, device=device)


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def fill_added(weight: torch.Tensor, *, num_old: int) -> None:
    """Fill the rows after the first ``num_old``, in place.

    ``weight``: [rows, width] or, for a bias, [rows]; the first ``num_old`` are loaded.
    """
    old, new = weight[:num_old], weight[num_old:]
    mean = old.mean(0, dtype=torch.float32)
    shares = draw_shares(len(new), num_old, weight.device)
    shares -= shares.mean(1, keepdim=True)  # so that the mean drops out of the combination
    noise = (shares.to(old.dtype) @ old).float()
    new.copy_(mean + noise * (NOISE / num_old) ** 0.5)
