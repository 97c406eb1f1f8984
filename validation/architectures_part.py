"""Every architecture of transformers that has a head for text: is it predicted after one trace?

Each is built from its own class's defaults: widths, windows and kinds of blocks as the class makes
them, with at most twelve blocks; what a class leaves to files is said (``architecture_fields``).

Two strategies are drawn for each, one on one GPU and one on several; for each a profile is traced
and its live and reserved peaks are compared with the simulation's.

Every architecture is a fork with a limit of CPU time, so that a busy machine decides nothing. Rows
are kept as they come, by sources and seed, so that a run that was cut short goes on
(``kept_rows``).
"""

import contextlib
import logging
import multiprocessing
import random
import re
import resource
import signal
import traceback
import warnings
from collections import Counter
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from architecture_fields import HEADS, Fields, defaults_of, fields_lacking, why_not
from architecture_rows import ArchitectureRow, ComparedPeaks
from cases import Case
from class_alone import ends_alone
from evidence import Evidence, Summary, relative, spread_of
from kept_rows import KeptRows
from progress import shown
from sampler import cluster_for

from brimful.allocator.config import parse_settings
from brimful.allocator.replay import Requests, replay
from brimful.cost.estimate import estimate
from brimful.cost.formula import is_traceable, missing_formula
from brimful.cost.needed import needed, traced_job
from brimful.cost.programs import kernels_of
from brimful.cost.reserved import candidate_of
from brimful.errors import BrimfulError, UnknownMemoryError, UnsupportedError
from brimful.files.remembered import once_for_each
from brimful.models.architectures import ARCHITECTURES
from brimful.models.config import default_task, read_config
from brimful.models.kernels import attentions_of
from brimful.models.spec import ModelSpec
from brimful.values.job import Adapter, Job, plain_job
from brimful.values.strategy import Attention, Strategy, world_size

MOST_BLOCKS = 12
_FEW_BLOCKS, _MOST_DRAWS = 2, 20
"""Of a class that is run by itself; and that are made in the place of one that it cannot run."""
LIMIT_S, _WAITED_S = 240, 3600
"""CPU seconds of an architecture; and what one that does nothing is waited for."""
NUM_QUICK = 2
PREDICTED_BAR, PEAK_BAR = 0.9, 0.005
_DECIDES = ("cases", "cells", "sampler", "architecture_fields", "architectures_part", "class_alone")
"""Files here that decide a row."""
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers",
           "decoder_layers", "num_decoder_layers")  # fmt: skip
_SOME_LAYERS = re.compile(r"num_\w+_layers")
"""What says how many blocks are of some kind."""
_DEFAULT = "default_"
_WIDE = "fp32"
_NOT_BUILT = "does not build"
_NAMED = ("attention", "activation_checkpointing")
"""What a class may refuse of what is drawn, and names instead."""
_LENGTHS = (512, 1024, 3072, 6144)


class Shape(NamedTuple):
    """What is drawn for an architecture: settings of a job, and a strategy."""

    job: dict[str, Any]
    strategy: dict[str, Any]
    seq_len: int


def run(*, seed: int, quick: bool) -> tuple[list[ArchitectureRow], Summary]:
    """Try every architecture, or go on where an earlier run of these sources ended."""
    names = architectures()
    if quick:
        names = random.Random(seed).sample(names, NUM_QUICK)  # noqa: S311 - cases, not secrets
    found = _made(names, seed)
    return found, summarize(found)


def complete(
    before: Evidence[ArchitectureRow], *, seed: int
) -> tuple[list[ArchitectureRow], Summary]:
    """Make the rows anew that miss a bar, and those of types that came since; keep the others.

    Args:
        before: What was made before.
        seed: Of the shapes that are drawn.
    """
    kept = {row.model_type: row for row in before.rows if not any(map(_misses, row.peaks))}
    names = architectures()
    anew = [name for name in names if name not in kept]
    rows = kept | {row.model_type: row for row in _made(anew, seed)}
    found = [rows[name] for name in names]
    told = summarize(found)
    finding = f"made anew, the others at commit {before.provenance.commit[:10]}: {', '.join(anew)}"
    return found, msgspec.structs.replace(told, findings=(*told.findings, finding))


