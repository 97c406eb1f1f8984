"""Triton without its wheel: enough of it for programs that define kernels and launch them.

The decorators make kernels that do nothing, as those of the wheel do here (``triton_kernels``);
whatever else a program names while it is imported (types and functions of ``triton.language``, what
kernels call) is a name that leads to other names. A program that compiles kernels, or computes with
what they say of themselves, needs the wheel.

Source: triton 3.9.0, whose ``runtime/autotuner.py`` says what is allocated while configurations are
tried.
"""

import inspect
from functools import partial
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from brimful.pretend import device, streams
from brimful.pretend.absent import StandIn
from brimful.pretend.known_values import KnownValues
from brimful.pretend.other_kernels import OtherKernels
from brimful.pretend.triton_kernels import CardUtils, benchmark

if TYPE_CHECKING:
    import torch

VERSION = "3.9.0"
PACKAGE = "triton"
WORDS = f"triton {VERSION}: its kernels are launched and compute nothing"


def stand_in(kernels: OtherKernels, known: KnownValues) -> StandIn:
    """Return the package."""

    class Kernel(_Kernel):
        def run(self, *args: Any, warmup: bool = False, **kwargs: Any) -> None:
            kwargs.pop("grid", None)
            if not warmup:
                kernels.launch(self.__name__, self.named(args, kwargs), known)

    def jit(function: Any = None, **_how: Any) -> Any:
        return Kernel if function is None else Kernel(function)

    named: dict[str, dict[str, Any]] = {
        PACKAGE: {
            "jit": jit,
            "JITFunction": Kernel,
            "autotune": _autotune,
            "heuristics": _heuristics,
            "Config": _Config,
            "cdiv": lambda x, y: -(-x // y),
            "next_power_of_2": lambda n: 1 << (n - 1).bit_length() if n > 0 else 0,
        },
        f"{PACKAGE}.runtime": {"driver": SimpleNamespace(active=_Driver())},
        f"{PACKAGE}.runtime.jit": {"JITFunction": Kernel},
        f"{PACKAGE}.runtime.autotuner": {"Autotuner": _Autotuner, "Config": _Config},
        f"{PACKAGE}.testing": {"do_bench": benchmark},
        f"{PACKAGE}.language": {"constexpr": _Constant, "dtype": _ElementType},
    }

    def fill(module: ModuleType) -> None:
        vars(module).update(named.get(module.__name__, {}))
        vars(module)["__getattr__"] = partial(_named_in, module.__name__, frozenset(named))

    return StandIn(VERSION, WORDS, fill, lambda _name: True)


def _named_in(module: str, modules: frozenset[str], name: str) -> Any:
    """Return what a module's name leads to: a module that has something, or another name."""
    path = f"{module}.{name}"
    return import_module(path) if path in modules else getattr(_Name(module), name)


class _Target(NamedTuple):
    """What kernels are compiled for, under Triton's names."""

    backend: str
    arch: int
    warp_size: int


class _Driver:
    """Answers as the pretended card does."""

    utils = CardUtils()

    @staticmethod
    def get_current_target() -> _Target:
        major, minor = device.card().capability
        return _Target("cuda", 10 * major + minor, 32)

    @staticmethod
    def get_current_device() -> int:
        return streams.current_device()


class _ElementType:
    """The kind of Triton's own types of numbers, of which there are none here."""


class _Name:
    """A name that a kernel would use; nothing is known of it but that."""

    def __init__(self, path: str) -> None:
        self.__name__ = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **_kwargs: Any) -> Any:
        """Return what is decorated as it is, and itself where it is called otherwise."""
        return args[0] if len(args) == 1 and callable(args[0]) else self

    def __getitem__(self, _key: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        """Refuse what would never end: Python takes what has items for something to go through."""
        raise TypeError(f"{self.__name__} is a name of Triton's, which is not installed here")

    def __mro_entries__(self, _bases: Any) -> tuple[()]:
        return ()

    def __or__(self, other: Any) -> Any:
        """Return the union of types that it may stand in, as Inductor counts their parts."""
        try:
            return Union[self, other]  # noqa: UP007 - of what is no type
        except TypeError:
            return self

    __ror__ = __or__


class _Constant:
    """``tl.constexpr``: a value that a kernel is compiled for."""

    def __init__(self, value: Any) -> None:
        self.value = getattr(value, "value", value)

    def __class_getitem__(cls, _key: Any) -> Any:
        return cls

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return int(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == getattr(other, "value", other))

    def __hash__(self) -> int:
        return hash(self.value)


class _Launchable:
    """What is launched by ``kernel[grid](...)``."""

    stands_in_for_triton = True

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.__name__ = fn.__name__
        self.__doc__ = fn.__doc__
        self.__module__ = fn.__module__
        self.arg_names = getattr(fn, "arg_names", None) or list(inspect.signature(fn).parameters)

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **kwargs: self.run(*args, grid=grid, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn.run(*args, **kwargs)

    def warmup(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, warmup=True, **kwargs)

    def named(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """Return arguments by name."""
        return {**dict(zip(self.arg_names, args, strict=False)), **kwargs}


class _Kernel(_Launchable):
    """``triton.jit``."""

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("Cannot call @triton.jit'd outside of the scope of a kernel")


class _Config:
    """``triton.Config``: one configuration of those that an autotuner tries."""

    def __init__(
        self, kwargs: dict[str, Any], *_args: Any, pre_hook: Any = None, **_how: Any
    ) -> None:
        self.kwargs = kwargs
        self.pre_hook = pre_hook


class _Heuristics(_Launchable):
    """``triton.heuristics``: arguments that follow from others."""

    def __init__(self, fn: Any, values: dict[str, Any]) -> None:
        super().__init__(fn)
        self._values = values

    def run(self, *args: Any, **kwargs: Any) -> Any:
        for name, value in self._values.items():
            kwargs[name] = value(self.named(args, kwargs))
        return self.fn.run(*args, **kwargs)


def _heuristics(values: dict[str, Any]) -> Any:
    return lambda fn: _Heuristics(fn, values)


class _Autotuner(_Launchable):
    """``triton.autotune``: the first call of a kind tries every configuration."""

    def __init__(  # noqa: PLR0913, PLR0917 - those of ``triton.autotune``
        self,
        fn: Any,
        configs: Any,
        key: Any,
        prune_configs_by: Any = None,
        reset_to_zero: Any = None,
        restore_value: Any = None,
        pre_hook: Any = None,
        post_hook: Any = None,
        **_how: Any,
    ) -> None:
        super().__init__(fn)
        self._configs, self._key = configs or [_Config({})], key
        self._zeroed, self._restored = reset_to_zero or (), restore_value or ()
        self._before, self._after = pre_hook, post_hook
        self._prune = (prune_configs_by or {}).get("early_config_prune")
        self._tried: set[Any] = set()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        named = self.named(args, kwargs)
        kinds = [str(x.dtype) for x in named.values() if hasattr(x, "dtype")]
        key = (*(named.get(name) for name in self._key), *kinds)
        configs = self._configs
        if len(configs) > 1 and self._prune is not None:
            configs = self._prune(configs, named, **kwargs)
        if len(configs) > 1 and key not in self._tried:
            self._tried.add(key)
            for config in configs:
                benchmark(lambda config=config: self._try(config, args, kwargs))
        return self._launch(configs[0], args, kwargs)

    def _launch(self, config: _Config, args: Any, kwargs: Any) -> Any:
        if config.pre_hook is not None:
            config.pre_hook({**self.named(args, kwargs), **config.kwargs})
        return self.fn.run(*args, **{**kwargs, **config.kwargs})

    def _try(self, config: _Config, args: Any, kwargs: Any) -> None:
        named = {**self.named(args, kwargs), **config.kwargs}
        copies: dict[str, torch.Tensor] = {}
        if self._before is not None:
            self._before(named)
        else:
            for name in self._zeroed:
                if named[name] is not None:
                    named[name].zero_()
            restored = ((name, named[name]) for name in self._restored)
            copies = {name: x.clone() for name, x in restored if x is not None}
        self._launch(config, args, kwargs)
        if self._after is not None:
            self._after(named, exception=None)
        for name, copy in copies.items():
            named[name].copy_(copy)


def _autotune(*told: Any, **named: Any) -> Any:
    return lambda fn: _Autotuner(fn, *told, **named)
