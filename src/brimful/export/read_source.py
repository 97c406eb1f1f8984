"""A file of another program's settings read back, whichever program's it is."""

from pathlib import Path
from typing import Any

from brimful.errors import FileFormatError
from brimful.export import read_axolotl as axolotl
from brimful.export import read_llama_factory as llama_factory
from brimful.export.leaves import Read
from brimful.export.read_accelerate import is_accelerate, read_accelerate
from brimful.export.read_deepspeed import read_deepspeed
from brimful.plan import load_yaml

_YAML = {".yaml", ".yml"}


def model_of(path: Path) -> str:
    """Return the model that a file names; empty where it names none.

    Raises:
        FileFormatError: It cannot be read, or names no text.
    """
    if path.suffix.lower() not in _YAML:
        return ""
    content = _content(path)
    if axolotl.is_axolotl(content):
        name = content[axolotl.MODEL]
    elif llama_factory.is_llama_factory(content):
        name = content[llama_factory.MODEL]
    else:
        return ""
    if not isinstance(name, str) or not name:
        raise FileFormatError(f"{path} names {name!r} as its model; give a name")
    return name


def read_source(path: Path, *, num_devices: int, num_layers: int) -> Read:
    """Read Accelerate's, Axolotl's or LLaMA-Factory's YAML, or DeepSpeed's JSON.

    Args:
        path: Of the file.
        num_devices: That it is planned for.
        num_layers: Blocks of the model.

    Raises:
        FileFormatError: It is none of these, or holds a value of another type.
        InputError: Its numbers do not go together.
        UnsupportedError: This version plans nothing like it.
    """
    sizes = {"num_devices": num_devices, "num_layers": num_layers}
    if path.suffix.lower() not in _YAML:
        return read_deepspeed(path, **sizes)
    content = _content(path)
    if axolotl.is_axolotl(content):
        return axolotl.read_axolotl(path, content, **sizes)
    if llama_factory.is_llama_factory(content):
        return llama_factory.read_llama_factory(path, content, **sizes)
    if is_accelerate(content):
        return read_accelerate(path, content, **sizes)
    raise FileFormatError(
        f"{path} is neither DeepSpeed's JSON, Accelerate's YAML, which names its distributed_type, "
        f"Axolotl's (base_model) nor LLaMA-Factory's (model_name_or_path); give one of these"
    )


def _content(path: Path) -> dict[str, Any]:
    content = load_yaml(path)
    return content if isinstance(content, dict) else {}