def _made(names: list[str], seed: int) -> list[ArchitectureRow]:
    kept = KeptRows("architectures", ArchitectureRow, _DECIDES, seed=seed)
    rows = {row.model_type: row for row in kept.read()}
    for library in ("brimful.simulate.on_demand", "brimful.simulate.run"):
        import_module(library)  # before processes fork
    defaults_of(tuple(architectures()))
    for name in shown("architectures", [name for name in names if name not in rows]):
        rows[name] = _apart(name, seed)
        kept.keep(rows[name])
    return [rows[name] for name in names]


def architectures() -> list[str]:
    """Name every type that transformers has a causal, masked, seq2seq or classifying head for."""
    from transformers.models.auto import modeling_auto as auto

    return sorted({name for mapping in HEADS.values() for name in getattr(auto, mapping)})


def _apart(name: str, seed: int) -> ArchitectureRow:
    """Try an architecture in a fork of its own."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_tell, args=(theirs, name, seed))
    before_s = _spent_s()
    process.start()
    theirs.close()
    row: ArchitectureRow | None = None
    with contextlib.suppress(EOFError):
        row = ours.recv() if ours.poll(_WAITED_S) else None
    process.kill()
    process.join()
    if row is None:
        is_slow = process.exitcode == -signal.SIGXCPU
        cause = f"took more than {LIMIT_S} s" if is_slow else "ended its process"
        row = ArchitectureRow(model_type=name, cause=cause)
    return msgspec.structs.replace(row, spent_s=_spent_s() - before_s)


def _spent_s() -> float:
    """Return the CPU seconds of forks that ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _tell(pipe: Any, name: str, seed: int) -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, 2 * LIMIT_S))
    pipe.send(tried(name, seed))


def tried(name: str, seed: int) -> ArchitectureRow:
    """Build, trace, predict and simulate one architecture on two drawn shapes."""
    if why := not_built(name):
        return ArchitectureRow(model_type=name, cause=f"{_NOT_BUILT}: {why}")
    try:
        return _compared_twice(name, small(name), seed)
    except BrimfulError as error:
        return ArchitectureRow(model_type=name, cause=f"refused: {short(error)}")
    except Exception as error:  # noqa: BLE001 - a fault of ours is a row, and is looked for
        return ArchitectureRow(model_type=name, cause=f"FAULT {short(error)}")


def _compared_twice(name: str, model: ModelSpec, seed: int) -> ArchitectureRow:
    """Compare two drawn shapes; in the place of one that its class cannot run another is drawn."""
    row = ArchitectureRow(model_type=name, cause="")
    rng, again = (random.Random(f"{seed} {name}{which}") for which in ("", " again"))  # noqa: S311 - cases
    shapes = _alone(rng, model), _spread(rng, model)
    for shape, draw in zip(shapes, (_alone, _spread), strict=True):
        tried = _with_shape(row, model, shape)
        if tried.cause and (why := _ends_alone(model, shape)):
            row = msgspec.structs.replace(row, left_out=(*row.left_out, why))
            in_fp32 = shape._replace(job={**shape.job, "precision": _WIDE})
            drawn = [*(draw(again, model) for _ in range(_MOST_DRAWS)), in_fp32]
            other = next((each for each in drawn if not _ends_alone(model, each)), shape)
            tried = _with_shape(row, model, other)
        row = tried
        if row.cause:
            break
    return row


def _with_shape(row: ArchitectureRow, model: ModelSpec, shape: Shape) -> ArchitectureRow:
    """Return a row with the peaks of one more shape, or with why there are none."""
    try:
        case = _case(model, shape)
        if cause := traced(case):
            return msgspec.structs.replace(row, cause=cause)
        peaks = (*row.peaks, _compared(case))
        return msgspec.structs.replace(row, peaks=peaks)
    except BrimfulError as error:
        return msgspec.structs.replace(row, cause=short(error))
    except Exception as error:  # noqa: BLE001 - a fault of ours is a row, and is looked for
        where = traceback.extract_tb(error.__traceback__)[-1]
        cause = f"FAULT {short(error)} ({Path(where.filename).name}:{where.lineno})"
        return msgspec.structs.replace(row, cause=cause)


