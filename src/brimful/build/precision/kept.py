"""Modules that are held and computed in fp32 while the rest of a recipe computes in 16 bits.

A *border* is laid around each. What comes in is widened to fp32 and autocast is off inside. Under
autocast what goes out stays fp32, as what autocast itself computes in fp32 does; where a recipe
computes in 16 bits without autocast (plain, masters, shards gathered in 16 bits) it is narrowed
again, because what follows takes no other type.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, wraps
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from brimful.errors import InputError, unknown_name
from brimful.models.module_paths import ends_in

_RETURNED = "brimful_returned"
"""Attribute of a kept module: the type that it hands on; None: fp32."""
_LISTS = (nn.ModuleList, nn.ModuleDict)
_is_crossed = True


def find_kept(model: nn.Module, names: Sequence[str]) -> dict[str, nn.Module]:
    """Find the modules that are named, each by its path.

    ``names``: last parts of paths: ``norm``, ``mlp.gate``, ``layers.0.input_layernorm``. Returns
    those that lie in no other one; in the order of the model. Raises InputError: a name names
    nothing, or what is never called itself.
    """
    paths = {path: module for path, module in model.named_modules() if path}
    for name in names:
        _check_name(name, paths)
    found = {path: module for path, module in paths.items() if ends_in(path, names)}
    return {path: module for path, module in found.items() if not _lies_in(path, found)}


def _check_name(name: str, paths: dict[str, nn.Module]) -> None:
    found = {path: module for path, module in paths.items() if ends_in(path, (name,))}
    if not found:
        known = {last for path in paths if not (last := path.rpartition(".")[2]).isdigit()}
        raise unknown_name("module to keep in fp32", name, known)
    path = next((path for path, module in found.items() if isinstance(module, _LISTS)), None)
    if path is not None:
        raise InputError(
            f"keep_fp32={name} names a list of modules, which is never called itself; name its "
            f"members, such as {path}.0"
        )


def _lies_in(path: str, others: Iterable[str]) -> bool:
    return any(path.startswith(f"{other}.") for other in others)


def sharing(model: nn.Module, kept: Iterable[nn.Module]) -> list[nn.Module]:
    """List the modules outside of ``kept`` that have a parameter of theirs: tied weights."""
    inside = {id(module) for one in kept for module in one.modules()}
    shared = {id(parameter) for one in kept for parameter in one.parameters()}
    return [
        module
        for module in model.modules()
        if id(module) not in inside
        and any(id(parameter) in shared for parameter in module.parameters(recurse=False))
    ]


def hold_fp32(module: nn.Module) -> None:
    """Hold the parameters and buffers of a module, and of those inside it, in fp32."""
    for inner in module.modules():
        for parameter in inner.parameters(recurse=False):
            parameter.data = _widened(parameter.data)
        for name, buffer in inner._buffers.items():  # noqa: SLF001 - ``named_buffers`` is read only
            inner._buffers[name] = None if buffer is None else _widened(buffer)  # noqa: SLF001


def hold(model: nn.Module, dtype: torch.dtype, *, besides: Iterable[nn.Module]) -> None:
    """Hold a model in a type, in place, but for modules that stay as they are."""
    left = {id(inner) for module in besides for inner in module.modules()}
    for module in model.modules():
        if id(module) not in left:
            module._apply(partial(_narrowed, dtype=dtype), recurse=False)  # noqa: SLF001 - as ``to``


def lay_border(module: nn.Module, *, returned: torch.dtype | None) -> None:
    """Let a module run in fp32, whatever surrounds it.

    ``module``: its own ``forward`` stands; hooks of the module see what is outside of the border.
    ``returned``: the type of what it hands on; None: fp32.
    """
    inside = module.forward

    @wraps(inside)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not _is_crossed:
            return inside(*args, **kwargs)
        args, kwargs = _map((args, kwargs), _widened)
        with _without_autocast((args, kwargs)):
            out = inside(*args, **kwargs)
        return out if returned is None else _map(out, partial(_narrowed, dtype=returned))

    module.forward = forward
    setattr(module, _RETURNED, returned)


def kept_modules(model: nn.Module) -> list[nn.Module]:
    """List the modules that have a border, in the order of the model."""
    return [module for module in model.modules() if hasattr(module, _RETURNED)]


def returned_by(module: nn.Module) -> torch.dtype | None:
    """Return the type that a kept module hands on; None of one that is not kept, or for fp32."""
    returned: torch.dtype | None = getattr(module, _RETURNED, None)
    return returned


@contextlib.contextmanager
def without_borders() -> Iterator[None]:
    """Let every module run in the type of what it is given inside the block."""
    global _is_crossed  # noqa: PLW0603 - of the process, as autocast's own switches are
    before, _is_crossed = _is_crossed, False
    try:
        yield
    finally:
        _is_crossed = before


def crosses_borders() -> bool:
    """Whether modules run in types of their own: outside of ``without_borders``."""
    return _is_crossed


def _without_autocast(given: Any) -> contextlib.AbstractContextManager[None]:
    tensors = (x for x in pytree.tree_leaves(given) if isinstance(x, torch.Tensor))
    first = next(tensors, None)
    if first is None:
        return contextlib.nullcontext()
    context: contextlib.AbstractContextManager[None] = torch.autocast(
        first.device.type, enabled=False
    )
    return context


def _map(tree: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return pytree.tree_map_only(torch.Tensor, change, tree)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def _narrowed(tensor: torch.Tensor, *, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
