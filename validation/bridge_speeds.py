"""Reads how fast Megatron is said to be: the performance tables of Megatron Bridge and NeMo.

``python validation/bridge_speeds.py TABLES.md ...`` writes ``bridge_speeds.jsonl``, which ``--part
bridge_speeds`` predicts. A row of a table has a model, GPUs, batches, degrees and tokens a second
of a GPU, measured in the container that a heading names. Where cells have a second number in
parentheses, these are a run of their own.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

HERE = Path(__file__).parent
FILE = HERE / "bridge_speeds.jsonl"
SOURCE = (
    "NVIDIA-NeMo/Megatron-Bridge 067f987df0 (2026-08-22), docs/performance-summary.md and "
    "performance-summary-archive.md; NVIDIA/NeMo 070a0bb168, docs/source/performance"
)
_CONTAINER = re.compile(r"(?:^## |Container: \[NeMo\s*)(\d\d\.\d\d(?:\.\d\d)?)", re.MULTILINE)
_SYSTEM = re.compile(r"System: (DGX-\w+)")
_MODEL = re.compile(r"^#### Model: (.+)$")
_TASK = re.compile(r"^###+ (Pre-?[Tt]raining|SFT|LoRA|Fine-?[Tt]uning)", re.MULTILINE)
_NUMBER = re.compile(r"\d{1,3}(,\d{3})+|\d+")
_PARENTHESES = re.compile(r"\(([^()]*)\)")
_NONE = "n/a"
_FP8 = "FP8-CS (FP8-MX)"
"""What tables say nothing of: one scale for a tensor, and in parentheses blocks."""
_COLUMNS = {
    "#-GPUs": "num_gpus", "GBS": "global_batch", "MBS": "micro_batch", "FSDP": "fsdp", "TP": "tp",
    "PP": "pp", "CP": "cp", "VP": "vp", "EP": "ep", "Sequence Length": "seq_len",
    "Packed Sequence Length": "seq_len", "Tokens / sec / GPU": "tokens_per_s_per_gpu",
}  # fmt: skip


class BridgeSpeed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run.

    Attributes:
        container: NeMo's, by year and month.
        task: Pre-training, SFT or LoRA.
        system: Whose GPUs ran it.
        model: As the table calls it.
        precision: BF16, or a recipe of FP8 or FP4.
        num_gpus, global_batch, micro_batch, seq_len: As the table says.
        fsdp: GPUs over which its own FSDP shards; 0: none.
        tp, pp, cp, vp, ep: Degrees.
        tokens_per_s_per_gpu: Published.
    """

    container: str
    task: str
    system: str
    model: str
    precision: str
    num_gpus: int
    global_batch: int
    micro_batch: int
    seq_len: int
    fsdp: int = 0
    tp: int = 1
    pp: int = 1
    cp: int = 1
    vp: int = 1
    ep: int = 1
    tokens_per_s_per_gpu: int


def main() -> None:
    """Read pages."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("tables", type=Path, nargs="+")
    found = [row for path in parser.parse_args().tables for row in _rows(path.read_text("utf-8"))]
    FILE.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in found))
    print(f"{len(found)} rows")


def read_speeds() -> list[BridgeSpeed]:
    """Return what was read of the tables."""
    return [msgspec.json.decode(line, type=BridgeSpeed) for line in FILE.read_bytes().splitlines()]


def _rows(page: str) -> Iterator[BridgeSpeed]:
    told = {"container": "", "task": "Pre-training", "system": "", "model": ""}
    names: list[str] = []
    for line in page.splitlines():
        for key, pattern in (
            ("container", _CONTAINER), ("task", _TASK), ("system", _SYSTEM), ("model", _MODEL),
        ):  # fmt: skip
            if matched := pattern.search(line):
                told[key] = matched[1].strip()
        cells = [cell.strip().strip("*") for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or set(line) <= set("|-: "):
            continue
        if "#-GPUs" in cells:
            names = cells
        else:
            yield from _of_line(told, dict(zip(names, cells, strict=False)))


def _of_line(told: dict[str, str], cells: dict[str, str]) -> Iterator[BridgeSpeed]:
    model = _PARENTHESES.sub("", cells.get("Model", told["model"])).strip()
    numbers = {
        name: cells[column]
        for column, name in _COLUMNS.items()
        if column in cells and cells[column] != _NONE
    }
    precision = cells.get("Precision", _FP8)
    beside = _PARENTHESES.search(numbers["tokens_per_s_per_gpu"])
    for inside in (False, True) if beside else (False,):
        yield BridgeSpeed(
            container=told["container"],
            task=cells.get("Task", told["task"]),
            system=cells.get("System", told["system"]),
            model=model,
            precision=_part(precision, inside=inside),
            **{name: _number(name, _part(cell, inside=inside)) for name, cell in numbers.items()},
        )


def _part(cell: str, *, inside: bool) -> str:
    """Return what stands in parentheses, where that is asked for and there are some."""
    found = _PARENTHESES.search(cell)
    return found[1] if found and inside else _PARENTHESES.sub("", cell).strip()


def _number(name: str, cell: str) -> int:
    if not _NUMBER.fullmatch(cell):
        raise ValueError(f"{name} is {cell!r} in a table, and should be a number")
    return int(cell.replace(",", ""))


if __name__ == "__main__":
    main()
