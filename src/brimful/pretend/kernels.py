"""Whose kernels the pretend GPU imitates: a CUDA card's, or this machine's CPU's.

The two differ in which ops autocast lowers and in what attention saves for backward. A simulation
that is to be compared with a run on CPU must imitate the CPU's. What a CUDA card does depends on
its compute capability, on PyTorch's version and on the cuDNN beside it; those are said here too.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

import torch

from brimful.errors import UnsupportedError
from brimful.hardware.cuda_chips import Multiprocessors, chips, version_of
from brimful.hardware.cuda_libraries import libraries
from brimful.techniques.kernel_support import FIRST_OF_AMD

Kernels = Literal["cuda", "cpu"]
Version = tuple[int, int]

DEFAULT_CAPABILITY: Version = (9, 0)


@cache
def installed_torch() -> Version:
    """Return the major and minor version of the PyTorch that runs."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def is_amd(capability: Version) -> bool:
    """Whether a capability is one of AMD's targets, whose kernels for attention are AOTriton's.

    Those of gfx90a, 942, 950, 110x and 1201 run by themselves, of gfx1151 where
    ``TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1`` (``check_flash_attention_hardware_support`` of
    sdp_utils.cpp; ``isArchExperimentallySupported`` of AOTriton).
    """
    return capability >= version_of(FIRST_OF_AMD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Imitated:
    """What is imitated.

    Attributes:
        kernels: Whose kernels.
        capability: CUDA compute capability, (9, 0) for an H100; of no meaning for ``cpu``.
        torch_version: PyTorch's (major, minor).
    """

    kernels: Kernels
    capability: Version
    torch_version: Version

    @property
    def cudnn_version(self) -> int:
        """CuDNN in PyPI's default CUDA wheel of this PyTorch, as cuDNN counts (92000 = 9.20.0)."""
        return libraries().cudnn_version(self.torch_version)

    @property
    def chip(self) -> Multiprocessors:
        """The chip that stands for this capability."""
        return chips()[self.capability]


_current: ContextVar[Imitated] = ContextVar(
    "imitated",
    default=Imitated(  # noqa: B039 - frozen
        kernels="cuda", capability=DEFAULT_CAPABILITY, torch_version=installed_torch()
    ),
)


def current() -> Kernels:
    """Return whose kernels are imitated now."""
    return _current.get().kernels


def imitated() -> Imitated:
    """Return all that is imitated now."""
    return _current.get()


@contextlib.contextmanager
def imitate(
    kernels: Kernels,
    *,
    capability: Version = DEFAULT_CAPABILITY,
    torch_version: Version | None = None,
) -> Iterator[None]:
    """Imitate the kernels of ``cuda`` or ``cpu`` inside the block.

    ``torch_version``: PyTorch's (major, minor) where its choices are to be another version's; None
    for the one that is installed.
    """
    if kernels == "cuda" and capability not in chips():
        asked, known = 10 * capability[0] + capability[1], {10 * a + b for a, b in chips()}
        near = min(known, key=lambda each: abs(each - asked))
        raise UnsupportedError(
            f"nothing is known of kernels on compute capability {capability[0]}.{capability[1]}; "
            f"the nearest that is known is {near / 10}"
        )
    token = _current.set(
        replace(
            _current.get(),
            kernels=kernels,
            capability=capability,
            torch_version=torch_version or installed_torch(),
        )
    )
    try:
        yield
    finally:
        _current.reset(token)