def _ends_alone(model: ModelSpec, shape: Shape) -> str:
    """Say what a class ends in, with nothing of ours, where it is run as drawn; empty: it runs."""
    try:
        job = _case(model, shape).job
    except BrimfulError:
        return ""
    why = _ended(model, job.task, job.precision, job.seq_len)
    return f"{job.precision} of {job.seq_len} tokens: {why}" if why else ""


@once_for_each
def _ended(model: ModelSpec, task: str, precision: str, seq_len: int) -> str:
    few = {f: _FEW_BLOCKS for f, value in model.hf_config.items() if f in _LAYERS and value}
    return ends_alone(model.model_type, {**model.hf_config, **few}, task, precision, seq_len)


def _compared(case: Case) -> ComparedPeaks:
    """Compare a case; in the recipe that a refusal names where no run is sharded in the drawn one.

    Raises:
        UnsupportedError: Nothing that is named runs.
    """
    try:
        return compared(case, _words(case))
    except UnsupportedError as error:
        named = error.nearest.get("precision")
        if named in {None, case.job.precision}:
            raise
        job = msgspec.structs.replace(case.job, precision=named)
        instead = msgspec.structs.replace(case, job=job)
        if cause := traced(instead):
            raise UnsupportedError(cause) from error
        return compared(instead, _words(instead))


def short(error: Exception) -> str:
    """Name an error by its first line."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"{type(error).__name__}: {text[:200]}"


def not_built(name: str) -> str:
    """Say why transformers itself builds none of a type's heads; empty: it does.

    From its defaults, and what a class leaves to files. Nothing of ours takes part, so that what we
    refuse counts against us.
    """
    error = why_not(name, _lacking(name))
    return "" if error is None else short(error)


@cache
def _lacking(name: str) -> Fields:
    """Return the fields that a class cannot do without and has no default for."""
    return fields_lacking(name, architectures(), partial(why_not, name))


def small(name: str) -> ModelSpec:
    """Describe a model of an architecture: its class's defaults, in few blocks if it may have few.

    What a reader of ours asks a file to say is said as the class has it, and what a class leaves to
    files is said.
    """
    from transformers import CONFIG_MAPPING

    made = CONFIG_MAPPING[name](**_lacking(name))
    inner = made.get_text_config()
    asked = ARCHITECTURES[name].required if name in ARCHITECTURES else ()
    told = {field: getattr(made, field) for field in asked}
    field = next((key for key, value in vars(made).items() if value is inner), "")
    lacking = _lacking(name)
    fewer: dict[str, Any] = _fewer(inner)
    fields = {**lacking, **fewer}
    if field:
        is_cut = any(getattr(inner, key) != num for key, num in fewer.items())
        cut = fewer if is_cut else {}
        inside = {**lacking.get(field, {}), **cut}
        fields = {**lacking, **({field: inside} if inside else {})}
    try:
        CONFIG_MAPPING[name](**fields)
    except Exception:  # noqa: BLE001 - of some a list says of every block what it is
        fields = lacking
    says = {"model_type": name, **told, **_ends(made), **_chosen(made), **fields}
    return read_config(f"small-{name}", says)


def _fewer(config: Any) -> dict[str, int]:
    """Return the fields that say how many blocks a model has, with few of them.

    How many of them are of some kind is cut alike where that is more than there are then.
    """
    told = {field: value for field, value in vars(config).items() if type(value) is int}
    few = {spelt: min(told[spelt], MOST_BLOCKS) for spelt in _LAYERS if spelt in told}
    depth = max((told[spelt] for spelt in few), default=0)
    some = [field for field in told if field not in few and _SOME_LAYERS.fullmatch(field)]
    cut = {field: told[field] * MOST_BLOCKS // depth for field in some if told[field] < depth}
    return few | {field: num for field, num in cut.items() if told[field] > MOST_BLOCKS}


def _chosen(made: Any) -> dict[str, Any]:
    """Choose the first of what a class asks for: a ``default_`` of one of its lists, left open."""
    open_fields = [field for field, value in vars(made).items() if value is None]
    words = [f.removeprefix(_DEFAULT) for f in open_fields if f.startswith(_DEFAULT)]
    lists = {word: getattr(made, f"{word}s", None) for word in words}
    return {f"{_DEFAULT}{word}": each[0] for word, each in lists.items() if each}


def _ends(made: Any) -> dict[str, Any]:
    """Leave out special tokens that a class's own vocabulary lacks."""
    size = getattr(made, "vocab_size", None)
    fields = ("pad_token_id", "bos_token_id", "eos_token_id")
    values = {field: getattr(made, field, None) for field in fields}
    return {
        field: None
        for field, value in values.items()
        if isinstance(size, int) and isinstance(value, int) and not 0 <= value < size
    }


