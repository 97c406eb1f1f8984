"""Transformers' Trainer, by a script of ours: what is exported for it are arguments, no program."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from brimful.programs.base import FOLDER, STEPS, Program, Rank, check_installed
from brimful.programs.mock_rows import few_steps, few_words

_STEP, _GIVEN = "hf_trainer_step.py", "given.json"
_NEEDED = ("transformers", "accelerate")


def program_of(  # noqa: PLR0913 - what a program around the Trainer says
    arguments: Mapping[str, Any],
    *,
    model: str,
    dtype: str,
    attention: str,
    lora: Mapping[str, Any] | None,
    seq_len: int,
    world_size: int,
) -> Program:
    """Return what is run for arguments of the Trainer.

    ``model``: as ``from_pretrained`` takes it. ``dtype``: in which it is loaded, as torch calls it.
    ``attention``: as ``attn_implementation`` takes it. ``lora``: of PEFT's ``LoraConfig``; None:
    all is trained. Raises InputError: a package is not installed.
    """
    check_installed("the Trainer", _NEEDED)
    changed = few_steps(arguments)
    accumulated = changed["gradient_accumulation_steps"]
    given = {
        "arguments": changed,
        "model": model,
        "dtype": dtype,
        "attention": attention,
        "lora": lora,
        "seq_len": seq_len,
        "num_rows": changed["per_device_train_batch_size"] * accumulated * world_size,
    }
    return Program(
        name=f"transformers {version('transformers')}'s Trainer",
        argv=(str(STEPS / _STEP), f"{FOLDER}/{_GIVEN}"),
        world_size=world_size,
        ranks=(Rank(0, "every GPU does the same"),),
        assume=("triton",),
        environment={"HF_HUB_OFFLINE": "1"},
        notes=(few_words(seq_len),),
        files=((_GIVEN, json.dumps(given)),),
    )
