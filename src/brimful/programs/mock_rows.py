"""Rows that stand for a program's data: each as long as the program lets a row be."""

import json
from collections.abc import Mapping
from typing import Any

from brimful.programs.arguments import whole
from brimful.programs.base import FOLDER

PLACE = f"{FOLDER}/rows"
_FILE = "rows/train.jsonl"
_WORD = "a "
"""A word of two letters is a token or more, whatever the tokenizer."""
_STEPS, MOST_MICRO_BATCHES = 2, 2
"""Steps that are run, and micro-batches of each: the next ones do as the second does."""
_MOST_TOKENS = 4_000_000
"""Of all rows together: of more processes than have a row of their own, several have the same."""


def rows_file(kind: str, *, num_rows: int, num_tokens: int) -> tuple[str, str]:
    """Return a file of equal rows for a program, as its name and its text.

    ``kind``: ``text``, ``messages``, ``preference``, or ``tokens`` of as many as a row may have.
    ``num_tokens``: as many as a row may have; it is cut there.
    """
    least = max(1, min(num_rows, _MOST_TOKENS // num_tokens))
    row = _tokens(num_tokens) if kind == "tokens" else _row(kind, _WORD * num_tokens)
    line = json.dumps(row)
    return _FILE, f"{line}\n" * least


def _row(kind: str, text: str) -> Mapping[str, Any]:
    if kind == "messages":
        said = (("user", _WORD), ("assistant", text))
        return {"messages": [{"role": role, "content": content} for role, content in said]}
    if kind == "preference":
        half = text[: len(text) // 2]
        return {"prompt": _WORD, "chosen": half, "rejected": half}
    return {"text": text}


def _tokens(num: int) -> Mapping[str, Any]:
    ones = [1] * num
    return dict.fromkeys(("input_ids", "attention_mask", "labels"), ones)


def num_few(arguments: Mapping[str, Any]) -> int:
    """Return how many micro-batches of a step are run.

    Raises InputError: they say no number.
    """
    return min(whole(arguments, "gradient_accumulation_steps", 1), MOST_MICRO_BATCHES)


def few_steps(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of a Trainer with as few steps as show what all take, and no files.

    Source: ``TrainingArguments`` of transformers 5.23.0.

    Raises InputError: one of them is no number.
    """
    changed = {
        "output_dir": f"{FOLDER}/out",
        "max_steps": _STEPS,
        "gradient_accumulation_steps": num_few(arguments),
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "push_to_hub": False,
        "warmup_steps": 0,
        "disable_tqdm": True,
    }
    return {**arguments, **changed}


def few_words(seq_len: int) -> str:
    """Say what is run of a program."""
    return (
        f"{_STEPS} steps of at most {MOST_MICRO_BATCHES} micro-batches on mock rows of {seq_len} "
        f"tokens: no data, checkpoint or log is read or written"
    )
