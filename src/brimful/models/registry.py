"""The models that come with the package: data, one file per family. Reads no architecture."""

import json
from functools import cache
from importlib import resources
from typing import Any


@cache
def registry() -> dict[str, dict[str, Any]]:
    """Read the shipped models, the files in the order of their names.

    Returns for each name ``model_type``, ``config`` (fields of its config.json that decide bytes;
    its class fills in the others), ``num_parameters_official`` (null where only a rounded figure is
    published, which is ``published``) and ``source``: whose dimensions and count these are.
    ``read_in`` names the repositories in which copies of the configuration or the count were read;
    other addresses are named from memory. Where the model that is built has another count,
    ``difference`` says by how much (built minus official) and why. ``num_parameters`` is what
    ``transformers`` builds of a type that no reader here counts. Every count is tested against what
    is built.
    """
    folder = resources.files("brimful").joinpath("data/models")
    files = sorted(file.name for file in folder.iterdir() if file.name.endswith(".json"))
    models: dict[str, dict[str, Any]] = {}
    for name in files:
        models.update(json.loads(folder.joinpath(name).read_text("utf-8")))
    return models
