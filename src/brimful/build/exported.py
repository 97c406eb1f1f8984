"""Reading a folder of ``brimful convert`` into a model whose layers hold its format."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from brimful.build.weight_files import opened, pieces
from brimful.errors import FileFormatError, InputError


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped to mypy
def read_exported(model: nn.Module, folder: Path) -> None:
    """Copy every tensor of a folder into a model that has room for it.

    ``model``: filled with anything; its layers hold the folder's format. ``folder``: written by
    ``brimful convert``.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder} holds no safetensors; give a folder of brimful convert")
    room = _room(model)
    for path in files:
        with opened(path) as tensors:
            for name in tensors.keys():  # noqa: SIM118 - no mapping
                _copy(room, name, tensors.get_slice(name), path)
    if missing := sorted(set(room) - _tied(model)):
        raise FileFormatError(f"{folder} lacks {missing[0]}; convert the model again")


def _room(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return where each tensor of a file goes, by its name there."""
    room: dict[str, torch.Tensor] = {}
    for name, held in model.named_parameters(remove_duplicate=False):
        path, _, last = name.rpartition(".")
        if hasattr(held, "__tensor_flatten__"):
            parts = held.__tensor_flatten__()[0]
            room |= {f"{path}._{last}_{part}": getattr(held, part) for part in parts}
        else:
            room[name] = held.data
    return room


def _tied(model: Any) -> set[str]:
    """Return names that a file leaves out, since another one stands for them."""
    return set(getattr(model, "all_tied_weights_keys", {}) or {})


def _copy(room: dict[str, torch.Tensor], name: str, stored: Any, path: Path) -> None:
    """Copy a tensor piece by piece: beside a model there is no room for its largest one again."""
    target, shape = room.pop(name, None), tuple(stored.get_shape())
    if target is None or target.shape != shape:
        has = "no such tensor" if target is None else f"{tuple(target.shape)} of {target.dtype}"
        raise FileFormatError(
            f"{path} holds {name}, {shape} of {stored.get_dtype()}, and the model has {has}; "
            f"convert the model again"
        )
    for where, values in pieces(stored):
        target[where].copy_(values)
