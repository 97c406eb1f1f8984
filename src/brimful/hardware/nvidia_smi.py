"""What NVIDIA's driver says of this machine, asked by ``nvidia-smi``: no torch, never an error.

``nvidia-smi`` is the driver's own front end to NVML and comes with it. It runs in a process of its
own, so that a driver that hangs or dies does not take this one with it. Where there is no driver,
or it does not answer, there are no GPUs.
"""

import os
import re
import shutil
import subprocess

import msgspec

from brimful.units import MIB

_TIMEOUT_S = 10
_FIELDS = (
    "name,compute_cap,memory.total,memory.reserved,pcie.link.gen.max,pcie.link.width.max",
    # Drivers before 495 do not know memory.reserved and then answer nothing at all.
    "name,compute_cap,memory.total",
)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_GPU = re.compile(r"GPU\d+")


class FoundGpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU as its driver describes it.

    Attributes:
        name: As the driver reports it.
        capability: CUDA compute capability; 0: unknown.
        total_bytes: The driver's total.
        usable_bytes: That, less what the driver reserves where it says so.
        pcie_generation: The most that card and slot can; 0: unknown.
        pcie_lanes: The most that card and slot can; 0: unknown.
    """

    name: str
    capability: float
    total_bytes: int
    usable_bytes: int
    pcie_generation: int
    pcie_lanes: int


class Pair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How two GPUs reach each other.

    Attributes:
        first: Number of a GPU, as the driver counts.
        second: Number of another, larger.
        way: As ``nvidia-smi topo -m`` writes it: ``NV18`` is 18 NVLinks; ``PIX``, ``PXB``, ``PHB``,
            ``NODE`` and ``SYS`` are PCIe through one switch, several, the host bridge, two bridges
            of one socket, and two sockets.
    """

    first: int
    second: int
    way: str


class FoundNode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The GPUs of this machine that are not hidden, and the ways between all that it has."""

    gpus: tuple[FoundGpu, ...]
    pairs: tuple[Pair, ...]


def find_node() -> FoundNode:
    """Ask the driver what there is; no GPUs where there is no driver or it does not answer."""
    found = find_gpus()
    if len(found) < 2:  # noqa: PLR2004 - a way has two ends
        return FoundNode(gpus=found, pairs=())
    return FoundNode(gpus=found, pairs=read_topology(_ask("topo", "-m")))


def find_gpus(*, only_first: bool = False) -> tuple[FoundGpu, ...]:
    """Ask for the GPUs that ``CUDA_VISIBLE_DEVICES`` does not hide.

    ``only_first``: whether the first is enough.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in {"", "-1"}:
        return ()
    wanted = [part.strip() for part in (visible or "").split(",") if part.strip()]
    if only_first:
        wanted = wanted[:1] or ["0"]
    which = [f"--id={','.join(wanted)}"] if wanted else []
    for fields in _FIELDS:
        lines = _ask(f"--query-gpu={fields}", "--format=csv,noheader,nounits", *which).splitlines()
        if lines:
            return tuple(gpu for line in lines if (gpu := read_gpu(line)) is not None)
    return ()


def _ask(*arguments: str) -> str:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    try:
        answer = subprocess.run(  # noqa: S603 - fixed commands; ids are the user's own setting
            [tool, *arguments],
            capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout


def read_gpu(line: str) -> FoundGpu | None:
    """Read one line of ``nvidia-smi --query-gpu``, in the order of ``_FIELDS``.

    Returns the GPU; None where the line does not say how much memory it has (one that shares the
    host's).
    """
    fields = [field.strip() for field in line.split(",")]
    name, capability, total, reserved, generation, lanes = [*fields, *[""] * 6][:6]
    if not _is_count(total):
        return None
    return FoundGpu(
        name=name,
        capability=float(capability) if re.fullmatch(r"[0-9]+\.[0-9]+", capability) else 0,
        total_bytes=int(total) * MIB,
        usable_bytes=(int(total) - _count(reserved)) * MIB,
        pcie_generation=_count(generation),
        pcie_lanes=_count(lanes),
    )


def _is_count(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,12}", text) is not None


def _count(text: str) -> int:
    return int(text) if _is_count(text) else 0


def read_topology(text: str) -> tuple[Pair, ...]:
    """Read the matrix of ``nvidia-smi topo -m``, its GPUs only; empty where it is none.

    ``text``: header with GPU0, GPU1, ... then other devices; one row for each.
    """
    rows = [_ESCAPES.sub("", line).split() for line in text.splitlines()]
    header = next((row for row in rows if row and _GPU.fullmatch(row[0])), [])
    columns = [int(cell[3:]) for cell in header if _GPU.fullmatch(cell)]
    pairs = []
    for row in rows[rows.index(header) + 1 :] if header else []:
        if row and _GPU.fullmatch(row[0]) and len(row) > len(columns):
            ways = zip(columns, row[1:], strict=False)
            first = int(row[0][3:])
            pairs += [Pair(first=first, second=to, way=way) for to, way in ways if to > first]
    return tuple(pairs)


def describe_pairs(pairs: tuple[Pair, ...]) -> str:
    """Say in words how the GPUs of this machine reach each other."""
    ways = sorted({pair.way for pair in pairs})
    if not ways:
        return "unknown"
    if len(ways) == 1:
        return f"{ways[0]} between all"
    return ", ".join(f"{way} in {sum(p.way == way for p in pairs)} pairs" for way in ways)
