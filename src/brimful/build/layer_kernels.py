"""Layers that a class of transformers hands to packages of kernels, or runs by its own code.

A class looks for a package when its module is imported, and wraps a function of its own for where
there is none (``use_kernel_func_from_hub_with_fallback``).
"""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from brimful.errors import UnsupportedError
from brimful.models.attention_source import functions_behind, missing_kernels
from brimful.values.job import Job
from brimful.values.strategy import Strategy

_CLASSES = "transformers."
_asking: dict[tuple[str, str], Any] = {}
"""Functions that ask for a package, as their modules had them."""


def check_packages(job: Job, strategy: Strategy) -> None:
    """Refuse a GPU's machine that lacks what a strategy takes to be installed."""
    missing = " and ".join(missing_kernels(job.model.model_type))
    if strategy.fused_kernels == "none" and missing:
        raise UnsupportedError(
            f"{job.model.name} runs kernels of {missing}, which is not installed; pip install it, "
            f"or use fused_kernels=torch: the class's own code",
            nearest={"fused_kernels": "torch"},
        )


def choose_code(model: nn.Module, strategy: Strategy) -> None:
    """Let a model's classes run their own functions, or what packages have, in this process."""
    for module, _, name in list(functions_asked(model)):
        now = vars(module)[name]
        asking = _asking.setdefault((module.__name__, name), now)
        setattr(module, name, inspect.unwrap(now) if strategy.fused_kernels == "torch" else asking)


def functions_asked(model: nn.Module) -> Iterator[tuple[ModuleType, str, str]]:
    """Yield functions that a model's classes ask packages for.

    Each with the module that it stands in, what the package calls it, and what the class does.
    """
    names = dict.fromkeys(c.__module__ for m in model.modules() for c in type(m).__mro__)
    for module in (sys.modules[name] for name in names if name.startswith(_CLASSES)):
        source = "" if module.__file__ is None else Path(module.__file__).read_text("utf-8")
        for asked, _, name in functions_behind(source):
            yield module, asked, name


def own_function(module: ModuleType, name: str) -> Any:
    """Return the function that a class runs where no package is installed."""
    return inspect.unwrap(vars(module)[name])
