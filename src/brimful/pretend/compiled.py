"""``torch.compile`` on the pretend GPU: PyTorch's own compiler, of which only kernels are left out.

Dynamo captures graphs and breaks them where it does, AOTAutograd makes their backward, Inductor
fuses, plans memory and writes its wrapper in Python; that wrapper runs on the pretend GPU. What it
allocates, reuses and frees is on the tape as any program's; its kernels compute nothing. Nothing of
the program runs eagerly that a card would run compiled.

Not served, and refused: CUDA graphs, autotuned matrix products, compilers other than Inductor.

Source: PyTorch 2.13, ``torch/_dynamo/eval_frame.py`` and ``torch/_inductor/compile_fx.py``.
"""

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch.nn.modules import module as hooks
from torch.optim import optimizer as optimizers
from torch.utils._python_dispatch import _disable_current_modes

from brimful.errors import BrimfulError, UnsupportedError
from brimful.pretend.absent import nothing_stood_in
from brimful.pretend.attention import compiled_flex
from brimful.pretend.known_values import REALLY_FAKE, KnownValues
from brimful.pretend.replacing import replaced

_TORCH = torch.__path__[0]
_COMPILES_NOT = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")
"""With either of them set to 1 PyTorch runs eagerly what it is told to compile."""
_INDUCTOR = "inductor"
_WITHOUT_KERNELS = frozenset({"eager", "aot_eager", "aot_eager_decomp_partition"})
"""Backends of PyTorch's that run a captured graph operation by operation."""
_REFUSED = {"triton.cudagraphs": "CUDA graphs keep memory pools of their own"}
_MODES = {"reduce-overhead": "triton.cudagraphs", "max-autotune": "triton.cudagraphs"}
_HOOKS = (
    (hooks, "_global_forward_pre_hooks"), (hooks, "_global_forward_hooks"),
    (optimizers, "_global_optimizer_pre_hooks"), (optimizers, "_global_optimizer_post_hooks"),
)  # fmt: skip
"""Where one hears of modules and optimizers: the begin and the end of each."""
_OF_HOOKS = (
    (hooks, "_global_forward_hooks_always_called"), (hooks, "_global_forward_hooks_with_kwargs"),
)  # fmt: skip
"""What PyTorch keeps of hooks beside them, by the same numbers."""
_PROGRAMS = "brimful_compiles_a_program"
"""Attribute of Dynamo's contexts that a program asked for, and not PyTorch itself."""


