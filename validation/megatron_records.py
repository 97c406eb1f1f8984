"""Reads what Megatron-LM's own tests recorded of memory, with their command lines.

``python validation/megatron_records.py CHECKOUT`` writes ``megatron_records.xz``, which ``--part
megatron_records`` predicts. Each of the tests (``tests/functional_tests/test_cases``) has a YAML of
arguments, and for each machine that it ran on what TensorBoard was told of the last process: the
most bytes so far (``mem-max-allocated-bytes``), and those between steps (``mem-allocated-bytes``).
How many GPUs there were is said by the recipes (``tests/test_utils/recipes``).
"""

import argparse
import json
import lzma
import shlex
from collections.abc import Iterator
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from brimful.errors import BrimfulError
from brimful.programs.reading import read_command

HERE = Path(__file__).parent
FILE = HERE / "megatron_records.xz"
SOURCE = "NVIDIA/Megatron-LM d98e8a64dd (2026-08-22), tests/functional_tests and tests/test_utils"
_CASES, _RECIPES = "tests/functional_tests/test_cases", "tests/test_utils/recipes"
_NODE = 8
"""GPUs where no recipe runs the test any longer: what its shell scripts start."""
_CARDS = {"gb200": "gb200", "h100": "h100-80gb"}
_OLDER_CARD = "a100-80gb"
"""Of all other machines: the names of old ones say A100, or nothing."""
_PLATFORMS = {"gb200": "dgx_gb200", "h100-80gb": "dgx_h100", _OLDER_CARD: "dgx_a100"}
_AGAIN = "_2nd"
"""Ends the name of what a run recorded that went on from a checkpoint."""
_VARIABLES = ("CUBLAS_", "PYTORCH_", "NVTE_")
"""Beginnings of those that change what is allocated."""


class MegatronRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of one of Megatron-LM's tests.

    Attributes:
        name: Kind of model, test and machine.
        command: Its command line; files by their names alone.
        gpu: A card of ``brimful gpus``.
        world_size: Processes.
        has_recipe: Whether a recipe says how many; otherwise 8.
        published_peak_allocated_bytes: The most that the last process had, of all steps.
        published_between_steps_bytes: What it had when the last step had ended; None: not recorded.
    """

    name: str
    command: str
    gpu: str
    world_size: int
    has_recipe: bool
    published_peak_allocated_bytes: int
    published_between_steps_bytes: int | None


class Recipe(NamedTuple):
    """What starts a test on a machine.

    Attributes:
        script: What is trained by; empty: the recipe does not say.
        world_size: Processes.
    """

    script: str
    world_size: int


def main() -> None:
    """Read a checkout."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("checkout", type=Path)
    found = list(_records(parser.parse_args().checkout))
    lines = b"".join(msgspec.json.encode(each) + b"\n" for each in found)
    FILE.write_bytes(lzma.compress(lines, preset=9))
    print(f"{len(found)} records, {FILE.stat().st_size:,} bytes")


def read_records() -> list[MegatronRecord]:
    """Return what was read of the checkout."""
    lines = lzma.decompress(FILE.read_bytes()).splitlines()
    return [msgspec.json.decode(line, type=MegatronRecord) for line in lines]


def _records(checkout: Path) -> Iterator[MegatronRecord]:
    recipes = _recipes(checkout / _RECIPES)
    for path in sorted((checkout / _CASES).glob("*/*/golden_values*.json")):
        machine = path.stem.removeprefix("golden_values_")
        gpu = next((card for of, card in _CARDS.items() if of in machine), _OLDER_CARD)
        model, test = path.parts[-3:-1]
        recipe = _recipe(recipes, model, test, gpu)
        most, between = _figures(path)
        command = _command(path.with_name("model_config.yaml"), recipe.script if recipe else "")
        if most and command:
            yield MegatronRecord(
                name=f"{model}/{test}/{machine}",
                command=command,
                gpu=gpu,
                world_size=recipe.world_size if recipe else _NODE,
                has_recipe=recipe is not None,
                published_peak_allocated_bytes=max(most),
                published_between_steps_bytes=between[-1] if between else None,
            )


def _recipe(
    recipes: dict[tuple[str, str, str], Recipe], model: str, test: str, gpu: str
) -> Recipe | None:
    """Return that of the card; A100s and H100s are eight to a node alike."""
    nodes_of_eight = [each for card, each in _PLATFORMS.items() if card != "gb200"]
    machines = [_PLATFORMS[gpu], *(nodes_of_eight if gpu != "gb200" else [])]
    found = (recipes.get((model, test, each)) for each in machines)
    return next(filter(None, found), None)


def _recipes(folder: Path) -> dict[tuple[str, str, str], Recipe]:
    """Return the recipes of tests by model, test and machine."""
    found: dict[tuple[str, str, str], Recipe] = {}
    for path in sorted(folder.glob("*/*.yaml")):
        content = yaml.safe_load(path.read_text("utf-8"))
        spec = content.get("spec", {})
        script = _script(spec.get("script", ""))
        for group in content.get("products", []):
            for test, told in product(group["test_case"], group["products"]):
                of = {**spec, **told}
                for platform, gpus, nodes in product(*map(_listed, _places(of))):
                    key = (str(spec["model"]), str(test), str(platform).replace(" ", ""))
                    found.setdefault(key, Recipe(script, gpus * nodes))
    return found


def _places(told: dict[str, Any]) -> tuple[Any, Any, Any]:
    return told["platforms"], told["gpus"], told["nodes"]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _script(text: str) -> str:
    """Return the script that a recipe's shell lines name."""
    words = text.replace('"', " ").split()
    named = [word for word in words if word.startswith("TRAINING_SCRIPT_PATH=")]
    return Path(named[0].partition("=")[2]).name if named else ""


_KINDS = ("max-allocated-bytes", "allocated-bytes")


def _figures(path: Path) -> tuple[list[int], list[int]]:
    content = json.loads(path.read_text("utf-8") or "{}")  # two are empty
    most, between = (_series(content.get(f"mem-{kind}")) for kind in _KINDS)
    return most, between


def _series(found: Any) -> list[int]:
    values = found.get("values", found) if isinstance(found, dict) else found
    values = values.values() if isinstance(values, dict) else _listed(values)
    return [int(each) for each in values if isinstance(each, int | float)]


def _command(path: Path, script: str) -> str:
    """Return the command line of a YAML of arguments; empty: nothing is trained."""
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
        command = read_command(str(path))
    except (OSError, BrimfulError):
        return ""
    if content.get("MODE", "pretraining") != "pretraining":
        return ""
    kept = {k: v for k, v in command.environment.items() if k.startswith(_VARIABLES)}
    # Paths of the machine that they ran on say nothing but what a file is called.
    words = (Path(word).name if "${" in word else word for word in command.arguments)
    variables = (f"{name}={value}" for name, value in kept.items())
    return shlex.join(chain(variables, [script or Path(command.script).name], words))


if __name__ == "__main__":
    main()
