"""A published run as it is carried in ``data/published``: figures and facts, each with its source.

Knows no formula and no prediction.
"""

from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import msgspec

from brimful.cost.efficiency import AttentionKernel
from brimful.errors import FileFormatError, unknown_name
from brimful.files.writing import read_whole
from brimful.techniques.fused_kernels import FusedKernels
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.text.escaping import Line
from brimful.values.job import Method, Optimizer, Precision, Task, Upcast
from brimful.values.strategy import Attention, Zero

_FOLDER = "data/published"
Implementation = Literal[
    "hf", "hf-fsdp1", "litgpt", "torchtitan", "megatron-te", "fsdp-qlora", "llm-foundry",
    "fms-fsdp", "tinyllama", "torchtune",
]  # fmt: skip
"""Whose code ran. What blocks keep differs between them: figures of two are never pooled."""
LossCopies = Literal[
    "none", "copied", "copied-wide", "narrow", "narrow-fused", "compiled", "outputs",
    "wide-fused",
]  # fmt: skip
"""What the loss held beside log-probabilities (``logit_copies.py``): nothing; logits, narrow and
wide, and a copy; the same but for the narrow ones; narrow ones and a narrow copy; the
same where a fused kernel writes over the copy; narrow ones alone, of which a compiled loss makes
their gradient; the model's own logits, as a loop that binds its outputs keeps them through
backward; wide ones, over which a fused kernel writes their gradient."""

Products = Literal["all", "alternate"]
"""Which matrix products selective checkpointing kept: every one, as ours, or every second."""

Root = Literal["held", "resharded", "apart"]
"""What FSDP's root, which has the embedding and the head, does after its forward: ``apart`` where
it has neither, as both are units of their own (``ends.py``), in torchtitan since mid-2025."""

Split = Literal["fit", "validation", "test"]
"""What a source was used for: parameters were fitted to it; it was looked at when they were chosen;
or it was carried afterwards and is compared once."""


