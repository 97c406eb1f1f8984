"""Rows of evidence on what ``torch.compile`` makes of a program, simulated and for real."""

import msgspec


class CompiledRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A script that compiles what it trains, on the pretend GPU and for real.

    Attributes:
        name: Its arguments in one line.
        script: In ``compiled``.
        arguments: Its arguments.
        mode: What ``cuda`` meant, and whose kernels were imitated.
        simulated_peak_allocated_bytes: Of the GPU, as ``brimful pretend`` says it.
        measured_peak_allocated_bytes: Of the same script on this machine's CPU.
        simulated_eager_bytes: The simulated peak with nothing compiled.
        peak_error: Signed, relative to measured.
    """

    name: str
    script: str
    arguments: tuple[str, ...]
    mode: str
    simulated_peak_allocated_bytes: int
    measured_peak_allocated_bytes: int
    simulated_eager_bytes: int
    peak_error: float
