"""Functions of transformers' classes that packages have kernels for, and what stands for these.

A class asks for a package when its module is imported, and has its own function where that is not
installed (``use_kernel_func_from_hub_with_fallback``). Here its module is given another: what
stands for the package's, or the class's own. A package's function is given what it has a name for.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import nn

from brimful.build.layer_kernels import functions_asked, own_function
from brimful.pretend.known_values import KnownValues
from brimful.pretend.layer_kernels import causal_conv1d, fla, mamba_ssm
from brimful.pretend.layer_kernels.base import Launch
from brimful.pretend.other_kernels import OtherKernels

OnLaunch = Callable[[str, Mapping[str, Any], int], None]


def in_classes(model: nn.Module, on_launch: OnLaunch | None) -> Iterator[tuple[Any, str, Any]]:
    """Yield what the modules of a model's classes are to have instead.

    ``on_launch``: told of kernels that stand in, with their arguments and FLOPs; None: the classes'
    own functions run.
    """
    stand_ins = {} if on_launch is None else _functions(on_launch)
    for module, asked, name in functions_asked(model):
        if on_launch is None:
            yield module, name, own_function(module, name)
        elif asked in stand_ins:
            yield module, name, _named(stand_ins[asked])


def _functions(on_launch: OnLaunch) -> dict[str, Any]:
    """Return every function that packages are asked for, by its name."""
    launch = Launch(OtherKernels(on_launch), KnownValues())
    packages = (causal_conv1d.modules, fla.modules, mamba_ssm.modules)
    every = (module for package in packages for module in package(launch).values())
    return {name: function for module in every for name, function in module.items()}


def _named(function: Any) -> Any:
    """Return a function that takes keywords which it has no name for."""
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{name: x for name, x in kwargs.items() if name in known})

    return call