def _length(rng: random.Random, model: ModelSpec) -> int:
    fitting = [length for length in _LENGTHS if length <= model.max_seq_len]
    return rng.choice(fitting) if fitting else model.max_seq_len


def _alone(rng: random.Random, model: ModelSpec) -> Shape:
    recompute = rng.choice(("none", "full", f"full:{rng.randint(1, max(1, model.num_layers - 1))}"))
    strategy = {
        "micro_batch": rng.choice((1, 2, 3)),
        "activation_checkpointing": recompute,
        "loss_chunks": rng.choice((1, 1, 2, 6)),
    }
    job: dict[str, Any] = {"precision": rng.choice(("bf16-mixed", "bf16", "fp16-mixed"))}
    return Shape(job, strategy, _length(rng, model))


def _spread(rng: random.Random, model: ModelSpec) -> Shape:
    zero = rng.choice((0, 2, 3, 3))
    recompute = rng.choice(("none", "full", f"full:{rng.randint(1, max(1, model.num_layers - 1))}"))
    strategy: dict[str, Any] = {
        "micro_batch": rng.choice((1, 2)),
        "activation_checkpointing": recompute,
        "loss_chunks": 1,
        "zero": zero,
        **({"dp_shard": 8} if zero else {"dp_replicate": 8}),
    }
    job: dict[str, Any] = {"precision": rng.choice(("bf16", "bf16-mixed"))}
    if rng.random() < 0.3:  # noqa: PLR2004 - a share
        job["method"], job["adapter"] = "lora", _ADAPTER
    return Shape(job, strategy, _length(rng, model))


_ADAPTER = Adapter(
    rank=16, alpha=32.0, targets=("all-linear",), trained_modules=(), dtype="same", base="same",
    upcast="none", input_requires_grad=False,
)  # fmt: skip


def _case(model: ModelSpec, shape: Shape) -> Case:
    """Return what is asked; where a class is told of its windows by nobody, within these."""
    try:
        return _case_of(model, shape)
    except UnknownMemoryError:
        from transformers import CONFIG_MAPPING

        from brimful.build.attention.windows import window_of

        config = CONFIG_MAPPING[model.model_type](**model.hf_config)
        window = window_of(config, shape.seq_len)
        if window is None:
            raise
        return _case_of(model, shape._replace(seq_len=window))


def _case_of(model: ModelSpec, shape: Shape) -> Case:
    task = default_task(model)
    strategy = Strategy(attention="sdpa", **shape.strategy)
    if task != "causal-lm":
        strategy = msgspec.structs.replace(strategy, loss_chunks=1)
    job = plain_job(
        model,
        task=task,
        packing="wrapped" if task == "causal-lm" else "none",
        seq_len=shape.seq_len,
        global_batch=2 * strategy.micro_batch * world_size(strategy),
        num_steps=2,
        **shape.job,
    )
    strategy = _runnable(job, strategy)
    if strategy.attention == "eager" and strategy.zero in {2, 3} and job.precision != _WIDE:
        job = msgspec.structs.replace(job, precision="bf16")
    return Case(job=job, strategy=strategy, kernels="cuda")