class PublishedAdapter(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Adapters of a published run, in the terms of ``brimful.values.job.Adapter``.

    Attributes:
        rank: Width of the two matrices.
        targets: Names of the layers that have one; ``all-linear``: every one but the head.
        dtype: ``same`` is the recipe's own, ``fp32`` what PEFT makes of half precision.
        base: How the frozen weights are held.
        upcast: What of them is held in fp32.
    """

    rank: int
    targets: tuple[Line, ...]
    dtype: Literal["same", "fp32"]
    base: Literal["same", "bf16", "fp16", "nf4", "nf4-double"]
    upcast: Upcast


class PublishedRun(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A measured run that somebody published; figures are of one device, the fullest.

    Attributes:
        id: Its name here.
        family: The collection it comes from; the name of its file.
        implementation: Whose code ran.
        model: A name of ``data/published/models.json`` or of the registry.
        gpu: A name that ``brimful gpus`` lists.
        num_devices: How many of them.
        devices_per_node: Of one host; 0: all are in one.
        network: Between hosts, a name of ``data/links``, where the source says its rate.
        usable_gib: What the card offered, where it is not what ``gpu`` offers.
        task: What the loss is.
        method: Which parameters trained.
        adapter: The adapters of every method but ``full``.
        precision: The recipe.
        optimizer: The update rule.
        seq_len: Tokens per sequence.
        micro_batch: Sequences per forward pass and device.
        accumulation: Forward passes per step.
        checkpointing: As ``--activation-checkpointing``.
        products: Which matrix products selective checkpointing kept.
        attention: As ``--attention``.
        kernel: What computed its scores, where its program took another kernel for them than
            PyTorch of its version does.
        fused_kernels: As ``--fused-kernels``.
        offload: As ``--offload``.
        loss: What its loss held of the logits.
        loss_chunks: Pieces in which the loss was computed.
        zero: What is sharded over ``dp_shard`` devices.
        root: Whether FSDP's root kept its parameters gathered while the loss was computed.
        dp_replicate: Groups of devices that hold a model each.
        dp_shard: Devices that share what ``zero`` shards.
        tp: Devices that share every matrix.
        pp: Stages.
        schedule: Of the stages; empty for one.
        allocator: ``expandable`` where segments grew in place.
        command: The program's own command line, where that says it all: then it is what counts
            where the program has formulas of its own, and what is run where it is simulated.
        unlike: What of the program has no switch here and is left out of its prediction.
        beyond: What of the program makes a prediction impossible.
        allocated_gib: Peak of live tensors.
        active_gib: The same, with blocks that other streams still use.
        reserved_gib: Peak of the allocator's segments.
        process_gib: Peak of the process, as the driver says it.
        tokens_per_s: Of one device.
        source: Where it was published.
        versions: Of the program that ran it.
    """

    id: Line
    family: Line
    implementation: Implementation
    model: Line
    gpu: Line
    num_devices: int
    devices_per_node: int = 0
    network: str = ""
    usable_gib: float | None = None
    task: Task = "causal-lm"
    method: Method
    adapter: PublishedAdapter | None = None
    precision: Precision
    optimizer: Optimizer
    seq_len: int
    micro_batch: int
    accumulation: int = 1
    checkpointing: Line
    products: Products = "all"
    attention: Attention = "sdpa"
    kernel: AttentionKernel | None = None
    fused_kernels: FusedKernels = "none"
    offload: Line = NO_OFFLOAD
    loss: LossCopies = "none"
    loss_chunks: int = 1
    zero: Zero = 0
    root: Root = "held"
    dp_replicate: int = 1
    dp_shard: int = 1
    tp: int = 1
    pp: int = 1
    schedule: Line = ""
    allocator: Literal["", "expandable"] = ""
    command: Line = ""
    unlike: tuple[Line, ...] = ()
    beyond: tuple[Line, ...] = ()
    allocated_gib: float | None = None
    active_gib: float | None = None
    reserved_gib: float | None = None
    process_gib: float | None = None
    tokens_per_s: float | None = None
    source: Line
    versions: Line


TRACED = frozenset({"hf", "torchtitan"})
"""Implementations that profiles are traced of, or that are FSDP2 around the same blocks."""


def is_traced(run: PublishedRun) -> bool:
    """Whether a run's own program is what is predicted."""
    return run.implementation in TRACED and not run.unlike and not run.beyond


class PublishedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model that no formula covers, or that no registry name stands for.

    Attributes:
        model_type: The architecture by which it is predicted.
        config: Its configuration; None where no formula covers the architecture.
        note: In what the real model differs.
    """

    model_type: Line
    config: dict[str, Any] | None = None
    note: Line = ""


@cache
def families() -> tuple[str, ...]:
    """Name the collections that are carried, in alphabetical order."""
    files = resources.files("brimful").joinpath(_FOLDER).iterdir()
    return tuple(sorted(f.name.removesuffix(".jsonl") for f in files if f.name.endswith(".jsonl")))


def _with_method(word: str) -> str:
    """Name the families with runs of a method, where a word is one."""
    counts = {name: _num_runs(name, word.lower()) for name in families()}
    held = [f"{name} ({num})" for name, num in counts.items() if num]
    return f"; runs of {word.lower()} are in {', '.join(held)}" if held else ""


def _num_runs(family: str, method: str) -> int:
    return sum(run.method == method for run in published_runs(family))


@cache
def published_runs(family: str = "") -> tuple[PublishedRun, ...]:
    """Load the runs of a family.

    ``family``: one of ``families()``; empty: all of them, family by family. Raises
    UnknownNameError: no such family.
    """
    if family and family not in families():
        more = f"(families: {', '.join(families())}{_with_method(family)}; without one: all)"
        raise unknown_name("family of published runs", family, families(), more=more)
    folder = resources.files("brimful").joinpath(_FOLDER)
    lines = (
        line
        for name in ([family] if family else families())
        for line in folder.joinpath(f"{name}.jsonl").read_bytes().splitlines()
    )
    return tuple(msgspec.json.decode(line, type=PublishedRun) for line in lines)


@cache
def splits() -> dict[str, Split]:
    """Load what every source that is carried was used for."""
    data = resources.files("brimful").joinpath(f"{_FOLDER}/splits.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, Split])


def split_of(source: str) -> Split:
    """Return what a source was used for; ``test`` for one that is not carried: nobody saw it."""
    return splits().get(source, "test")


def runs_of(split: Split) -> tuple[PublishedRun, ...]:
    """Load the runs of the sources of one split, and no others."""
    return tuple(run for run in published_runs() if split_of(run.source) == split)


def read_runs(path: Path) -> tuple[PublishedRun, ...]:
    """Read runs of the user's own: a JSON object a line, with the fields of ``PublishedRun``."""
    try:
        lines = read_whole(path).splitlines()
    except OSError as error:
        raise FileFormatError(
            f"{path} cannot be read ({error.strerror}); check the path"
        ) from error
    runs = tuple(_decode(path, n, line) for n, line in enumerate(lines, 1) if line.strip())
    if not runs:
        raise FileFormatError(f"{path} holds no runs; write a JSON object a line")
    return runs


_COUNTS = ("num_devices", "seq_len", "micro_batch", "accumulation", "loss_chunks", "dp_replicate",
           "dp_shard", "tp", "pp")  # fmt: skip
_FIGURES = ("usable_gib", "allocated_gib", "active_gib", "reserved_gib", "process_gib",
            "tokens_per_s")  # fmt: skip
_MOST = 10**9
"""No run has as many of anything; sums with more overflow."""


def _check(path: Path, number: int, run: PublishedRun) -> None:
    """Refuse figures that no run has: they would be divided by."""
    for name in (*_COUNTS, *_FIGURES):
        value = getattr(run, name)
        least = 1 if name in _COUNTS else 0
        is_possible = value is None or (least <= value <= _MOST and value > 0)
        if not is_possible:
            raise FileFormatError(
                f"{path} line {number}: {name} is {value:g} and must be over 0 and at most {_MOST}"
            )
    if not 0 <= run.devices_per_node <= run.num_devices:
        raise FileFormatError(
            f"{path} line {number}: devices_per_node is {run.devices_per_node} and "
            f"num_devices {run.num_devices}; give at most that many, 0 for all"
        )


_REQUIRED = tuple(
    each.name
    for each in msgspec.structs.fields(PublishedRun)
    if each.default is msgspec.NODEFAULT and each.default_factory is msgspec.NODEFAULT
)
_MEASURED = tuple(name for name in _FIGURES if name != "usable_gib")
"""What a run is compared by."""


def _decode(path: Path, number: int, line: bytes) -> PublishedRun:
    try:
        run = msgspec.json.decode(line, type=PublishedRun)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(
            f"{path} line {number} is not a published run ({error}); it has to say "
            f"{', '.join(_REQUIRED)}, and one figure or more of {', '.join(_MEASURED)}; "
            f"brimful/data/published in the package holds examples"
        ) from error
    _check(path, number, run)
    return run


@cache
def published_models() -> dict[str, PublishedModel]:
    """Load the models that stand in no registry."""
    data = resources.files("brimful").joinpath(f"{_FOLDER}/models.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, PublishedModel])
