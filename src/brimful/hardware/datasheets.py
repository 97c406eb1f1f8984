"""The shipped table of GPUs. Owns the files and their schema; knows nothing of this machine."""

import re
from functools import cache
from importlib import resources
from typing import Literal

import msgspec

MatrixType = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "int8"]
MemoryKind = Literal["hbm", "gddr", "gddr-ecc", "unified"]
"""``gddr-ecc``: GDDR that keeps its check bits in the memory itself and has them on by default.
``unified``: one memory with the host, whose processes have their share of it."""
_FOLDER = "data/gpus"
_SOURCES = "sources.json"


class DatasheetRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dense rates of a datasheet in FLOP/s, 16, 8 and 4 bits with fp32 accumulation.

    0: the chip has no units for the type. None: it may have, and the rate is unknown.
    """

    fp32: float | None
    tf32: float | None
    fp16: float | None
    bf16: float | None
    fp8: float | None
    int8: float | None
    fp4: float | None = None


class SheetLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way by which a GPU reaches others or its host.

    Attributes:
        kind: ``nvlink``, ``xgmi`` or ``pcie``.
        generation: Of the link.
        width: Links of NVLink and xGMI, lanes of PCIe; None: unknown.
        bytes_per_s: All of them together, in one direction; None: unknown.
    """

    kind: Literal["nvlink", "xgmi", "pcie"]
    generation: int
    width: int | None
    bytes_per_s: float | None


class Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where values were taken from; an empty address where nothing was looked up."""

    title: str
    url: str


class Datasheet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the table; see ``Device`` for the fields that it shares.

    Attributes:
        description: What the maker calls it.
        maker: Whose it is.
        architecture: The maker's name of it.
        target: What compilers call it: ``sm_90``, ``gfx942``.
        reported_names: What ``nvidia-smi`` and PyTorch call it, one per driver generation.
        memory_kind: Which decides what is lost of the number on the box.
        memory_bytes: The number on the box; makers write GB and mean GiB.
        usable_bytes: The total that PyTorch prints, the most that a program can allocate; None:
            unknown, and ``usable.py`` has the rule for it.
        driver_bytes: The driver's total with what it reserves for itself; None: unknown.
        capability: CUDA compute capability; of AMD see ``Device``.
        matrix_flops_per_s: Dense rates.
        memory_bytes_per_s: Memory bandwidth in bytes/s.
        links: Fastest first; PCIe always.
        tdp_w: Power limit in watts; None: unknown.
        num_multiprocessors: Streaming multiprocessors, or compute units of AMD; None: unknown.
        op_overhead_s: Assumed host time to launch one operation, in seconds.
        per_node: How many are in a machine at most, as these are rented out.
        linked: How many the switches of a rack join by the fastest link, over machines; 0: those of
            a machine alone.
        processor: Of the machines that it comes in, which packages and images are built for.
        sources: Field to ``document; note``. A type's rate, or a link, that has no source of its
            own has that of the whole field.
    """

    description: str
    maker: Literal["NVIDIA", "AMD"]
    architecture: str
    target: str
    reported_names: tuple[str, ...]
    memory_kind: MemoryKind
    memory_bytes: int
    usable_bytes: int | None
    driver_bytes: int | None
    capability: float
    matrix_flops_per_s: DatasheetRates
    memory_bytes_per_s: float
    links: tuple[SheetLink, ...]
    tdp_w: int | None
    num_multiprocessors: int | None
    op_overhead_s: float
    sources: dict[str, str]
    per_node: int = 8
    linked: int = 0
    processor: Literal["x86", "ARM"] = "x86"


def is_built_in(name: str) -> bool:
    """Whether a GPU comes with the computer around it: nobody puts it in place of another."""
    return name.endswith("-laptop") or has_one_memory(name)


def has_one_memory(name: str) -> bool:
    """Whether a GPU's memory is the host's own, so that nothing is gained by moving it there."""
    sheet = datasheets().get(name)
    return sheet is not None and sheet.memory_kind == "unified"


@cache
def datasheets() -> dict[str, Datasheet]:
    """Read the shipped table: name to datasheet, old architectures first, small GPUs first."""
    rows: dict[str, Datasheet] = {}
    for file in resources.files("brimful").joinpath(_FOLDER).iterdir():
        if file.name.endswith(".json") and file.name != _SOURCES:
            rows |= msgspec.json.decode(file.read_bytes(), type=dict[str, Datasheet])
    return dict(sorted(rows.items(), key=lambda item: _place(*item)))


def _place(name: str, sheet: Datasheet) -> tuple[bool, float, str, int, str]:
    # AMD's targets sort by age as they are; NVIDIA's do not ("sm_100" comes before "sm_90").
    target = sheet.target if sheet.maker == "AMD" else ""
    return (sheet.maker == "AMD", sheet.capability, target, sheet.memory_bytes, name)


@cache
def documents() -> dict[str, Document]:
    """Read what the table cites: key to document."""
    data = resources.files("brimful").joinpath(_FOLDER, _SOURCES).read_bytes()
    return msgspec.json.decode(data, type=dict[str, Document])


def source_of(sheet: Datasheet, field: str) -> str:
    """Return where a value was taken from, as ``document; note``.

    ``field``: ``tdp_w``, or with a part: ``matrix_flops_per_s.bf16``, ``links.nvlink``. Raises
    KeyError: the row does not say; a test sees to it that none does.
    """
    whole = field.partition(".")[0]
    return sheet.sources[field] if field in sheet.sources else sheet.sources[whole]


def cited(sheet: Datasheet, field: str) -> str:
    """Return where a value was taken from, with the document's title in place of its key."""
    key, _, note = source_of(sheet, field).partition(";")
    key, _, more = key.partition(" ")
    words = [part.strip(" ()") for part in (more, note) if part.strip()]
    return documents()[key].title + (f" ({', '.join(words)})" if words else "")


def cited_documents(sheet: Datasheet) -> dict[str, Document]:
    """Return the documents that a row cites, in notes too: key to document."""
    said = {word for text in sheet.sources.values() for word in re.findall(r"[a-z0-9-]+", text)}
    return {key: document for key, document in documents().items() if key in said}


def fp4_rate(name: str) -> float:
    """Return the dense rate of NVFP4 of a GPU of the table in FLOP/s; 0: unknown, or none."""
    sheet = datasheets().get(name)
    return (sheet and sheet.matrix_flops_per_s.fp4) or 0.0
