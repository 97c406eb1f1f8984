"""A model that a script builds by a configuration which it writes out: ``XConfig(...)``.

Where the script cannot be run, the configuration is made by transformers' own class, and written as
the file that a folder of a model has. Of what is no language model its parameters are counted.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from brimful.errors import BrimfulError
from brimful.units import format_bytes, format_count

_CONFIG, _FROM_CONFIG, _HEADS = "Config", "from_config", "For"
_FP32_BYTES = 4
_NUM_TRIED = 64
"""Numbers of the parameter that an optimizer is tried with."""
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
        state_bytes: What it keeps of a parameter in fp32.
    """

    folder: Path
    config: str
    model: str
    is_fp32: bool
    optimizer: str
    state_bytes: int


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
    tried = ((_name(call), _kept(call)) for call in calls)
    name, num_bytes = next(((n, num) for n, num in tried if num is not None), ("", 0))
    return Written(folder / config, config, model, said.isdisjoint(_DTYPES), name, num_bytes)


def _kept(call: ast.Call) -> int | None:
    """Return the bytes that an optimizer of torch.optim keeps of a parameter in fp32.

    Tried on a small one, with the arguments that are written out. None: it is no such optimizer.
    """
    import torch

    found = getattr(torch.optim, _name(call), None)
    if not isinstance(found, type) or not issubclass(found, torch.optim.Optimizer):
        return None
    told = ((each.arg, each.value) for each in call.keywords if each.arg)
    given = {name: each.value for name, each in told if isinstance(each, ast.Constant)}
    parameter = torch.zeros(_NUM_TRIED, requires_grad=True)
    parameter.grad = torch.zeros(_NUM_TRIED)
    try:
        optimizer = found([parameter], **given)
        optimizer.step()
    except Exception:  # noqa: BLE001 - whatever a class says of a script's values
        return None
    kept = optimizer.state[parameter].values()
    whole: int = sum(x.numel() for x in kept if isinstance(x, torch.Tensor) and x.numel() > 1)
    return whole * _FP32_BYTES // _NUM_TRIED


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
    told, each = "weights and gradients", 2 * _FP32_BYTES
    if written.optimizer:
        told = f"weights, gradients and the state of {written.optimizer}"
        each += written.state_bytes
    whose = f"{type(model).__name__} of its {written.config}"
    return (
        f"{whose} has {format_count(num)} parameters: {told} take {format_bytes(num * each)} in "
        f"fp32, if all are trained; activations come on top"
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
