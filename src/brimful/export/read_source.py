"""A file of another program's settings read back, whichever program's it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from brimful.errors import FileFormatError
from brimful.export import read_axolotl as axolotl
from brimful.export import read_grpo, script_leaves
from brimful.export import read_litgpt as litgpt
from brimful.export import read_llama_factory as llama_factory
from brimful.export import read_nanotron as nanotron
from brimful.export import read_swift as swift
from brimful.export import read_torchtitan as torchtitan
from brimful.export import read_torchtune as torchtune
from brimful.export import read_trainer as trainer
from brimful.export.leaves import Read, load_json
from brimful.export.read_accelerate import is_accelerate, read_accelerate
from brimful.export.read_deepspeed import PROGRAM as DEEPSPEED
from brimful.export.read_deepspeed import read_settings
from brimful.export.read_grpo import Rollouts
from brimful.values.plan import load_yaml

_YAML = {".yaml", ".yml"}
_TOML = ".toml"
_KINDS = {
    ".py": "a program of Python's: brimful pretend runs it",
    ".sh": "a script: brimful pretend runs the command that it starts",
    ".ini": "an INI file",
    ".cfg": "an INI file",
    ".xml": "XML",
    ".csv": "a table",
    ".jsonl": "lines of JSON, as data are",
    ".safetensors": "a file of weights",
    ".gguf": "a file of weights",
    ".ipynb": "a notebook",
}
"""Files that are nobody's settings, by their endings."""
_SHOWN = 40
"""Characters of a value that an error repeats."""
READ = (
    "DeepSpeed's JSON, Accelerate's YAML, which names its distributed_type, Axolotl's "
    "(base_model), LLaMA-Factory's or TRL's (model_name_or_path), the Trainer's "
    "(per_device_train_batch_size), ms-swift's (model, train_type), "
    "torchtune's (_component_), LitGPT's (train.micro_batch_size), nanotron's (model_config) or "
    "torchtitan's TOML"
)
"""What is read, and by what each is known."""


def model_of(path: Path) -> str:
    """Return the model that a file names; empty where it names none."""
    content = content_of(path)
    if _is_toml(path):
        return torchtitan.model_of(content)
    if torchtune.is_torchtune(content):
        return torchtune.model_of(content)
    if nanotron.is_nanotron(content):
        return nanotron.model_of(path, content)
    if litgpt.is_litgpt(content):
        return litgpt.model_of(content)
    keys = (axolotl.MODEL, *script_leaves.MODELS, swift.MODEL)
    key = next((key for key in keys if key in content), None)
    if key is None:
        program_of(path, content)  # which says what is read, where the file is nobody's
        return ""
    name = content[key]
    if not isinstance(name, str) or not name:
        program_of(path, content)
        raise FileFormatError(f"{path} names {_shown(name)} as its model under {key}; give a name")
    return name


def _shown(value: Any) -> str:
    """Say what stands where a name may stand, and of a section not what is in it."""
    kinds = {dict: "a section", list: "a list", type(None): "nothing"}
    return kinds.get(type(value)) or repr(value)[:_SHOWN]


def unnamed_words(path: Path) -> str:
    """Say why a file names no model.

    Raises FileFormatError: it cannot be read.
    """
    content = content_of(path)
    return torchtune.unnamed_words(content) if torchtune.is_torchtune(content) else "names none"


def program_of(path: Path, content: dict[str, Any] | None = None) -> str:
    """Return whose file it is, as ``--for`` names the program.

    ``content``: of it, where that was loaded already.
    """
    if content is None:
        content = content_of(path)
    if _is_toml(path):
        if torchtitan.is_torchtitan(content):
            return "torchtitan"
        raise FileFormatError(
            f"{path} is TOML, and none of torchtitan's, which has sections training and "
            f"parallelism; what is read is {READ}"
        )
    name = next((name for name, is_its in _KNOWN_BY.items() if is_its(content)), "")
    if name:
        return name
    if trainer.is_trainer(content):
        return (
            "trl" if trainer.MODEL in content and not trainer.is_script(content) else "hf-trainer"
        )
    if path.suffix.lower() not in _YAML:
        return "deepspeed"
    raise FileFormatError(f"{path} is none of what is read, which is {READ}; give one of these")


def read_source(
    path: Path, *, num_devices: int, num_layers: int, content: dict[str, Any] | None = None
) -> Read:
    """Read the settings of another program.

    ``content``: what would stand in it; None: what does. Raises FileFormatError: it is none of
    these, or holds a value of another type. Raises InputError: its numbers do not go together.
    Raises UnsupportedError: this version plans nothing like it.
    """
    if content is None:
        content = content_of(path)
    read = _READERS[program_of(path, content)]
    return read(path, content, num_devices=num_devices, num_layers=num_layers)


def rollouts_of(path: Path) -> Rollouts | None:
    """Return what a file has beside the update of a policy; None: it is of none.

    Raises FileFormatError: it cannot be read.
    """
    content = content_of(path)
    return read_grpo.rollouts_of(content) if read_grpo.is_grpo(content) else None


def _is_toml(path: Path) -> bool:
    return path.suffix.lower() == _TOML


def content_of(path: Path) -> dict[str, Any]:
    """Load a file by its kind."""
    kind = path.suffix.lower()
    if kind in _KINDS:
        raise FileFormatError(f"{path} is {_KINDS[kind]}; what is read here is {READ}")
    if _is_toml(path):
        return torchtitan.load_toml(path)
    if kind not in _YAML:
        return load_json(path, DEEPSPEED)
    content = load_yaml(path)
    return content if isinstance(content, dict) else {}


_KNOWN_BY: dict[str, Callable[[dict[str, Any]], bool]] = {
    "torchtune": torchtune.is_torchtune,
    "nanotron": nanotron.is_nanotron,
    "litgpt": litgpt.is_litgpt,
    "axolotl": axolotl.is_axolotl,
    "llama-factory": llama_factory.is_llama_factory,
    "accelerate": is_accelerate,
    "ms-swift": swift.is_swift,
}
"""What knows a program's keys, of those that are asked for before the Trainer's."""
_READERS: dict[str, Callable[..., Read]] = {
    "axolotl": axolotl.read_axolotl,
    "llama-factory": llama_factory.read_llama_factory,
    "accelerate": read_accelerate,
    "trl": trainer.read_trainer,
    "hf-trainer": trainer.read_trainer,
    "deepspeed": read_settings,
    "torchtitan": torchtitan.read_torchtitan,
    "torchtune": torchtune.read_torchtune,
    "nanotron": nanotron.read_nanotron,
    "litgpt": litgpt.read_litgpt,
    "ms-swift": swift.read_swift,
}
