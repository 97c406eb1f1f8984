"""Finding a model: a registry name, a folder, or a config.json. Owns every check of its fields."""

import json
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from brimful.errors import ModelConfigError, unknown_name
from brimful.models import gpt2, llama
from brimful.models.spec import ModelSpec, ParameterCount

ARCHITECTURES = {module.MODEL_TYPE: module for module in (llama, gpt2)}
MAX_SIZE = 10**7
"""No published width, depth or vocabulary comes near this; a larger figure is a typing error."""


@cache
def registry() -> dict[str, dict[str, Any]]:
    """Read the shipped models: name to ``model_type``, ``config`` and official parameter count."""
    text = resources.files("brimful").joinpath("data/models/decoders.json").read_text("utf-8")
    models: dict[str, dict[str, Any]] = json.loads(text)
    return models


def load_model(name_or_path: str) -> ModelSpec:
    """Resolve what the user called the model.

    Args:
        name_or_path: A registry name, a folder that holds a config.json, or such a file.

    Returns:
        The dimensions of the model.

    Raises:
        UnknownNameError: No such model and no such file.
        ModelConfigError: The file is broken, or its architecture is not known.
    """
    path = Path(name_or_path)
    if name_or_path in registry():
        entry = registry()[name_or_path]
        return read_config(name_or_path, {"model_type": entry["model_type"], **entry["config"]})
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return read_config(name_or_path, _read_json(path))
    if path.suffix == ".json" or len(path.parts) > 1:
        raise ModelConfigError(f"no config.json at {path}; give a folder that holds one, or a name")
    raise unknown_name("model", name_or_path, registry(), more="or give a folder or a config.json")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text("utf-8"))
    except json.JSONDecodeError as error:
        raise ModelConfigError(
            f"{path} is not JSON (line {error.lineno}: {error.msg}); mend it or download it again"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ModelConfigError(f"{path} cannot be read ({error}); check the file") from error
    if not isinstance(config, dict):
        raise ModelConfigError(f"{path} holds a {type(config).__name__}, not a JSON object")
    return config


def read_config(name: str, config: dict[str, Any]) -> ModelSpec:
    """Turn raw configuration fields into a checked ``ModelSpec``.

    Raises:
        ModelConfigError: A field is missing, absurd or contradicts another.
    """
    model_type = config.get("model_type")
    if model_type not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelConfigError(f"{name} has model_type {model_type!r}; this version knows {known}")
    module = ARCHITECTURES[model_type]
    missing = [field for field in module.REQUIRED if field not in config]
    if missing:
        raise ModelConfigError(f"{name} lacks {', '.join(missing)}; add it to its config.json")
    try:
        spec: ModelSpec = module.read(name, {k: v for k, v in config.items() if k != "model_type"})
    except (TypeError, ZeroDivisionError) as error:
        raise ModelConfigError(f"{name} has a size that is not a whole number above 0") from error
    _check(spec)
    return spec


def _check(spec: ModelSpec) -> None:
    for field in (
        "hidden_size",
        "intermediate_size",
        "num_layers",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "vocab_size",
        "max_seq_len",
    ):
        size = getattr(spec, field)
        if type(size) is not int or not 0 < size <= MAX_SIZE:
            raise ModelConfigError(
                f"{spec.name} has {field}={size!r}; it must be a whole number from 1 to {MAX_SIZE}"
            )
    if spec.hidden_size % spec.num_heads:
        raise ModelConfigError(
            f"{spec.name} has num_heads={spec.num_heads}, which does not divide "
            f"hidden_size={spec.hidden_size}; change one of them"
        )
    if spec.num_heads % spec.num_kv_heads:
        raise ModelConfigError(
            f"{spec.name} has num_kv_heads={spec.num_kv_heads}, which does not divide "
            f"num_heads={spec.num_heads}; change one of them"
        )


def parameter_count(spec: ModelSpec) -> ParameterCount:
    """Count the parameters of a model by the closed form of its architecture."""
    count: ParameterCount = ARCHITECTURES[spec.model_type].parameter_count(spec)
    return count
