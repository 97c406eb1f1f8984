"""A file of another program's settings, as flags: what of it is taken, and what is told of it."""

import argparse
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from brimful.cli import defaults, flags, parsing, resolved, uncompiled
from brimful.cli.output import show
from brimful.cli.shards_away import plan_away
from brimful.errors import InputError, UnsupportedError
from brimful.units import Share, format_bytes
from brimful.values.strategy import Strategy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from brimful.export.leaves import Read
    from brimful.show.summary import Fact

MOST_LETTERS = 48
"""Of keys that are named beside a verdict, in a line; all of them stand below."""


def take_model(args: argparse.Namespace) -> None:
    """Take the model that ``--from`` names, where none was typed."""
    if args.model is not None:
        return
    from brimful.export.read_source import model_of, unnamed_words

    args.model = model_of(args.source) if args.source is not None else ""
    if not args.model:
        from brimful.programs.settings import name_of

        where = ""
        if args.source is not None:
            where = f", and {name_of(args.source)} {unnamed_words(args.source)}"
        raise InputError(f"no model was given{where}; give one (brimful models lists names)")


def take_gpus(args: argparse.Namespace) -> None:
    """Take how many GPUs a file says, where ``--gpus`` names one and no number of them."""
    args.beside_gpus = ""
    if args.source is None or args.gpus is None:
        return
    from brimful.export.read_source import content_of
    from brimful.hardware.datasheets import datasheets
    from brimful.hardware.names import find_gpu, split_counts
    from brimful.programs.counted import gpus_of
    from brimful.programs.settings import name_of

    found, typed = gpus_of(content_of(args.source)), split_counts(args.gpus)
    if found is None:
        return
    where, num = name_of(args.source), typed.num_nodes * typed.per_node
    if typed.gpu == str(args.gpus).strip().lower():
        sheet = datasheets().get(find_gpu(typed.gpu))
        nodes, rest = (0, 0) if sheet is None else divmod(found.num, sheet.per_node)
        counts = f"{nodes}x{sheet.per_node}" if sheet and nodes > 1 and not rest else f"{found.num}"
        args.gpus = f"{counts}x{typed.gpu}"
        parsing.note_once(f"{where} says {found.num} GPUs ({found.words}): --gpus {args.gpus}")
    elif found.num != num:
        args.beside_gpus = f"{where} says {found.num} GPUs ({found.words}): --gpus says {num}"


def take_source(args: argparse.Namespace, content: dict[str, Any] | None = None) -> dict[str, Any]:
    """Set the flags that a file says and nobody typed; return what was made of the file.

    ``args``: the flags, which keep what was typed as ``typed``. ``content``: what would stand in
    the file; None: what does.
    """
    if args.source is None:
        return {}
    args.typed = dict(vars(args))
    from brimful.export.leaves import without
    from brimful.export.read_source import model_of
    from brimful.export.unread import could_matter

    read = _read(args, content)
    given = {name: getattr(args, name, None) for name in flags.TRAINING}
    typed = {name: value for name, value in given.items() if value is not None}
    kept, replaced = without(read, typed)
    named = model_of(args.source)
    if named not in {"", args.model}:
        replaced.insert(0, f"{args.model} stands in for {named}")
    micro_batch = getattr(args, "micro_batch", None)
    for taken in kept:
        times = micro_batch if taken.is_each and isinstance(micro_batch, int) else 1
        setattr(args, taken.flag, taken.value * times if taken.is_each else taken.value)
    away = plan_away(args, read.moves_shards, kept)
    kept = [replace(each, value=away.flags.get(each.flag, each.value)) for each in kept]
    is_flat = any(each.flag == "fsdp" for each in kept) and args.fsdp is not None
    flat = tuple(_flat_notes(args)) if is_flat else ()
    unfused: tuple[str, ...] = ()
    if any(each.flag == "fused_kernels" and each.value == "liger" for each in kept):
        unfused = tuple(_unfused_words(args))
    if any(each.flag == "attention" for each in kept) and not _attends_so(args):
        kept, args.attention = [each for each in kept if each.flag != "attention"], None
    args.planned_without = uncompiled.plan_without(args, (each.flag for each in kept))
    left_out = {
        *(("fsdp",) if flat or away.flags else ()), *(("fused_kernels",) if unfused else ()),
        *args.planned_without,
    }  # fmt: skip
    args.files_engine_settings = read.engine_settings
    args.said_by_file = frozenset(each.flag for each in kept) - left_out
    on_disk, room = _lay_on_disk(args, read.on_disk), _leave_room(args, read)
    stand_ins = (
        *read.stand_ins,
        *away.words,
        *unfused,
        *([on_disk] if on_disk else ()),
        *([room] if room else ()),
    )
    args.beside_verdict = _beside_verdict(stand_ins, could_matter(read.unread))
    return {
        "taken": [each for each in kept if each.flag not in left_out],
        "replaced": replaced,
        "left": read.left,
        "unread": read.unread,
        "could_matter": could_matter(read.unread),
        "stand_ins": stand_ins,
        "notes": (
            *filter(None, [getattr(args, "beside_gpus", "")]),
            *read.notes,
            *flat,
            *_copy_notes(args, read.second_copy),
        ),
    }