class Compiler:
    """Compiles what a program says is to be compiled; ready when first asked.

    Attributes:
        known: What is known of values.
        assumptions: Where it is noted what a compiled run rests on.
        originals: What stands in PyTorch outside of the pretend GPU, as it is replaced here.
        on_use: Called with each call of what is compiled; None: nobody. Libraries have functions of
            their own compiled that a program never calls.
        on_attention: Told which attention a kernel of its own computes, and its FLOPs.
    """

    def __init__(self, known: KnownValues, assumptions: set[str], top: type) -> None:
        """Compile nothing yet.

        ``assumptions``: where it is noted what a compiled run rests on. ``top``: the kind of the
        mode that sees an operation of the program's first.
        """
        self._top = top
        self.known = known
        self.assumptions = assumptions
        self.originals: Sequence[tuple[Any, str, Any]] = ()
        self.on_use: Callable[[], None] | None = None
        self.on_attention: Callable[[str, int], None] = lambda _name, _flops: None
        self._original: Any = torch.compile
        self._stack = contextlib.ExitStack()
        self._is_ready = False
        self._is_making = False
        self._is_running = False

    def replacements(self) -> Iterator[tuple[Any, str, Any]]:
        """Yield what a program calls to have something compiled."""
        yield torch, "compile", self.compile

        def compile_module(module: Any, *args: Any, **how: Any) -> None:
            module._compiled_call_impl = self._compile(module._call_impl, *args, **how)  # noqa: SLF001

        yield torch.nn.Module, "compile", compile_module

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Serve inside the block; what was compiled is forgotten behind it."""
        try:
            yield
        finally:
            self._stack.close()

    def compile(self, model: Any = None, *args: Any, **how: Any) -> Any:
        """Do what ``torch.compile`` does.

        Raises UnsupportedError: a way of compiling that is not simulated.
        """
        if sys._getframe(1).f_code.co_filename.startswith(_TORCH):  # noqa: SLF001
            # PyTorch itself, FlexAttention for one; it runs eagerly under the modes.
            return self._original(model, *args, **how)
        if model is None:
            return functools.partial(self._compile, **how)
        return self._compile(model, *args, **how)

    def _compile(self, model: Any, **how: Any) -> Any:
        if how.get("disable") or any(os.environ.get(name) == "1" for name in _COMPILES_NOT):
            return model
        check(model, how)
        self._get_ready()
        _check_settings(model)
        self._is_making = True
        try:
            return self._original(model, **how)
        finally:
            self._is_making = False

    def _get_ready(self) -> None:
        """Import PyTorch's compiler and change what of it asks a real card, for the whole run."""
        if self._is_ready:
            return
        self._is_ready = True
        stands_for = {
            getattr(target, name): original
            for target, name, original in self.originals
            if callable(original) and not isinstance(original, type)
        }
        with replaced(self.originals):
            code, traced, contexts = _compilers()
        enter = self._stack.enter_context
        code.register_higher_order(self._top)
        enter(code.generating(self.known, self.assumptions, self.on_attention))
        enter(traced.tracing_programs(stands_for, lambda: self._is_running))
        ours = [
            (contexts, "__call__", self._around(contexts.__call__)),
            # PyTorch warns that they are called once more; they are ours, and to be called.
            (hooks, "_has_any_global_hook", lambda: False),
        ]
        enter(replaced(ours))

    def _around(self, original: Any) -> Any:
        """Return how Dynamo makes a compiled function of one, which tells us of its calls."""

        def make(context: Any, function: Any) -> Any:
            made = original(context, function)
            if self._is_making:
                setattr(context, _PROGRAMS, True)
            is_function = not isinstance(made, (torch.nn.Module, type))
            if not is_function or not getattr(context, _PROGRAMS, False):
                return made

            @functools.wraps(made)
            def call(*args: Any, **kwargs: Any) -> Any:
                with self._running(function):
                    return made(*args, **kwargs)

            return call

        return make

    @contextlib.contextmanager
    def _running(self, function: Any) -> Iterator[None]:
        """Call a compiled function of the program's.

        Hooks by which we follow modules would be captured as the program's; so they hear of the
        compiled module alone.
        """
        if self._is_running:
            yield
            return
        if self.on_use is not None:
            self.on_use()
        # The hooks by which we hear of modules and optimizers, in the order of `_HOOKS`.
        told = [
            {key: hook for key, hook in vars(home)[name].items() if _is_ours(hook)}
            for home, name in _HOOKS
        ]
        enters, leaves = _tells(_owner(function), told)
        enters()
        self._is_running = True
        try:
            with _errors_told(function), _unhooked(told), replaced([REALLY_FAKE, compiled_flex()]):
                yield
        finally:
            self._is_running = False
            leaves()


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith(__name__.partition(".")[0])


@contextlib.contextmanager
def _unhooked(told: Sequence[Mapping[int, Any]]) -> Iterator[None]:
    """Call nobody of ours inside the block; hooks of the program stay."""
    tables = [vars(home)[name] for home, name in (*_HOOKS, *_OF_HOOKS)]
    before = [dict(table) for table in tables]
    for table in tables:
        for key in {key for hooks_told in told for key in hooks_told}:
            table.pop(key, None)
    try:
        yield
    finally:
        for table, content in zip(tables, before, strict=True):
            added = {key: hook for key, hook in table.items() if key not in content}
            table.clear()
            table.update({**content, **added})


def _tells(owner: Any, told: Sequence[Mapping[int, Any]]) -> tuple[Any, Any]:
    """Return what tells us that a compiled method of a module or an optimizer begins and ends.

    ``told``: our hooks, in the order of ``_HOOKS``.
    """

    def tell(which: int, *arguments: Any) -> None:
        for hook in told[which].values():
            hook(owner, *arguments)

    if isinstance(owner, torch.nn.Module):
        return lambda: tell(0, ()), lambda: tell(1, (), None)
    if isinstance(owner, torch.optim.Optimizer):
        return lambda: tell(2, (), {}), lambda: tell(3, (), {})
    return (lambda: None), (lambda: None)


