"""A stored calibration of one machine: the value, its file, and when it may be believed.

Measuring is done elsewhere (``measure/calibrate.py``): this must not know torch.
"""

import re
from pathlib import Path

import msgspec

from brimful.errors import FileFormatError
from brimful.files.writing import cache_dir, write_text
from brimful.hardware.cluster import Device, MatrixRates
from brimful.text.escaping import Line, json_text

CALIBRATION_SCHEMA = "brimful.calibration/1"
LEAST_PER_S, MOST_PER_S = 1.0, 1e20
"""FLOPs or bytes that a machine does in a second: no slower one trains, and none is as fast."""
MOST_OVERHEAD_S = 60.0
"""No operation takes a minute to launch."""
QUIET_LOAD = 0.15
"""Beyond this share of the CPU, other programs have visibly slowed the measurement."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was measured on one machine.

    Attributes:
        schema: ``CALIBRATION_SCHEMA``.
        versions: Versions of python, torch, transformers and brimful, as ``name version``.
        date: Day of the measurement, ISO 8601.
        machine: ``Device.description`` of what was measured.
        num_threads: Threads that torch used.
        matrix_flops_per_s: Products and attention of a small block, forward and backward, FLOP/s.
        memory_bytes_per_s: Bytes moved by all other operations of a step per second.
        op_overhead_s: Seconds per tiny operation.
        spread: Half the interquartile range of a round's time over its median, the worst of all.
        others_load: Share of the CPU that other programs used meanwhile, 0 to 1.
        copy_bytes_per_s: Bytes copied per second, from the host or to it; 0: not measured.
    """

    schema: Line
    versions: tuple[Line, ...]
    date: Line
    machine: Line
    num_threads: int
    matrix_flops_per_s: MatrixRates
    memory_bytes_per_s: float
    op_overhead_s: float
    spread: float
    others_load: float
    copy_bytes_per_s: float = 0.0


def calibration_path(machine: str) -> Path:
    """Return where the calibration of a machine is stored; homes are shared between machines."""
    slug = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    return cache_dir() / f"calibration-{slug}.json"


def save_calibration(calibration: Calibration) -> Path:
    """Store a calibration atomically and return its path.

    Raises RunError: the folder cannot be written.
    """
    path = calibration_path(calibration.machine)
    write_text(path, json_text(calibration, indent=1))
    return path


def load_calibration(machine: str) -> Calibration | None:
    """Read the stored calibration of a machine.

    Returns the calibration; None where none was stored.
    """
    path = calibration_path(machine)
    try:
        calibration = msgspec.json.decode(path.read_bytes(), type=Calibration)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(
            f"{path} is not a calibration ({error}); run brimful calibrate again"
        ) from error
    if calibration.schema != CALIBRATION_SCHEMA:
        raise FileFormatError(
            f"{path} has schema {calibration.schema!r} and this version reads "
            f"{CALIBRATION_SCHEMA!r}; run brimful calibrate again"
        )
    # Whether a machine could have these rates; with others sums overflow.
    rates = calibration.matrix_flops_per_s
    measured = (rates.fp32, calibration.memory_bytes_per_s)
    perhaps = (rates.bf16, calibration.copy_bytes_per_s)
    if not (
        all(LEAST_PER_S <= rate <= MOST_PER_S for rate in measured)
        and all(rate == 0 or LEAST_PER_S <= rate <= MOST_PER_S for rate in perhaps)
        and 0 < calibration.op_overhead_s <= MOST_OVERHEAD_S
        and 0 <= calibration.others_load <= 1
        and calibration.spread >= 0
        and calibration.num_threads > 0
    ):
        raise FileFormatError(
            f"{path} holds a rate of 0 or less, or one that no machine has; "
            "run brimful calibrate again"
        )
    return calibration


def calibrated(device: Device, calibration: Calibration) -> Device:
    """Return the device with the measured rates in place of the datasheet's."""
    torch_version = next(v for v in calibration.versions if v.startswith("torch "))
    return msgspec.structs.replace(
        device,
        matrix_flops_per_s=calibration.matrix_flops_per_s,
        memory_bytes_per_s=calibration.memory_bytes_per_s,
        op_overhead_s=calibration.op_overhead_s,
        copy_bytes_per_s=calibration.copy_bytes_per_s,
        calibrated=True,
        source=f"measured on this machine on {calibration.date} with {torch_version}, "
        f"{calibration.num_threads} threads, spread {100 * calibration.spread:.0f} %"
        + _disturbance(calibration),
    )


def _disturbance(calibration: Calibration) -> str:
    if calibration.others_load <= QUIET_LOAD:
        return ""
    return (
        f"; disturbed: other programs used {100 * calibration.others_load:.0f} % of the CPU, "
        "calibrate again when it is quiet"
    )
