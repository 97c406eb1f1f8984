"""Brimful: predict, simulate and measure the memory of training, and run the plan that fits.

``brimful.estimate("llama-3.1-8b", gpus="8xh100", seq_len=8192)`` asks what the command line asks;
see ``brimful.api``. Everything loads on first use, so that ``import brimful`` stays free of torch
and numpy.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_VERBS = frozenset({"estimate", "plan", "report", "shop", "simulate", "train"})
_MODULES = frozenset({"report", "simulate", "train"})
"""Verbs after which a package is named too: it stays the package, and can be called."""
_VALUES = {
    "Cluster": "brimful.hardware.cluster", "Job": "brimful.values.job",
    "Plan": "brimful.values.plan", "Strategy": "brimful.values.strategy",
}  # fmt: skip


class _Verb(ModuleType):
    """A module that answers as the verb of its name when it is called."""

    def __call__(self, subject: Any, /, **given: Any) -> Any:
        """Ask the verb; see ``brimful.api``."""
        return getattr(import_module("brimful.api"), self.__name__.rpartition(".")[2])(
            subject, **given
        )


class _Package(ModuleType):
    """This package: its verbs, whether a module of the name was imported or not."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Keep a module that is imported, and let it be called where it is named as a verb."""
        if name in _MODULES and type(value) is ModuleType:
            value.__class__ = _Verb
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Load a verb, a value or the pretend GPU when it is first asked for."""
        if name in _MODULES or name == "pretend":
            return import_module(f"brimful.{name}")
        if name in _VERBS:
            return getattr(import_module("brimful.api"), name)
        if name in _VALUES:
            return getattr(import_module(_VALUES[name]), name)
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")

    def __dir__(self) -> list[str]:
        """List the verbs and the values too."""
        return sorted({*super().__dir__(), *_VERBS, *_VALUES, "pretend"})


sys.modules[__name__].__class__ = _Package
