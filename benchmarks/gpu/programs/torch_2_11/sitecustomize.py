"""Let ``brimful pretend`` start on torch 2.11, whose ``FakeTensor`` is made without requires_grad.

Not a part of Brimful: `pretend/fake_mode.py` calls ``FakeTensor(..., requires_grad=...)``, which
torch 2.11 refuses, so that no backward pass is simulated. With this folder on PYTHONPATH the
argument is taken as later versions take it. Rows say where it was there.
"""

import importlib.machinery
import sys
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

_NAME = "torch._subclasses.fake_tensor"


class _Loader(Loader):
    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        kind: Any = module.FakeTensor
        original = kind.__new__

        def new(cls: Any, *args: Any, requires_grad: bool | None = None, **kwargs: Any) -> Any:
            if requires_grad is not None:
                args[1].requires_grad_(requires_grad)
            return original(cls, *args, **kwargs)

        kind.__new__ = staticmethod(new)


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != _NAME:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = _Loader(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
