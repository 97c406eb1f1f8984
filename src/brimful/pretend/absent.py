"""Packages of kernels that are not installed here: who asked for them, and what stands for some.

Programs look which packages there are and take other kernels accordingly: what they take here is
then not what they take where they train. A package that nobody finds is asked for here last, so
that what arrives was looked for in vain.
"""

import contextlib
import importlib.metadata
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import torch

from brimful.pretend.other_kernels import OtherKernels
from brimful.pretend.when_imported import Changes

KERNELS = {
    "apex": "apex",
    "fused_weight_gradient_mlp_cuda": "apex",
    "causal_conv1d": "causal-conv1d",
    "cutlass": "nvidia-cutlass-dsl",
    "cut_cross_entropy": "cut-cross-entropy",
    "fla": "flash-linear-attention",
    "flash_attn": "flash-attn",
    "flash_attn_2_cuda": "flash-attn",
    "flash_attn_3": "flash-attn-3",
    "flash_attn_interface": "flash-attn-3",
    "kernels": "kernels",
    "liger_kernel": "liger-kernel",
    "mamba_ssm": "mamba-ssm",
    "scaled_masked_softmax_cuda": "apex",
    "scaled_softmax_cuda": "apex",
    "scaled_upper_triang_masked_softmax_cuda": "apex",
    "sageattention": "sageattention",
    "transformer_engine": "transformer-engine",
    "transformer_engine_torch": "transformer-engine",
    "triton": "triton",
    "xformers": "xformers",
}
"""Packages that bring kernels of their own to a training program, by the name of their module."""
WITH_TORCH = frozenset({"triton"})
"""Those that PyTorch's wheels for CUDA bring along: they are there where the program trains."""
_MACHINERY = ("<frozen", importlib.__path__[0])
_OWN = __file__.rpartition("/")[0]
_TORCH = torch.__path__[0]


class StandIn(NamedTuple):
    """A package that stands for one that is not installed.

    Attributes:
        version: Of the package that was followed; empty: no metadata is stood in for.
        words: What it is, for the report.
        fill: Fills a module, by its name, when it is imported.
        is_module: Whether there is a module of a name.
        environment: Variables that are set meanwhile.
        changes: What is to be replaced in modules that are installed, by name.
    """

    version: str
    words: str
    fill: Callable[[ModuleType], None]
    is_module: Callable[[str], bool]
    environment: Mapping[str, str] = {}
    changes: Mapping[str, Changes] = {}


@contextlib.contextmanager
def looking_for(kernels: OtherKernels, stand_ins: Mapping[str, StandIn]) -> Iterator[None]:
    """Note inside the block which packages are looked for in vain, and stand in for some.

    ``stand_ins``: by the name of the module; one that is installed after all is left alone.
    """
    finder = _Last(kernels, stand_ins)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        made = [name for name in sys.modules if name.partition(".")[0] in stand_ins]
        for name in made:
            if isinstance(getattr(sys.modules[name], "__loader__", None), _Filler):
                del sys.modules[name]


@contextlib.contextmanager
def nothing_stood_in() -> Iterator[None]:
    """Let packages that are stood in for be absent inside the block, as they are on this machine.

    PyTorch's compiler imports Triton to look into it, and takes other code where it is not there.
    """
    finders = [finder for finder in sys.meta_path if isinstance(finder, _Last)]
    made = {
        name: module
        for name, module in sys.modules.items()
        if isinstance(getattr(module, "__loader__", None), _Filler)
    }
    for name in made:
        del sys.modules[name]
    for finder in finders:
        sys.meta_path.remove(finder)
    try:
        yield
    finally:
        sys.meta_path.extend(finders)
        sys.modules.update(made)


class _Filler(Loader):
    """Makes the modules of a stand-in."""

    def __init__(self, stand_in: StandIn) -> None:
        self._stand_in = stand_in

    def exec_module(self, module: ModuleType) -> None:
        """Fill a module."""
        vars(module)["__version__"] = self._stand_in.version
        self._stand_in.fill(module)


class _Last(MetaPathFinder):
    """Is asked when no other finder has found a module."""

    def __init__(self, kernels: OtherKernels, stand_ins: Mapping[str, StandIn]) -> None:
        self._kernels = kernels
        self._stand_ins = stand_ins

    def find_spec(self, name: str, _path: Any, _target: Any = None) -> ModuleSpec | None:
        """Return a stand-in's module; of other packages of kernels note that they were missed."""
        package = name.partition(".")[0]
        stand_in = self._stand_ins.get(package)
        if stand_in is not None:
            if not stand_in.is_module(name):
                return None
            self._kernels.stood_in[KERNELS[package]] = stand_in.words
            return ModuleSpec(name, _Filler(stand_in), is_package=True)
        frame = _asker(sys._getframe(1)) if name in KERNELS else None  # noqa: SLF001
        if frame is not None:
            library = frame.f_globals.get("__name__", "").partition(".")[0]
            line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            self._kernels.absent.setdefault(KERNELS[name], {}).setdefault(library, line)
        return None

    def find_distributions(self, context: Any) -> Iterable[Any]:
        """Return what ``importlib.metadata`` is told of a stand-in: its version."""
        for module, stand_in in self._stand_ins.items():
            if not stand_in.version:
                continue
            if context.name is None or _plain(context.name) == _plain(KERNELS[module]):
                yield _Distribution(KERNELS[module], stand_in.version, module)


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


class _Distribution(importlib.metadata.Distribution):
    """The metadata of a package that is not there: a name and a version."""

    def __init__(self, name: str, version: str, module: str) -> None:
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            "top_level.txt": module,
        }

    def read_text(self, filename: str) -> str | None:
        """Return a file of the metadata."""
        return self._texts.get(filename)

    def locate_file(self, path: Any) -> Any:
        """Return where a file would be: nowhere."""
        return path


def _asker(frame: FrameType | None) -> FrameType | None:
    """Return what looked for a package; None where PyTorch itself did.

    A file that asks on behalf of others (``importlib.util.find_spec`` in a function of a library)
    is passed over for whoever called it.
    """
    asker, behalf = None, False
    while frame is not None:
        file = frame.f_code.co_filename
        behalf = behalf or frame.f_code.co_name == "find_spec"
        is_new = asker is None or file != asker.f_code.co_filename
        if is_new and not file.startswith((*_MACHINERY, _OWN)):
            if asker is None and file.startswith(_TORCH):
                return None
            if asker is not None or not behalf:
                return frame
            asker = frame
        frame = frame.f_back
    return asker
