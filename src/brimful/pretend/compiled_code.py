"""What Inductor asks of a card, and what the code that it writes runs on.

Inductor writes a module in Python that allocates, calls libraries and kernels, and frees. It is
loaded as it is; its allocations are made on the pretend GPU, and its kernels, in Triton or C++, are
neither compiled nor run. What Inductor would time on a card is not known: it is said, and taken as
not worth it.

Source: PyTorch 2.13, ``torch/_inductor/codegen/wrapper.py``, ``async_compile.py``,
``codecache.py``, ``fx_passes/pad_mm.py`` and ``fx_passes/joint_graph.py``.
"""

import contextlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch._dynamo.device_interface
import torch._dynamo.utils
import torch._inductor.async_compile
import torch._inductor.choices
import torch._inductor.codecache
import torch._inductor.codegen.triton_split_scan
import torch._inductor.compile_fx
import torch._inductor.config
import torch._inductor.cpu_vec_isa
import torch._inductor.fx_passes.joint_graph
import torch._inductor.fx_passes.pad_mm
import torch._inductor.runtime.hints
import torch._inductor.runtime.triton_compat
import torch._inductor.scheduler
import torch._inductor.select_algorithm
import torch._inductor.utils
import torch._prims.rng_prims
import torch.utils._triton
from torch.utils._python_dispatch import TorchDispatchMode

from brimful.errors import UnsupportedError
from brimful.pretend import kernels, streams
from brimful.pretend.cuda_calls import CUDA, inward
from brimful.pretend.flex_kernels import attention_in
from brimful.pretend.known_values import KnownValues
from brimful.pretend.libraries import library
from brimful.pretend.replacing import replaced

_inductor: Any = torch._inductor  # noqa: SLF001
_interfaces: Any = torch._dynamo.device_interface  # noqa: SLF001
_triton: Any = torch.utils._triton  # noqa: SLF001
_HOST = torch.device("cpu")
_TRITON = ("triton", "triton.language")
"""What a module written for a card imports, and needs for its kernels alone."""
_BITS = {
    "int1": 1, "int8": 8, "int16": 16, "int32": 32, "int64": 64,
    "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64,
    "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64,
}  # fmt: skip
"""Of Triton's types, which what writes a scan over several blocks asks for
(``triton/language/core.py``)."""
_ASKED_OF_CUDA = (
    "current_device", "set_device", "device_count", "stream", "current_stream", "set_stream",
    "synchronize", "get_device_properties", "memory_allocated", "is_bf16_supported",
)  # fmt: skip
_SIGNATURE = re.compile(r"(?:def|void)\s+\w+\(([^)]*)\)")
_READ = re.compile(r"\bin_ptr\d+\b")
"""Inductor's names: ``in_ptr`` of what is read, ``out_ptr`` and ``in_out_ptr`` of what is written
(``KernelArgs`` of ``torch/_inductor/codegen/common.py``)."""
_ADA = 89
_TUNING = "compiled kernels were tuned before: what their trials take in a first step is not in it"
OnAttention = Callable[[str, int], None]
"""Told which attention is computed by a kernel of Inductor's, and its FLOPs."""
_PADDING = (
    "no product was padded by the compiler: a card times whether that is worth it for "
    "sizes that are no multiple of 16 bytes"
)


def unheard(_name: str, _flops: int) -> None:
    """Take note of no attention."""


@contextlib.contextmanager
def generating(
    known: KnownValues, assumptions: set[str], on_attention: OnAttention
) -> Iterator[None]:
    """Let Inductor write and load code for the pretended card inside the block.

    ``assumptions``: where it is noted what a compiled run rests on.
    """
    settings = {"fx_graph_cache": False, "compile_threads": 1}
    with (
        _inductor.utils.fresh_cache(),
        _inductor.config.patch(settings),
        replaced(_replacements(known, assumptions, on_attention)),
    ):
        _forget_card()
        try:
            yield
        finally:
            _forget_card()


