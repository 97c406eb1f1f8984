"""Accelerate's ``Accelerator``, by a script of ours: what is exported for it are its settings."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from brimful.programs.base import FOLDER, STEPS, Program, Rank, check_installed
from brimful.programs.mock_rows import few_words
from brimful.text.escaping import yaml_text

_STEP, _CONFIG, _GIVEN = "accelerate_step.py", "accelerate.yaml", "given.json"
_NEEDED = ("accelerate", "transformers")


def program_of(
    config: Mapping[str, Any], given: Mapping[str, Any], *, seq_len: int, world_size: int, rank: int
) -> Program:
    """Return what is run for a configuration of Accelerate's launcher.

    ``given``: what the program around it says, as ``steps/accelerate_step.py`` lists it. Raises
    InputError: a package is not installed.
    """
    check_installed("Accelerate", _NEEDED)
    num_rows = given["micro_batch"] * given["accumulated"] * world_size
    content = {**given, "seq_len": seq_len, "num_rows": num_rows}
    return Program(
        name=f"Accelerate {version('accelerate')}'s Accelerator",
        argv=(str(STEPS / _STEP), f"{FOLDER}/{_CONFIG}", f"{FOLDER}/{_GIVEN}"),
        world_size=world_size,
        ranks=(Rank(rank, "every GPU does the same"),),
        assume=("triton",),
        environment={"HF_HUB_OFFLINE": "1"},
        notes=(f"{few_words(seq_len)}; the loop around the Accelerator is a script of Brimful's",),
        files=((_CONFIG, yaml_text(dict(config))), (_GIVEN, json.dumps(content))),
    )
