"""Which tokens are hidden, to be told: a pure function of the seed and of where a row is.

As ``DataCollatorForLanguageModeling`` of ``transformers`` does (Devlin et al. 2018): 15 % of the
tokens, none of the tokenizer's marks; of these 80 % become the mask, 10 % any token, 10 % stay.

Shapes: N rows, S tokens of a row.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from brimful.errors import InputError
from brimful.train.data.encoders.base import IGNORED
from brimful.values.job import Job

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from brimful.train.data.coder import Coder

SHARE = 0.15
"""Of the tokens that are hidden."""
_MASKED, _MASKED_OR_ANY = 0.8, 0.9
"""Of those the share that the mask stands for, and that with those which any token does."""


class Hiding(msgspec.Struct, frozen=True, kw_only=True):
    """What is put in the place of hidden tokens.

    Attributes:
        mask_id: The token that says that one is hidden.
        marks: Tokens that are never hidden.
        num_words: Tokens of which one may stand in for another.
        seed: Of the job.
    """

    mask_id: int
    marks: tuple[int, ...]
    num_words: int
    seed: int

    def hide(
        self,
        rows_NS: "npt.NDArray[np.int64]",  # noqa: N803
        places: Sequence[tuple[int, ...]],
    ) -> "tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]":
        """Return what a model reads, and what it is to tell; ``IGNORED`` where nothing is.

        ``places``: where each row is: in the pass and at the index of it, or in the held-out text.
        A row in which chance hides none has one hidden, so that no step is without.
        """
        import numpy as np

        inputs_NS, labels_NS = rows_NS.copy(), np.full_like(rows_NS, IGNORED)  # noqa: N806
        for row, labels, place in zip(inputs_NS, labels_NS, places, strict=True):
            draws = np.random.default_rng((self.seed, *place))
            draw = np.where(np.isin(row, self.marks), 1.0, draws.random(row.size))
            is_hidden = draw < max(SHARE, np.nextafter(draw.min(), 1.0))
            labels[is_hidden] = row[is_hidden]
            how, words = draws.random(row.size), draws.integers(self.num_words, size=row.size)
            is_any = is_hidden & (how >= _MASKED) & (how < _MASKED_OR_ANY)
            row[is_any] = words[is_any]
            row[is_hidden & (how < _MASKED)] = self.mask_id
        return inputs_NS, labels_NS


def hiding_of(coder: "Coder", job: Job) -> Hiding:
    """Return how tokens of a job are hidden, by its tokenizer.

    Raises InputError: it has no token that says so, or the model no row for that.
    """
    mask_id, vocab_size = coder.tokenizer.mask_token_id, job.model.vocab_size
    if mask_id is None or mask_id >= vocab_size:
        what = "no mask token" if mask_id is None else f"mask token {mask_id}, for which no row is"
        raise InputError(
            f"task={job.task} hides tokens by a mask token, and the tokenizer has {what}; use the "
            f"tokenizer of an encoder such as bert with --tokenizer, or none"
        )
    return Hiding(
        mask_id=int(mask_id),
        marks=tuple(sorted(coder.tokenizer.all_special_ids)),
        num_words=min(len(coder.tokenizer), vocab_size),
        seed=job.seed,
    )
