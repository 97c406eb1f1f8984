"""Rows of evidence on what surrounds a run: loops that were watched, and packages."""

import msgspec


class WatchedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A loop that is not ours, metered by one line, beside its own steps on the pretend GPU.

    Attributes:
        name: Which loop.
        loop: Who drives it, e.g. ``Trainer``.
        settings: What it was told beside the model.
        simulated_peak_allocated_bytes: Of the same loop on the pretend GPU.
        measured_peak_allocated_bytes: By the profiler's allocation events.
        predicted_peak_allocated_bytes: Of Brimful's own loop with these settings; None where no
            formula covers them.
        other_share: Share of the simulated peak that is no parameters, gradients or optimizer
            state.
        peak_error: Of the simulation, signed, relative to measured.
    """

    name: str
    loop: str
    settings: str
    simulated_peak_allocated_bytes: int
    measured_peak_allocated_bytes: int
    predicted_peak_allocated_bytes: int | None
    other_share: float
    peak_error: float


class PackageRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was built, and installed in a fresh environment.

    Attributes:
        file: Its name.
        num_bytes: Its size.
        code_bytes: Of it everything but ``data``, as it is compressed; None of a source package.
        install_s: Seconds of ``pip install`` into an environment that has nothing; None where it
            was not installed.
        packages: What is installed then, as ``name version``.
        command: What was run there, without torch.
        said: The last line that it printed.
        exit_code: How it ended.
    """

    file: str
    num_bytes: int
    code_bytes: int | None
    install_s: float | None
    packages: tuple[str, ...]
    command: str
    said: str
    exit_code: int | None
