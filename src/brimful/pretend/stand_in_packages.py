"""Which packages of kernels can be stood in for: one line each."""

import importlib.util
from collections.abc import Callable, Collection

from brimful.errors import UnsupportedError
from brimful.pretend import apex_norms, flash_attn_2, triton_decorators
from brimful.pretend.absent import KERNELS, WITH_TORCH, StandIn
from brimful.pretend.known_values import KnownValues
from brimful.pretend.layer_kernels import causal_conv1d, fla, mamba_ssm
from brimful.pretend.other_kernels import OtherKernels
from brimful.pretend.report_values import BesideTorch, Launched, Missed
from brimful.pretend.transformer_engine import extension

STAND_INS: dict[str, Callable[[OtherKernels, KnownValues], StandIn]] = {
    "apex": apex_norms.stand_in,
    "causal-conv1d": causal_conv1d.stand_in,
    "flash-attn": flash_attn_2.stand_in,
    "flash-linear-attention": fla.stand_in,
    "mamba-ssm": mamba_ssm.stand_in,
    "transformer-engine": extension.stand_in,
    "triton": triton_decorators.stand_in,
}
"""By the name under which a package is installed."""

_BESIDE = {"transformer-engine": "transformer_engine"}
"""Packages of which only what was compiled is stood in for, with the module that has to exist."""


def check_stand_ins(assumed: Collection[str]) -> None:
    """Refuse to assume what cannot be stood in for."""
    for name in assumed:
        if name in _BESIDE and importlib.util.find_spec(_BESIDE[name]) is None:
            raise UnsupportedError(
                f"what stands for {name} is its extension, beside its own Python; pip install "
                f"--no-deps {name}"
            )
        if name not in STAND_INS:
            listed = ", ".join(sorted(STAND_INS))
            raise UnsupportedError(
                f"{name} cannot be assumed: nothing here knows what its kernels allocate; "
                f"install it beside the program, or assume one of {listed}"
            )


def assumable(module: str) -> str:
    """Return the package of a module that can be stood in for; empty: it cannot."""
    package = KERNELS.get(module.partition(".")[0], "")
    return package if package in STAND_INS else ""


def stand_ins(
    assumed: Collection[str], kernels: OtherKernels, known: KnownValues
) -> dict[str, StandIn]:
    """Return what stands for the assumed packages, by the names of their modules."""
    return {
        module: STAND_INS[package](kernels, known)
        for module, package in KERNELS.items()
        if package in assumed
    }


def noted(kernels: OtherKernels) -> BesideTorch:
    """Sum up what was noted of kernels during a run."""
    most = sorted(kernels.launched.items(), key=lambda pair: (-pair[1], pair[0]))
    return BesideTorch(
        launched=tuple(Launched(kernel=name, num_launches=count) for name, count in most),
        missed=tuple(
            Missed(
                package=package,
                lines=tuple(lines.values()),
                libraries=tuple(lines),
                comes_with_torch=package in WITH_TORCH,
                can_be_assumed=package in STAND_INS,
            )
            for package, lines in sorted(kernels.absent.items())
        ),
        stood_in=tuple(
            f"{package} is not installed; in its place stands {words}"
            for package, words in sorted(kernels.stood_in.items())
        ),
    )
