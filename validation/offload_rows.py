"""What an evidence file on offload holds."""

import msgspec
from cases import Case


class OffloadRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peaks of a device and of its host, simulated and measured, on CPU kernels.

    Attributes:
        case: What was run.
        simulated_peak_allocated_bytes: Of the device; second rung.
        measured_peak_allocated_bytes: Of the device, in a process of its own.
        simulated_peak_host_bytes: Of what is offloaded; second rung.
        measured_peak_host_bytes: Of what is offloaded, in that process.
        plain_peak_allocated_bytes: Of the device, simulated, with nothing on the host and the
            update behind the backward pass.
        peak_error: Of the device, signed, relative to measured.
        host_error: Of the host, likewise; None where nothing is offloaded.
    """

    case: Case
    simulated_peak_allocated_bytes: int
    measured_peak_allocated_bytes: int
    simulated_peak_host_bytes: int
    measured_peak_host_bytes: int
    plain_peak_allocated_bytes: int
    peak_error: float
    host_error: float | None