def _runnable(job: Job, strategy: Strategy) -> Strategy:
    """Return what a plan would take: the fused kernel, or what refusals name instead.

    Some classes attend by themselves; others recompute nothing, or all or nothing.

    Raises:
        BrimfulError: Nothing that is named runs.
    """
    from brimful.build.assemble import build_skeleton

    taken = attentions_of(job)
    usual: Attention = "sdpa" if "sdpa" in taken else taken[0]
    asked = msgspec.structs.replace(strategy, attention=usual)
    for _ in _NAMED:
        try:
            build_skeleton(job, asked)
        except UnsupportedError as error:
            instead = {f: value for f, value in error.nearest.items() if f in _NAMED}
            if not instead:
                raise
            asked = msgspec.structs.replace(asked, **instead)
    return asked


def traced(case: Case) -> str:
    """Trace what a case needs; say why it is not predicted, if it is not."""
    from brimful.simulate.on_demand import trace_needs

    job, strategy, cluster = case.job, case.strategy, cluster_for(case)
    if is_traceable(job, strategy, cluster.device):
        kernels = kernels_of(cluster.device)
        needs = needed(job, strategy)
        asked = traced_job(job, strategy)
        trace_needs(asked, strategy.attention, kernels, needs, watch=lambda _state: None)
    return missing_formula(job, strategy, cluster.device)


def compared(case: Case, words: str) -> ComparedPeaks:
    """Compare what formulas say of a case with its simulation."""
    from brimful.simulate.run import simulate_recorded

    cluster = cluster_for(case)
    predicted = estimate(case.job, cluster, case.strategy).predicted_peak_allocated_bytes
    candidate = candidate_of(case.job, cluster, case.strategy)
    simulated = simulate_recorded(case.job, cluster, case.strategy)
    live = simulated.simulation.simulated_peak_allocated_bytes
    told = simulated.simulation.reserved
    assert told is not None, "a card that is there"
    held = told.simulated_unhindered_bytes
    reserved = max(map(_reserved, candidate.requests)) if candidate is not None else None
    return ComparedPeaks(
        words=words,
        predicted_peak_allocated_bytes=predicted,
        simulated_peak_allocated_bytes=live,
        peak_error=relative(predicted, live),
        reserved_error=relative(reserved, held) if reserved is not None else None,
    )


def _reserved(requests: Requests) -> int:
    settings = parse_settings("")
    return replay(requests, settings=settings, capacity_bytes=None).peak_reserved_bytes


def _words(case: Case) -> str:
    job, strategy = case.job, case.strategy
    return (
        f"{job.method} {job.precision} {strategy.micro_batch}x{job.seq_len} "
        f"{strategy.activation_checkpointing} chunks={strategy.loss_chunks} zero={strategy.zero} "
        f"on {world_size(strategy)}"
    )


def summarize(rows: list[ArchitectureRow]) -> Summary:
    """Sum up: how many are predicted, how far off, and what hinders the others."""
    builds = [row for row in rows if not row.cause.startswith(_NOT_BUILT)]
    told = [row for row in builds if not row.cause]
    peaks = [peak for row in told for peak in row.peaks]
    causes = Counter(row.cause for row in builds if row.cause)
    missed = [
        f"{row.model_type}: {peak.peak_error:+.2%} of {peak.words}"
        for row in told
        for peak in row.peaks
        if _misses(peak)
    ]
    if len(told) < PREDICTED_BAR * len(builds):
        missed.insert(0, f"{len(told)} of {len(builds)} are predicted after one trace")
    errors = {
        "live": [peak.peak_error for peak in peaks],
        "reserved": [p.reserved_error for p in peaks if p.reserved_error is not None],
    }
    return Summary(
        num_drawn=len(rows),
        refusals=(),
        num_cases=len(rows),
        num_rich=0,
        spreads=tuple(spread_of(of, each) for of, each in errors.items() if each),
        bars=(
            f"{PREDICTED_BAR:.0%} of those that build are predicted after one trace",
            f"live peak within {PEAK_BAR:.1%} of the simulation's",
        ),
        missed=tuple(missed),
        findings=(
            f"{len(builds)} of {len(rows)} types build, {len(told)} are predicted",
            *(f"{num} times: {cause}" for cause, num in causes.most_common()),
            *(f"not drawn of {row.model_type}: {why}" for row in rows for why in row.left_out),
        ),
    )


def _misses(peak: ComparedPeaks) -> bool:
    return abs(peak.peak_error) > PEAK_BAR