def _compilers() -> tuple[Any, Any, Any]:
    """Import PyTorch's compiler, which takes two seconds, and what changes it, as outside of here.

    Returns what changes Inductor, what changes Dynamo, and the kind of Dynamo's contexts.
    """
    with (
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),  # noqa: SLF001 - modes see none of it
        replaced([REALLY_FAKE]),
        nothing_stood_in(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.utils import _triton

        _triton.has_triton_package.cache_clear()
        from torch._dynamo import eval_frame

        from brimful.pretend import compiled_code, compiled_tracing
    return compiled_code, compiled_tracing, eval_frame._TorchDynamoContext  # noqa: SLF001


@contextlib.contextmanager
def _errors_told(function: Any) -> Iterator[None]:
    """Say in one sentence where the compiler fails on what is not simulated."""
    from torch._dynamo.exc import BackendCompilerFailed, InternalTorchDynamoError
    from torch._inductor.exc import InductorError

    try:
        yield
    except (BackendCompilerFailed, InductorError, InternalTorchDynamoError) as error:
        inner: BaseException | None = error
        while inner is not None and not isinstance(inner, BrimfulError):
            inner = inner.__cause__ or inner.__context__ or getattr(inner, "inner_exception", None)
        if inner is not None:
            raise inner from None
        raise UnsupportedError(
            f"{_name(function)} cannot be compiled on the pretend GPU: "
            f"{_first_line(error)}; {_eagerly()}"
        ) from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if not line.endswith("raised:")), type(error).__name__)


def _name(model: Any) -> str:
    named = _owner(model) or model
    return str(getattr(named, "__qualname__", type(named).__qualname__))


def _owner(function: Any) -> Any:
    """Return whose method is compiled; PyTorch wraps modules of its own in a function."""
    inner = getattr(function, "__wrapped__", None)
    return inner if isinstance(inner, torch.nn.Module) else getattr(function, "__self__", None)


def _eagerly() -> str:
    return (
        "what the program takes without torch.compile is simulated with "
        f"{_COMPILES_NOT[0]}=1 in the environment"
    )


def check(model: Any, how: Mapping[str, Any]) -> None:
    """Refuse a way of compiling that is not simulated.

    ``how``: keyword arguments of ``torch.compile``.
    """
    backend = how.get("backend", _INDUCTOR)
    if backend != _INDUCTOR and backend not in _WITHOUT_KERNELS:
        name = backend if isinstance(backend, str) else getattr(backend, "__name__", "a function")
        raise UnsupportedError(
            f"torch.compile of {_name(model)} with the backend {name} is not simulated: only "
            f"Inductor's plan of memory is known; leave the backend out, or {_eagerly()}"
        )
    mode = how.get("mode")
    if mode in _MODES:
        raise _refused(model, f"mode={mode!r}", _MODES[mode])
    for name, value in (how.get("options") or {}).items():
        if value and name in _REFUSED:
            raise _refused(model, f"options of {name}", name)


def _check_settings(model: Any) -> None:
    """Refuse what the program has set in PyTorch's compiler itself."""
    for name in _REFUSED:
        if attrgetter(name)(torch._inductor.config):  # noqa: SLF001
            raise _refused(model, f"torch._inductor.config.{name}", name)
    if torch._dynamo.config.compiled_autograd:  # noqa: SLF001
        raise UnsupportedError(
            f"torch.compile of {_name(model)} with compiled autograd is not simulated: its graphs "
            f"are captured in backward; switch it off, or {_eagerly()}"
        )


def _refused(model: Any, what: str, name: str) -> UnsupportedError:
    return UnsupportedError(
        f"torch.compile of {_name(model)} with {what} is not simulated: {_REFUSED[name]}; "
        f"compile it in the default mode, or {_eagerly()}"
    )