def _read(args: argparse.Namespace, content: dict[str, Any] | None) -> "Read":
    from brimful.export.read_source import read_source
    from brimful.hardware.gpus import count_devices
    from brimful.programs.settings import name_of

    num_devices = count_devices(args.gpus or defaults.GPUS)
    num_layers = resolved.model_from(args).num_layers
    sizes = {"num_devices": num_devices, "num_layers": num_layers}
    try:
        return read_source(args.source, **sizes, content=content)
    except InputError as error:  # of a command line nobody knows the file that it was written to
        error.args = (str(error).replace(str(args.source), name_of(args.source)),)
        raise


def _attends_so(args: argparse.Namespace) -> bool:
    """Whether a model's class takes the kernel that a file says, which nobody typed."""
    from brimful.cost.kv_cache import windows
    from brimful.models.kernels import TAKING_MASKS, attentions_of

    job = resolved.job_from(args)
    if args.attention not in attentions_of(job):
        return False
    is_cut = any(window is not None and window < job.seq_len for window in windows(job.model))
    return args.attention in TAKING_MASKS or not is_cut


def _flat_notes(args: argparse.Namespace) -> "Iterator[str]":
    """Leave FSDP1 out, which nobody typed, where this version does not run the rest with it."""
    from brimful.techniques.parallel.flat import check_flat

    names = ("tp", "pp", "ep", "engine", "offload", "optimizer_in_backward", "compile")
    given = {name: getattr(args, name, None) for name in (*names, "fused_kernels")}
    beside = {
        name: each for name, each in given.items() if each is not None and type(each) is not list
    }
    strategy = Strategy(
        micro_batch=1, activation_checkpointing="none", loss_chunks=1, attention="sdpa",
        zero=3, dp_shard=2, fsdp=args.fsdp, **beside,
    )  # fmt: skip
    job = resolved.job_from(args)
    try:
        check_flat(job, strategy)
    except UnsupportedError as error:
        args.fsdp = None
        yield f"FSDP1 is planned as FSDP2, which takes less: {str(error).partition(';')[0]}"


def _unfused_words(args: argparse.Namespace) -> "Iterator[str]":
    """Plan Liger as the loss in chunks, where this version does not run its kernels for a job."""
    from brimful.export.fused_losses import MOST_CHUNKS, chunks_words
    from brimful.techniques.fused_kernels import beside

    reason = next(iter(beside(resolved.job_from(args))), None)
    if reason is None:
        return
    args.fused_kernels = None
    if args.loss_chunks is None:
        args.loss_chunks = MOST_CHUNKS
    yield chunks_words(f"Liger beside {reason[0]}", args.loss_chunks)


