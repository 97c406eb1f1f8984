"""What the cases are simulated to take, so that nobody plans one that cannot fit.

``python benchmarks/gpu/run.py --plan h200`` makes ``planned.json`` where there is no GPU, a few at
a time; ``--list`` shows it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rows import Case, Simulated

from brimful.files.writing import write_bytes
from brimful.hardware.cluster import Device
from brimful.units import GIB

FILE = Path(__file__).with_name("planned.json")
SMALL_GIB = 80
"""What most cards of a data centre have at least."""


class Planned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case that was simulated.

    Attributes:
        case: Which.
        gpu: Whose kernels were imitated, and whose capacity was replayed.
        simulated_peak_allocated_bytes: None where it was not simulated.
        simulated_peak_reserved_bytes: By the replay; None likewise.
        simulated_peak_host_bytes: None likewise.
        outcome: Of the replay, or why there is none.
        simulate_s: Seconds it took; 0 where it was not.
    """

    case: Case
    gpu: str
    simulated_peak_allocated_bytes: int | None
    simulated_peak_reserved_bytes: int | None
    simulated_peak_host_bytes: int | None
    outcome: str
    simulate_s: float


def planned_of(case: Case, device: Device, simulated: Simulated | str) -> Planned:
    """Put down what a simulation says of a case, or why there is none."""
    if isinstance(simulated, str):
        return Planned(
            case=case, gpu=device.name, simulated_peak_allocated_bytes=None,
            simulated_peak_reserved_bytes=None, simulated_peak_host_bytes=None, outcome=simulated,
            simulate_s=0.0,
        )  # fmt: skip
    return Planned(
        case=case,
        gpu=device.name,
        simulated_peak_allocated_bytes=simulated.simulated_peak_allocated_bytes,
        simulated_peak_reserved_bytes=simulated.simulated_peak_reserved_bytes,
        simulated_peak_host_bytes=simulated.simulated_peak_host_bytes,
        outcome=simulated.simulated_outcome,
        simulate_s=simulated.simulate_s,
    )


def read_planned(path: Path = FILE) -> dict[str, Planned]:
    """Read what was simulated, by name; nothing where nothing was."""
    if not path.is_file():
        return {}
    found = msgspec.json.decode(path.read_bytes(), type=list[Planned])
    return {one.case.name: one for one in found}


def write_planned(planned: dict[str, Planned], path: Path = FILE) -> None:
    """Write it, a case in a few lines."""
    content = msgspec.json.encode(list(planned.values()))
    write_bytes(path, msgspec.json.format(content, indent=1) + b"\n")


def lines(cases: Sequence[Case], planned: dict[str, Planned]) -> Iterator[str]:
    """Yield a table of the cases, in the order in which they are run."""
    yield f"{'':4s} {'case':28s} {'family':14s} {'model':20s} {'peak':>10s} {'host':>9s}  on"
    for number, case in enumerate(cases, start=1):
        one = planned.get(case.name)
        known = one is not None and one.case == case
        peak = one.simulated_peak_allocated_bytes if one and known else None
        host = one.simulated_peak_host_bytes if one and known else None
        yield (
            f"{number:4d} {case.name:28s} {case.family:14s} {case.model.rpartition('/')[2]:20s} "
            f"{_gib(peak):>10s} {_gib(host):>9s}  {_where(peak, one.outcome if one else '')}"
        )


def _gib(num_bytes: int | None) -> str:
    return "-" if not num_bytes else f"{num_bytes / GIB:.1f} GiB"


def _where(peak: int | None, outcome: str) -> str:
    if peak is None:
        return outcome[:40] or "not simulated yet"
    if outcome == "out of memory":
        return "none"
    return "80 GB" if peak < 0.97 * SMALL_GIB * 1e9 else "141 GB"
