"""The module ``transformer_engine_torch``: what is in it, and how Transformer Engine loads it."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from brimful.errors import UnsupportedError
from brimful.pretend.absent import StandIn
from brimful.pretend.known_values import KnownValues
from brimful.pretend.other_kernels import OtherKernels
from brimful.pretend.transformer_engine import attention, gemms, kernels, names, quantizing, routing

VERSION = "2.17"
PACKAGE = "transformer_engine_torch"
WORDS = (
    f"its Python, with Transformer Engine {VERSION}'s extension by what its functions allocate "
    "(transformer_engine/pytorch/csrc)"
)
_CHOICE = "transformer_engine.pytorch.attention.dot_product_attention.utils"
_PLUGIN = "grouped_mlp_experimental"


def stand_in(noted: OtherKernels, known: KnownValues) -> StandIn:
    """Return the extension; the package itself has to be installed."""
    functions: dict[str, Callable[..., Any]] = {
        **gemms.FUNCTIONS,
        **quantizing.FUNCTIONS,
        **kernels.FUNCTIONS,
        **attention.FUNCTIONS,
        **routing.functions(known),
    }

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            noted.launch(f"{PACKAGE}.{name}", {}, known)
            return function(*args, **kwargs)

        return call

    def fill(module: ModuleType) -> None:
        vars(module).update(names.NAMES)
        vars(module).update({name: noting(name, f) for name, f in functions.items()})
        vars(module)["__getattr__"] = _not_read

    return StandIn(
        version="",
        words=WORDS,
        fill=fill,
        is_module=lambda name: name == PACKAGE,
        environment={"NVTE_PROJECT_BUILDING": "1"},
        changes={
            "transformer_engine.common": _loads_no_library,
            _CHOICE: _plain_tensors,
            "transformer_engine.pytorch.tensor.nvfp4_tensor": _signs_are_unknown,
        },
    )


def _loads_no_library(common: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield what keeps Transformer Engine from looking for shared libraries."""

    def load(framework: str) -> None:
        if framework != "torch":
            raise ImportError(f"transformer_engine_{framework} is not there")
        __import__(PACKAGE)

    yield common, "load_framework_extension", load


def _plain_tensors(utils: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield what lets fused attention take pretend tensors: it asks for ``torch.Tensor`` itself.

    ``utils``: the module in which the kernel of attention is chosen.
    """
    choose = utils.get_attention_backend

    def choose_for_plain(attention_params: Any) -> Any:
        if issubclass(attention_params.qkv_type, FakeTensor):
            attention_params = dataclasses.replace(attention_params, qkv_type=torch.Tensor)
        return choose(attention_params)

    yield utils, "get_attention_backend", choose_for_plain


def _signs_are_unknown(nvfp4: Any) -> Iterator[tuple[Any, str, Any]]:
    """Yield what keeps NVFP4 from reading the signs of its Hadamard transform off the card.

    ``nvfp4``: ``transformer_engine.pytorch.tensor.nvfp4_tensor``.
    """
    yield nvfp4, "get_random_sign_mask_for_rht", lambda _with_signs, _device: 0


def _not_read(name: str) -> Any:
    if name.startswith("__") or name == _PLUGIN:
        raise AttributeError(name)

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        line = sys._getframe(1)  # noqa: SLF001 - who called
        raise UnsupportedError(
            f"{line.f_code.co_filename}:{line.f_lineno} calls {PACKAGE}.{name}, and nothing here "
            "knows what it allocates; use another kernel or recipe there"
        )

    return refuse
