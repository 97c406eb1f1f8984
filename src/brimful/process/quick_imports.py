"""Importing large libraries in less time, and leaving them behind in less.

A third of what importing torch, transformers and PEFT takes is the garbage collector, which looks
through all that was made so far again and again, and decorators that load a compiler for functions
that nobody calls. Knows no library but torch, and that Triton complains.
"""

import contextlib
import functools
import gc
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, SimpleNamespace
from typing import Any

_process = SimpleNamespace(is_ours=False)
"""Whether nothing but a command of ours runs in this process."""


@contextlib.contextmanager
def quick_imports() -> Iterator[None]:
    """Import torch and what builds on it inside the block in less time.

    Garbage is looked for again behind the block; in a process of ours only among what is made from
    then on, as looks at what imports had left took 0.8 to 1.6 s of a simulation. A function that
    ``torch.compile`` decorates as its module is imported is compiled when it is called first:
    bitsandbytes loads Inductor else. Who registers an operator is told by file and line, for which
    Python would read the file's text.
    """
    collects, frame_info = gc.isenabled(), inspect.getframeinfo
    gc.disable()
    inspect.getframeinfo = functools.partial(frame_info, context=0)
    try:
        import torch

        compile_now = torch.compile
        torch.compile = _at_first_call(compile_now)
        try:
            yield
        finally:
            torch.compile = compile_now
    finally:
        inspect.getframeinfo = frame_info
        if collects:
            if _process.is_ours:
                leave_behind()
            gc.enable()


def own_process() -> None:
    """Say that this process runs a command of ours and nothing of anybody else's.

    Elsewhere what is there already is somebody's, and may hold a GPU's memory in a cycle.
    """
    _process.is_ours = True


def leave_behind() -> None:
    """Look for no garbage among what is there by now.

    Python takes two seconds at its end with torch and transformers loaded. Triton has to
    be looked through: its library lists on standard error what is left of it.
    """
    if "triton" not in sys.modules:
        gc.freeze()


def _at_first_call(compile_now: Callable[..., Any]) -> Callable[..., Any]:
    """Return a ``torch.compile`` that compiles functions when they are called first."""

    @functools.wraps(compile_now)
    def compile_later(model: Any = None, **how: Any) -> Any:
        if model is None:
            return functools.partial(compile_later, **how)
        if not isinstance(model, FunctionType):
            return compile_now(model, **how)
        made = functools.cache(functools.partial(compile_now, model, **how))

        @functools.wraps(model)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            return made()(*args, **kwargs)

        return compiled

    return compile_later
