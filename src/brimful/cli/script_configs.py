"""A model that a script builds by a configuration which it writes out: ``XConfig(...)``.

Where the script cannot be run, the configuration is made by transformers' own class, and written as
the file that a folder of a model has. Of what is no language model its parameters are counted.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from brimful.errors import BrimfulError
from brimful.units import format_bytes, format_count

_CONFIG, _FROM_CONFIG, _HEADS = "Config", "from_config", "For"
_FP32_BYTES = 4
_SIDE = 64
"""Of the matrix that an optimizer is tried with."""
_OF_KERNELS = frozenset({"capturable", "differentiable", "foreach", "fused", "params"})
"""Arguments of an optimizer that change nothing of what it keeps."""
_OTHER = 0.5
"""Stands for an argument that is not known, beside its default."""
_DTYPES = ("dtype", "torch_dtype")
Constant = Callable[[ast.expr], Any]


class Written(NamedTuple):
    """A configuration that is written out.

    Attributes:
        folder: That holds it.
        config: Its class.
        model: Class of what is built of it; empty: one that transformers chooses.
        is_fp32: Whether nothing says a type of its weights.
        optimizer: Of torch.optim that is called; empty: none.
        state_bytes: What it keeps of a parameter in fp32; None: unknown.
    """

    folder: Path
    config: str
    model: str
    is_fp32: bool
    optimizer: str
    state_bytes: int | None


def written_config(calls: Sequence[ast.Call], value: Constant, folder: Path) -> Written | None:
    """Write the configuration that a script's calls make; None: not one alone is written out.

    ``value``: of an expression, where it is known. ``folder``: in which it is put.
    """
    kinds = _kinds() if any(_name(call).endswith(_CONFIG) for call in calls) else {}
    made = [call for call in calls if _name(call) in kinds]
    if len(made) != 1:
        return None
    config, arguments = _name(made[0]), _arguments(made[0], value)
    builds = [call for call in calls if _builds(call, config)]
    if arguments is None or not builds:
        return None
    name = _name(builds[0])
    model = "" if name == _FROM_CONFIG else name
    if model:
        arguments["architectures"] = [model]
    try:
        from transformers import AutoConfig

        AutoConfig.for_model(kinds[config], **arguments).save_pretrained(folder / config)
    except Exception:  # noqa: BLE001 - whatever a library's class says of a script's values
        return None
    said = {each.arg for call in builds for each in call.keywords} | {*arguments}
    tried = (_optimizer_of(call, value) for call in calls)
    name, num_bytes = next((each for each in tried if each is not None), ("", 0))
    return Written(folder / config, config, model, said.isdisjoint(_DTYPES), name, num_bytes)


def _optimizer_of(call: ast.Call, value: Constant) -> tuple[str, int | None] | None:
    """Return which optimizer of torch.optim a call makes, and the bytes that it keeps.

    They are of a parameter in fp32, as one that is tried keeps them of a matrix with the arguments
    that are known; None: one of those that are not may change it. None: it is no such optimizer.
    """
    import torch

    name = _name(call)
    found = getattr(torch.optim, name, None)
    if not isinstance(found, type) or not issubclass(found, torch.optim.Optimizer):
        return None
    is_elsewhere = any(each.arg is None for each in call.keywords)
    if is_elsewhere or any(isinstance(each, ast.Starred) for each in call.args):
        return name, None
    _, *places = signature(found).parameters
    told = dict(zip(places, call.args[1:], strict=False))
    told |= {str(each.arg): each.value for each in call.keywords if each.arg not in _OF_KERNELS}
    known = {each: at.value if isinstance(at, ast.Constant) else value(at)
             for each, at in told.items()}  # fmt: skip
    given = {each: what for each, what in known.items()
             if what is not None or isinstance(told[each], ast.Constant)}  # fmt: skip
    kept = _tried(found, given)
    others = (_tried(found, {**given, each: _OTHER}) for each in known.keys() - given.keys())
    return name, kept if all(other in {kept, None} for other in others) else None


def _tried(made: Callable[..., Any], given: Mapping[str, Any]) -> int | None:
    """Return the bytes that an optimizer keeps of a parameter; None: it does not take this."""
    import torch

    parameter = torch.zeros(_SIDE, _SIDE, requires_grad=True)
    parameter.grad = torch.zeros(_SIDE, _SIDE)
    try:
        optimizer = made([parameter], **given)
        optimizer.step()
    except Exception:  # noqa: BLE001 - whatever a class says of a script's values
        return None
    kept = optimizer.state[parameter].values()
    whole: int = sum(x.numel() for x in kept if isinstance(x, torch.Tensor) and x.numel() > 1)
    return whole * _FP32_BYTES // _SIDE**2


def least_words(written: Written) -> str:
    """Say what weights, gradients and an optimizer's state take of a model; empty: it is unknown.

    All of its parameters are taken to train, in fp32.
    """
    import torch
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(written.folder)
        with torch.device("meta"):
            if written.model:
                model = getattr(transformers, written.model)(config)
            else:
                model = transformers.AutoModel.from_config(config)
    except Exception:  # noqa: BLE001 - whatever a library's class needs
        return ""
    num = sum(parameter.numel() for parameter in model.parameters())
    told, each, on_top = "weights and gradients", 2 * _FP32_BYTES, "activations"
    if written.state_bytes is None:
        on_top = f"activations and the state of {written.optimizer}, which is unknown,"
    elif written.optimizer:
        told = f"weights, gradients and the state of {written.optimizer}"
        each += written.state_bytes
    whose = f"{type(model).__name__} of its {written.config}"
    return (
        f"{whose} has {format_count(num)} parameters: {told} take {format_bytes(num * each)} in "
        f"fp32, if all are trained; {on_top} come on top"
    )


def is_planned(folder: Path) -> bool:
    """Whether a folder's model can be planned."""
    from brimful.models.config import load_model

    try:
        return bool(load_model(str(folder)))
    except BrimfulError:
        return False


def _kinds() -> Mapping[str, str]:
    """Return of which type of model each of transformers' configurations is, by their names."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return {name: kind for kind, name in CONFIG_MAPPING_NAMES.items()}


def _arguments(call: ast.Call, value: Constant) -> dict[str, Any] | None:
    """Return the arguments of a call; None where one is not known."""
    found = {each.arg: value(each.value) for each in call.keywords if each.arg}
    is_none = {each.arg for each in call.keywords
               if isinstance(each.value, ast.Constant) and each.value.value is None}  # fmt: skip
    unknown = [name for name, each in found.items() if each is None and name not in is_none]
    return None if call.args or unknown or len(found) < len(call.keywords) else found


def _builds(call: ast.Call, config: str) -> bool:
    """Whether a call makes a model of a configuration."""
    name = _name(call)
    if name == _FROM_CONFIG:
        return True
    family = config.removesuffix(_CONFIG)
    return name.startswith(family) and (_HEADS in name or name.endswith("Model"))


def _name(call: ast.Call) -> str:
    called = call.func
    return str(getattr(called, "attr", None) or getattr(called, "id", ""))
