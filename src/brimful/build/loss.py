"""The loss: summed over unmasked tokens, divided by the token count of the whole step.

Divided by the *global* count, never a mean of means: so that micro-batch and accumulation change
nothing but floating-point order (DESIGN, "Exact, and when").
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from brimful.build.batch import IGNORE_INDEX
from brimful.build.logits import finish, steps_of
from brimful.build.parallel.collectives import gather_tokens
from brimful.build.parallel.vocabulary import VocabularyPart, part_of, summed_cross_entropy
from brimful.build.phases import phase

CHUNK = "loss chunk"
"""The phase that one chunk of the loss announces, in the forward pass and when recomputed."""


_Summed = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Returns the sum of losses of hidden states or logits, and labels."""


class TokenLoss(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """Logits and cross-entropy of the hidden states, whole or in chunks.

    With more than one chunk each chunk's logits are computed, reduced, dropped, and computed once
    more in the backward pass: logits never exist whole, for one more product with the head.
    """

    def __init__(
        self,
        head: Callable[[torch.Tensor], torch.Tensor],
        *,
        num_chunks: int,
        added: Callable[[], torch.Tensor] | None = None,
    ) -> None:
        """Keep the output layer and the number of chunks.

        ``head``: Maps [tokens, hidden] to [tokens, vocab]; what is done to logits is noted on it.
        ``num_chunks``: pieces along the token dimension; 1 keeps the logits whole. ``added``:
        returns what is added to all logits, [1, vocab]; None: nothing is.
        """
        super().__init__()
        self.head = head
        self.num_chunks = num_chunks
        self.steps = steps_of(head)
        self.added = added
        self.part = part_of(head)
        self._compiled_entropy: _Summed | None = None
        self._compiled_whole: _Summed | None = None

    def forward(
        self,
        hidden_ND: torch.Tensor,  # noqa: N803
        labels_N: torch.Tensor,  # noqa: N803
        num_targets: int,
    ) -> torch.Tensor:
        """Return the sum of the unmasked tokens' losses divided by ``num_targets``.

        ``hidden_ND``: [tokens, hidden]; where the vocabulary is cut, this device's tokens, of which
        all devices' are gathered. ``labels_N``: [tokens], the next token of each, or
        ``IGNORE_INDEX``.
        """
        if self.part is not None:
            hidden_ND = gather_tokens(hidden_ND, self.part.group)  # noqa: N806
        if self.num_chunks == 1:
            return self._sum(hidden_ND, labels_N) / num_targets
        total = hidden_ND.new_zeros((), dtype=torch.float32)
        pairs = zip(hidden_ND.chunk(self.num_chunks), labels_N.chunk(self.num_chunks), strict=True)
        with without_weight_cache():
            for hidden, labels in pairs:
                total = total + checkpoint(
                    self._sum, hidden, labels, use_reentrant=False, preserve_rng_state=False
                )
        return total / num_targets

    def _sum(self, hidden_ND: torch.Tensor, labels_N: torch.Tensor) -> torch.Tensor:  # noqa: N803
        with phase(CHUNK):
            summed = self._compiled_whole or self._with_head
            return summed(hidden_ND, labels_N)

    def _with_head(self, hidden_ND: torch.Tensor, labels_N: torch.Tensor) -> torch.Tensor:  # noqa: N803
        logits_NV = finish(self.head(hidden_ND), self.steps)  # noqa: N806
        if self.added is not None:
            logits_NV = logits_NV + self.added()  # noqa: N806
        if self._compiled_entropy is not None:
            return self._compiled_entropy(logits_NV, labels_N)
        logits_NV = logits_NV.float()  # noqa: N806 - bf16 logits are too coarse, and no longer held
        return _entropy(logits_NV, labels_N, self.part)

    def compile_whole(self) -> None:
        """Compile the head with what is behind it as one."""
        self._compiled_whole = torch.compile(self._with_head)

    def compile_entropy(self) -> None:
        """Compile what is behind the logits, which are read in the type that the head makes."""
        self._compiled_entropy = torch.compile(
            lambda logits, labels: _entropy(logits.float(), labels, self.part)
        )


def _entropy(
    logits_NV: torch.Tensor,  # noqa: N803
    labels_N: torch.Tensor,  # noqa: N803
    part: VocabularyPart | None,
) -> torch.Tensor:
    if part is not None:
        return summed_cross_entropy(logits_NV, labels_N, part)
    total: torch.Tensor = functional.cross_entropy(
        logits_NV, labels_N, reduction="sum", ignore_index=IGNORE_INDEX
    )
    return total


@contextlib.contextmanager
def without_weight_cache() -> Iterator[None]:
    """Let autocast copy the head's weight anew for every chunk.

    One cached copy would gather the chunks' gradients in its own low precision; without it each is
    widened first and they add up in the type of the weight.
    """
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)
