"""DeepSpeed's engine around a model of transformers, by a script of ours.

What is exported for DeepSpeed is its JSON; model, rows and loop are the program's, and here as its
documentation has them.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from brimful.programs.base import FOLDER, STEPS, Program, Rank, check_installed
from brimful.programs.mock_rows import few_words, num_few

_STEP, _GIVEN, _PACKAGE = "deepspeed_step.py", "given.json", "deepspeed"
_BATCH, _MICRO_BATCH = "train_batch_size", "train_micro_batch_size_per_gpu"
_ACCUMULATED = "gradient_accumulation_steps"


def program_of(  # noqa: PLR0913 - what a program around DeepSpeed says
    config: Mapping[str, Any],
    *,
    model: str,
    head: str,
    undropped: Sequence[str],
    attention: str,
    lora: Mapping[str, Any] | None,
    seq_len: int,
    checkpoints: bool,
    world_size: int,
    rank: int,
) -> Program:
    """Return what is run for DeepSpeed's JSON.

    ``model``: as ``from_pretrained`` of ``head`` takes it. ``undropped``: fields
    of its configuration that are 0 here. ``attention``: as ``attn_implementation`` takes it.
    ``lora``: of PEFT's ``LoraConfig``; None: all is trained. ``checkpoints``: whether the model
    recomputes its blocks. Raises InputError: a package is not installed.
    """
    check_installed("DeepSpeed", (_PACKAGE, "transformers"), "DS_BUILD_OPS=0 pip install")
    accumulated = num_few(config)
    batch = config[_MICRO_BATCH] * accumulated * world_size
    given = {
        "config": {**config, _BATCH: batch, _ACCUMULATED: accumulated},
        "model": model,
        "head": head,
        "undropped": list(undropped),
        "attention": attention,
        "lora": lora,
        "checkpoints": checkpoints,
        "shape": [config[_MICRO_BATCH], seq_len],
    }
    return Program(
        name=f"DeepSpeed {version(_PACKAGE)}",
        argv=(str(STEPS / _STEP), f"{FOLDER}/{_GIVEN}"),
        world_size=world_size,
        ranks=(Rank(rank, "every GPU does the same, and this one holds most"),),
        assume=("triton",),
        environment={"HF_HUB_OFFLINE": "1", "DS_BUILD_OPS": "0"},
        notes=(few_words(seq_len),),
        files=((_GIVEN, json.dumps(given)),),
    )