def _forget_card() -> None:
    """Let Inductor ask anew of the card that is pretended now."""
    _interfaces.caching_worker_device_properties.clear()
    _interfaces.caching_worker_current_devices.clear()
    _inductor.runtime.hints.DeviceProperties.create.cache_clear()
    asked = (*vars(_triton).values(), _inductor.utils.get_max_num_sms, _inductor.utils.using_b200)
    for function in asked:
        if hasattr(function, "cache_clear"):
            function.cache_clear()


def _replacements(
    known: KnownValues, assumptions: set[str], on_attention: OnAttention
) -> Iterator[tuple[Any, str, Any]]:
    yield from _card()
    yield from _timings(assumptions)
    yield from _kernels(known, assumptions, on_attention)
    yield from _memory()


# -- what is asked of the card --


def _card() -> Iterator[tuple[Any, str, Any]]:
    cuda = _interfaces.CudaInterface
    for name in _ASKED_OF_CUDA:
        yield cuda, name, staticmethod(getattr(torch.cuda, name))
    yield cuda, "get_raw_stream", staticmethod(lambda _device: 0)
    yield cuda, "raise_if_triton_unavailable", staticmethod(lambda _device=None: None)
    for where in (_inductor.scheduler, _inductor.compile_fx, _inductor.fx_passes.pad_mm):
        yield where, "has_triton", lambda: True
    if not _inductor.runtime.triton_compat.HAS_TRITON:  # but, maybe, something in its place
        yield _triton, "triton_hash_with_backend", lambda: ""
        yield torch._dynamo.utils, "has_triton", lambda: False  # noqa: SLF001 - of whose version?
    yield _inductor.utils, "_triton_supported_fp8_dtypes", _types_in_eight_bits
    # What a CPU can do is known; whether a compiler can build for it is asked for kernels alone.
    yield _inductor.cpu_vec_isa.VecISA, "check_build", lambda _isa, _code: True
    # Of a key for results on disk, which are not kept.
    yield _inductor.codecache.CacheBase, "get_system", staticmethod(_system)
    yield torch.cuda, "_DeviceGuard", streams.UseDevice
    folder = _inductor.fx_passes.joint_graph.UniformValueConstantFolder
    yield folder, "__init__", _on_host(folder.__init__)
    yield folder, "run", _on_host(folder.run)


def _types_in_eight_bits(_backend: str, arch: int, _warp_size: int) -> tuple[str, ...]:
    """Return what Triton computes with (``backends/nvidia/compiler.py`` of 3.9.0)."""
    return ("fp8e5", "fp8e4b15", *(["fp8e4nv"] if arch >= _ADA else []))


def _system() -> dict[str, Any]:
    return {"device": {"name": torch.cuda.get_device_name()}, "version": {}, "hash": ""}


