"""A script of Megatron-LM's whose data sets have no mock data of their own, on rows of ones.

Arguments: the script, and its own. T5's and BERT's data sets read documents; the keys, lengths and
types of a row are theirs (``megatron/core/datasets/{t5,bert}_dataset.py``).
"""

import runpy
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

_DATASETS = "megatron.core.datasets"
_T5 = {
    **dict.fromkeys(("text_enc", "enc_mask"), "sequence_length"),
    **dict.fromkeys(("text_dec", "labels", "loss_mask", "dec_mask"), "sequence_length_decoder"),
}
_BERT = {
    **dict.fromkeys(("text", "types", "labels", "loss_mask", "padding_mask"), "sequence_length"),
    "is_random": "",
}
_KEYS = {"T5MaskedWordPieceDataset": _T5, "BERTMaskedWordPieceDataset": _BERT}


class _Rows:
    """As many rows as are asked for, all alike.

    Args:
        name: The data set's class.
        config: Its configuration, which has the lengths.
        num_rows: How many there are.
    """

    def __init__(self, name: str, config: Any, num_rows: int) -> None:
        self._num_rows = num_rows
        self._row = {
            key: np.ones(getattr(config, length) if length else (), np.int64)
            for key, length in _KEYS[name].items()
        }

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, _index: int) -> dict[str, Any]:
        return self._row


def _with_special_tokens(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """Give a tokenizer that is a number what T5's data set asks for and ones of words have."""

    def post_init(self: Any) -> None:
        type(self.tokenizer).additional_special_tokens_ids = [0]
        check(self)

    return post_init


def main() -> None:
    """Run the script as it is, with such rows in place of documents."""
    script = Path(sys.argv[1])
    sys.argv = sys.argv[1:]
    root = next(folder for folder in script.resolve().parents if (folder / "megatron").is_dir())
    sys.path[:0] = [str(script.parent), str(root)]
    blended = import_module(f"{_DATASETS}.blended_megatron_dataset_builder")
    of_t5 = import_module(f"{_DATASETS}.t5_dataset").T5MaskedWordPieceDatasetConfig

    def build(self: Any) -> list[_Rows | None]:
        is_here = self.is_built_on_rank()
        return [_Rows(self.cls.__name__, self.config, n) if is_here else None for n in self.sizes]

    of_t5.__post_init__ = _with_special_tokens(of_t5.__post_init__)
    blended.BlendedMegatronDatasetBuilder.build = build
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