def _beside_verdict(stand_ins: "Sequence[str]", keys: "Sequence[str]") -> "tuple[Fact, ...]":
    """Say what of a file could turn a verdict: that belongs beside the verdict.

    ``stand_ins``: what is planned in place of what the file says. ``keys``: that nothing reads and
    that could change what fits.
    """
    from brimful.show.summary import Fact

    facts = [Fact("stands in" if not place else "", each) for place, each in enumerate(stand_ins)]
    if keys:
        named = ", ".join(keys)
        words = named if len(named) <= MOST_LETTERS else f"{keys[0]} and {len(keys) - 1} more"
        short = f"{len(keys)} keys that may change what fits (below)"
        facts.append(Fact("not read", f"{words}: may change what fits", short))
    return tuple(facts)


def _copy_notes(args: argparse.Namespace, shared: int) -> "Iterator[str]":
    """Say how many bytes a second copy of the parameters takes, and what it spares."""
    if not shared:
        return
    from brimful.models.config import parameter_count

    words = f"a copy of the parameters in 16 bits more, shared by {shared} GPUs"
    try:
        total = parameter_count(resolved.model_from(args)).total
    except UnsupportedError:
        size = ""
    else:
        size = f", {format_bytes(-(-2 * total // shared))} of each"
    yield (
        f"zero_hpz_partition_size={shared} keeps {words}{size}: that comes on top of what is "
        f"planned; backward passes gather among those GPUs alone, so that a step is faster than "
        f"planned where the network is slow"
    )


def _lay_on_disk(args: argparse.Namespace, on_disk: "Sequence[tuple[str, str]]") -> str:
    """Give each host as much more room as a file keeps on NVMe, and say how much that is.

    What is there is planned as if it were in the host's memory, of which it takes none.
    """
    from brimful.cli.least import least_of
    from brimful.hardware.names import split_counts

    least, kinds = least_of(resolved.job_from(args)), {what for _, what in on_disk}
    if not on_disk or least is None:
        return ""
    sizes = {"optimizer": least.optimizer_state, "param": least.parameters}
    words = {"optimizer": "optimizer state", "param": "parameters"}
    there = [f"{format_bytes(sizes[each])} of {words[each]}" for each in words if each in kinds]
    room = ""
    if args.host_memory:
        room = f", beside the {format_bytes(args.host_memory)} of a host,"
        num_nodes = split_counts(args.gpus or defaults.GPUS).num_nodes
        args.host_memory += -(-sum(sizes[each] for each in kinds) // num_nodes)
    return f"{' and '.join(there)}{room} are on NVMe, of all GPUs; a disk's speed is not known"


def _leave_room(args: argparse.Namespace, read: "Read") -> str:
    """Leave room on each GPU for what a program keeps there beside what is planned; say how much.

    Each has its part of the tensors and stages of a model, and that of their parameters.
    """
    from brimful.models.config import parameter_count

    if not read.beside_bytes or getattr(args, "has_left_room", False):
        return ""
    args.has_left_room = True
    words = f"{read.beside}, {read.beside_bytes} bytes a parameter that nothing here keeps"
    try:
        total = parameter_count(resolved.model_from(args)).total
    except UnsupportedError:
        return f"{words}: they come on top"
    degrees = [each for each in (args.tp, args.pp) if isinstance(each, int)]
    size = -(-total * read.beside_bytes // prod(degrees))
    cluster = resolved.cluster_from(args)
    usable = cluster.device.usable_bytes
    left = max(1, (cluster.memory_limit_bytes or usable) - size)
    args.memory_limit = Share(max(left / usable, 1 / usable))
    return f"{format_bytes(size)} of each GPU are left for {words}"


def show_source(path: Path | None, source: dict[str, Any]) -> None:
    """Say what of a file was taken and what was not."""
    from brimful.programs.settings import name_of
    from brimful.report.tables import line_of

    if path is None or not source:
        return
    taken = (f"{each.flag}={each.value}" for each in source["taken"])
    told = {
        "taken": list(taken), "replaced": source["replaced"], "left to the planner (auto)":
        source["left"], "not read": source["unread"], "note": source["notes"],
    }  # fmt: skip
    for word, entries in told.items():
        if entries:
            show(line_of(f"{name_of(path)}: {word}: {', '.join(entries)}"))