class _OnHost(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped to mypy
    """Makes real tensors on the host, whatever device is asked for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: _host(x) for name, x in (kwargs or {}).items()}
        return func(*map(_host, args), **kwargs)


def _host(x: Any) -> Any:
    return _HOST if isinstance(x, torch.device) else x


def _on_host(original: Any) -> Any:
    """Return a function of Inductor's that computes with single numbers on the device."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with _OnHost():
            return original(*args, **kwargs)

    return call


# -- what is decided by timing --


def _timings(assumptions: set[str]) -> Iterator[tuple[Any, str, Any]]:
    padding = _inductor.fx_passes.pad_mm

    def not_padded(_key: str) -> bool:
        """Answer for what was timed before; asked where everything but time speaks for it."""
        assumptions.add(_PADDING)
        return False

    yield padding, "get_cached_should_pad", not_padded
    selects = _inductor.select_algorithm.AlgorithmSelectorCache
    yield selects, "__call__", _first_of_a_kind(selects.__call__, assumptions)
    # A choice is loaded to be timed; what is taken is written into its graph's own code.
    yield _inductor.select_algorithm, "PyCodeCache", _Choices
    configs = _inductor.choices.InductorChoices
    yield configs, "get_template_configs", _of_libraries(configs.get_template_configs)


class _Choices:
    """Stands for where the code of choices is loaded."""

    @staticmethod
    def load(*_: Any, **__: Any) -> SimpleNamespace:
        return SimpleNamespace(__file__="", key="")


def _of_libraries(original: Any) -> Any:
    """Return what offers kernels of a matrix product, where only a library's are."""
    template, config = _inductor.select_algorithm.TritonTemplate, _inductor.config

    def offer(choices: Any, inputs: Any, templates: Any, name: str, *args: Any, **how: Any) -> Any:
        # Of eight bits generated kernels are named in any mode, and have configurations in two.
        competes = config.max_autotune or config.max_autotune_gemm
        if competes and any(isinstance(each, template) for each in templates):
            raise _by_timing(name)
        return original(choices, inputs, templates, name, *args, **how)

    return offer


def _first_of_a_kind(original: Any, assumptions: set[str]) -> Any:
    """Return what chooses a kernel: of one template's all allocate alike, whichever is fastest."""
    template = _inductor.select_algorithm.TritonTemplateCaller

    def select(cache: Any, name: str, choices: Any, *args: Any, **how: Any) -> Any:
        if len(choices) > 1:
            if not all(isinstance(x, template) and x.workspace_arg is None for x in choices):
                raise _by_timing(name)
            assumptions.add(_TUNING)
        return original(cache, name, choices[:1], *args, **how)

    return select


def _by_timing(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"torch.compile with max_autotune of {name} is not simulated: whether a library's kernel "
        f"or a generated one wins is decided by timing; compile it in the default mode"
    )


# -- kernels --


class Kernel:
    """A kernel that Inductor wrote: nobody knows what it writes into what it does not only read."""

    def __init__(
        self, known: KnownValues, source: str, on_attention: OnAttention = unheard
    ) -> None:
        """Keep where values are known, and which of its arguments are only read.

        ``source``: what Inductor wrote; it names its arguments by what is done with them.
        """
        self._known, self._on_attention = known, on_attention
        self._attention = attention_in(source)
        found = _SIGNATURE.search(source)
        names = found[1].split(",") if found else []
        self._is_read = [bool(_READ.search(name)) for name in names]

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Launch it."""
        if self._attention is not None:
            name, flops_of = self._attention
            self._on_attention(name, flops_of(args))
        read = (*self._is_read, *(False for _ in args))
        written = (x for x, is_read in zip(args, read, strict=False) if not is_read)
        for x in (*written, *kwargs.values()):
            if isinstance(x, torch.Tensor):
                self._known.forget(x)

    __call__ = run


def _kernels(
    known: KnownValues, assumptions: set[str], on_attention: OnAttention
) -> Iterator[tuple[Any, str, Any]]:
    compiles = _inductor.async_compile.AsyncCompile

    def triton(_self: Any, _name: str, source: str, device_str: str = CUDA) -> Kernel:  # noqa: ARG001
        assumptions.add(_TUNING)
        return Kernel(known, source, on_attention)

    def cpp(_self: Any, _types: Any, source: str) -> Kernel:
        return Kernel(known, source, on_attention)

    yield compiles, "triton", triton
    yield compiles, "cpp_pybinding", cpp
    yield compiles, "wait", lambda _self, _scope: None
    scans = _inductor.codegen.triton_split_scan.TritonSplitScanKernel
    yield scans, "scan", _with_triton_at_hand(scans.scan)
    modules = _inductor.codecache.PyCodeCache
    loads = modules.load_by_key_path.__func__
    yield modules, "load_by_key_path", classmethod(_with_triton_at_hand(loads))


def _with_triton_at_hand(load: Any) -> Any:
    """Return what writes a kernel or loads a generated module, where Triton may be absent."""

    def call(*args: Any, **kwargs: Any) -> Any:
        if _TRITON[0] in sys.modules or importlib.util.find_spec(_TRITON[0]) is not None:
            return load(*args, **kwargs)
        stand_in, language = map(ModuleType, _TRITON)
        stand_in.language = language  # type: ignore[attr-defined]
        for name, bits in _BITS.items():
            setattr(language, name, SimpleNamespace(primitive_bitwidth=bits))
        sys.modules.update(zip(_TRITON, (stand_in, language), strict=True))
        try:
            return load(*args, **kwargs)
        finally:
            for name in _TRITON:
                del sys.modules[name]

    return call


# -- memory --


def _written(*_: Any, out: torch.Tensor, **__: Any) -> torch.Tensor:
    """Return what a product is written into, which PyTorch knows no shapes of."""
    return out


for _name in ("_scaled_mm.out", "_scaled_mm_v2.out"):
    library("Meta").impl(_name, _written)


def _memory() -> Iterator[tuple[Any, str, Any]]:
    guards = torch._C._dynamo.guards  # noqa: SLF001 - where generated code finds these
    for name in ("_empty_strided_cuda", "_empty_strided_cpu"):
        yield guards, name, _allocate
    yield guards, "_reinterpret_tensor", _reinterpret
    yield guards, "assert_alignment", lambda *_: None
    yield guards, "copy_if_misaligned", _copy_if_misaligned


def _allocate(shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device=inward(CUDA))


def _reinterpret(tensor: torch.Tensor, shape: Any, stride: Any, offset: int = 0) -> torch.Tensor:
    return torch.as_strided(tensor, shape, stride, tensor.storage_offset() + offset)


def _copy_if_misaligned(tensor: torch.Tensor) -> torch.Tensor:
    """Copy what does not begin at a multiple of 16 bytes, as kernels expect; storages all do."""
    if tensor.storage_offset() * tensor.element_size() % _inductor.utils.ALIGNMENT:
        return _inductor.utils.clone_preserve_strides(tensor)
    return tensor


# -- operations of higher order --


@cache
def register_higher_order(top: type) -> None:
    """Let compiled code be called as one operation, and what draws with a kept state; once.

    A selective checkpoint sees such code as one operation, and keeps what it returns; what draws is
    run anew with the state that it was run with.

    ``top``: the kind of the mode that sees an operation of the program's first.
    """
    regions = torch._higher_order_ops.inductor_compiled_code  # noqa: SLF001
    regions.py_impl(top)(_region_run)
    regions.fallthrough(torch._C.DispatchKey.AutogradPrivateUse1)  # noqa: SLF001
    draws = torch._prims.rng_prims  # noqa: SLF001
    draws.run_and_save_rng_state.py_impl(top)(_drawn_and_saved)
    draws.run_with_rng_state.py_impl(top)(_drawn_again)
    draws.graphsafe_run_with_rng_state.py_impl(top)(_drawn_safely)


def _region_run(mode: Any, code: Any, inputs: Any, *, name: str | None = None) -> Any:
    del name  # under which a graph of its own knows it
    with mode:  # of which it is no operation: it calls others
        return code(inputs)


def _drawn_and_saved(_mode: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    if kernels.current() == "cpu":  # whose state lies in the memory that is looked at
        state = torch.empty_like(torch.get_rng_state(), device=inward(CUDA))
    else:
        state = torch.cuda.get_rng_state()
    return state, _drawn(operation, args, kwargs)


def _drawn_again(_mode: Any, _state: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:
    return _drawn(operation, args, kwargs)


def _drawn_safely(
    _mode: Any, operation: Any, *args: Any, rng_state: Any = None, **kwargs: Any
) -> Any:
    del rng_state
    return _drawn(operation, args, kwargs)


def _drawn(operation: Any, args: Any, kwargs: Any) -> Any:
    """Draw on the pretend GPU, which the compiled code calls as its program does."""
    return operation(*map(inward, args), **{name: inward(x) for name, x in kwargs.items()})
