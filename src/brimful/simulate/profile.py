"""Tracing a profile: small models on the pretend GPU, cut into runs, fitted into formulas.

Six blocks are enough to see every role: the first checkpointed block, one between, the last, and
the same for plain ones. The same program at several shapes gives the same sequence of events with
other sizes; event by event the sizes are fitted (``fit.py``).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib import resources
from itertools import product, starmap
from pathlib import Path
from typing import get_args

from brimful.cost.own_programs import SHIPPED_AGAIN
from brimful.cost.profiles import (
    EVALUATED,
    NUM_CHUNKS,
    PROFILE_SCHEMA,
    TWO_CHUNKS,
    Body,
    Dimensions,
    Profile,
    Term,
    Variant,
    variant_key,
)
from brimful.cost.programs import (
    HALF,
    SHIPPED_KERNELS,
    TRACED_ATTENTIONS,
    TRACED_PRECISIONS,
    Program,
    Tuning,
    is_written_out,
)
from brimful.errors import UnsupportedError, unknown_name
from brimful.files.traced import source_hash
from brimful.models import architectures as records
from brimful.models.architecture import Shipped
from brimful.models.kernels import OWN_SCORES
from brimful.process.versions import versions
from brimful.simulate.fit import fit_size
from brimful.simulate.one_sequence import with_one_sequence
from brimful.simulate.phases import Continuation, judged
from brimful.simulate.runs import EVALUATION, GROUP_SIZE, STEP, Blocks, RunFitter
from brimful.simulate.tables import Tables
from brimful.simulate.traced import Asked, is_cut, is_parted, shapes_of, traced_at
from brimful.simulate.two_chunks import told_apart
from brimful.values.job import Precision


def _named(chosen: Callable[[Shipped], tuple[str, ...]]) -> tuple[str, ...]:
    """Name what ships as profiles call it, such as ``llama-tied-tp``."""
    return tuple(
        f"{kind}-{flags}" if flags else kind
        for kind, record in records.ARCHITECTURES.items()
        for flags in chosen(record.shipped)
    )


ARCHITECTURES = _named(lambda shipped: shipped.variants)
PUBLISHED = _named(lambda shipped: shipped.published)
BEFORE_AMPERE = _named(lambda shipped: shipped.before_ampere)
TUNED_PRECISIONS: dict[Tuning, tuple[Precision, ...]] = {
    "": TRACED_PRECISIONS,
    "lora": ("bf16", "bf16-mixed"),
    "lora-half": ("bf16-mixed",),
    "nf4-double": ("bf16", "bf16-mixed"),
    "lora-fp32": ("bf16",),
    "lora-fp32-qkvo": ("bf16",),
    "lora-qkvo": ("bf16",),
    "lora-qv": ("bf16",),
    "lora-half-qkvo": ("bf16-mixed",),
    "lora-half-qv": ("bf16-mixed",),
    "nf4-double-qkvo": ("bf16", "bf16-mixed"),
    "nf4-double-qkvo-norms": ("bf16-mixed",),
    "nf4-double-qv": ("bf16", "bf16-mixed"),
    "lora-but-o": ("bf16",),
    "nf4-double-but-o": ("bf16",),
}
"""With which recipes each tuning is shipped."""
NARROW: dict[Tuning, tuple[str, ...]] = {
    tuning: named
    for tuning in get_args(Tuning)
    if (named := _named(lambda shipped, tuning=tuning: shipped.tunings.get(tuning, ())))  # type: ignore[misc]
}
"""Tunings of published runs, shipped for what was published: these blocks, recomputed in full."""
_CHUNKS = (1, TWO_CHUNKS, NUM_CHUNKS)


def data_folder(key: str = "") -> Path:
    """Return the folder of the shipped profiles, or of one without gradients."""
    folder = "eval_profiles" if key.endswith(EVALUATED) else "profiles"
    return Path(str(resources.files("brimful").joinpath(f"data/{folder}")))


@cache
def shipped_programs() -> tuple[Program, ...]:
    """List every program whose profile is shipped.

    Adapters and selective checkpointing come with ``sdpa`` and grouped heads, adapters on CUDA;
    whether heads are grouped matters to written-out attention only.
    """
    tunings = get_args(Tuning)
    every = product(
        ARCHITECTURES, tunings, TRACED_PRECISIONS, TRACED_ATTENTIONS, SHIPPED_KERNELS, SHIPPED_AGAIN
    )
    return tuple(program for program in starmap(Program, every) if _is_wanted(program))


def _is_wanted(program: Program) -> bool:
    written_out = is_written_out(program.precision, program.attention, program.kernels)
    is_special = program.tuning != "" or program.recompute == "selective"
    code = program.architecture.partition("-")[0]
    shipped = records.ARCHITECTURES[code].shipped
    is_plain = program.attention == ("eager" if code in OWN_SCORES else "sdpa")
    on_cuda, is_old = program.kernels != "cpu", program.kernels == "cuda7"
    wanted = (
        program.architecture not in PUBLISHED or _is_published(program),
        "mha" not in program.architecture or (written_out and (is_old or not is_special)),
        not is_old or _is_older(program),
        on_cuda or shipped.on_cpu,
        is_plain or not (is_special or code in OWN_SCORES),
        not program.tuning or (on_cuda and shipped.adapters),
        program.precision in TUNED_PRECISIONS[program.tuning],
        program.architecture in NARROW.get(program.tuning, (program.architecture,)),
        program.tuning not in NARROW or program.recompute == "full",
        not is_cut(program) or (on_cuda and is_plain and not program.tuning),
        not is_cut(program) or not shipped.cuts_half or program.precision != "fp32",
        "narrow" not in program.architecture or (on_cuda and is_plain and not program.tuning),
        "narrow" not in program.architecture or program.precision == "bf16",
        not is_parted(program) or (on_cuda and is_plain),
        not is_parted(program) or program.precision not in HALF,  # they are gathered in 16 bits
    )
    return all(wanted)


def _is_older(program: Program) -> bool:
    is_fused = program.attention == "sdpa" and program.precision != "fp32"
    return is_fused and program.architecture in BEFORE_AMPERE and program.tuning not in NARROW


def _is_published(program: Program) -> bool:
    in_half = program.precision in {"bf16", "bf16-mixed"}
    how = (program.tuning, program.attention, program.kernels)
    return in_half and how == ("", "sdpa", "cuda")


def shipped_keys() -> tuple[str, ...]:
    """List the keys of every profile that is shipped."""
    return tuple(program.key for program in shipped_programs())


def shipped_eval_keys() -> tuple[str, ...]:
    """List the keys of the profiles without gradients: there nothing is recomputed."""
    return tuple(f"{program.key}{EVALUATED}" for program in _judged_programs())


def _judged_programs() -> Iterator[Program]:
    programs = (program for program in shipped_programs() if program.recompute == "full")
    return (program for program in programs if not (is_cut(program) or is_parted(program)))


def program_named(key: str) -> Program:
    """Find the program of a key.

    Raises InputError: it is not a key of a profile that is shipped.
    """
    named = _programs_by_key()
    if key not in named:
        raise unknown_name("profile", key, named)
    return named[key]


@cache
def _programs_by_key() -> dict[str, Program]:
    named = {program.key: program for program in shipped_programs()}
    return named | {f"{program.key}{EVALUATED}": program for program in _judged_programs()}


def make_profile(key: str, *, on_progress: Callable[[float], None]) -> Profile:
    """Trace and fit every variant of a key.

    ``key``: see ``cost.programs.Program.key``. Raises UnsupportedError: the traces at two shapes
    are not the same program, or a size is no product of dimensions.
    """
    program, tables = program_named(key), Tables()
    if key.endswith(EVALUATED):
        return _profile(key, tables, _eval_variants(program, tables, on_progress))
    bodies: tuple[Body, ...] = ("checkpointed", "mixed")
    if program.recompute == "full":
        bodies = ("plain", *bodies)
    variants: dict[str, Variant] = {}
    for body in bodies:
        for num_chunks in _CHUNKS:
            variants[variant_key(body, num_chunks=num_chunks)] = _make_variant(
                program, body, num_chunks=num_chunks, tables=tables
            )
            on_progress(len(variants) / (len(_CHUNKS) * len(bodies)))
    return _profile(key, tables, variants)


def _profile(key: str, tables: Tables, variants: dict[str, Variant]) -> Profile:
    traced = Profile(
        schema=PROFILE_SCHEMA,
        key=key,
        versions=versions(),
        source_hash=source_hash(),
        kinds=tuple(tables.kinds),
        works=tuple(tables.works),
        variants=variants,
    )
    program, told = program_named(key), told_apart(traced)
    is_apart = is_written_out(program.precision, program.attention, program.kernels)
    return with_one_sequence(told, program) if is_apart else told


def _eval_variants(
    program: Program, tables: Tables, on_progress: Callable[[float], None]
) -> dict[str, Variant]:
    """Trace forward passes without gradients, where checkpointing makes no difference."""
    judge, variants = partial(judged, num_batches=1), dict[str, Variant]()
    for num_chunks in _CHUNKS:
        asked = Asked(program, num_blocks=GROUP_SIZE, num_checkpointed=0, num_chunks=num_chunks)
        fitter = _fitter(asked, tables, num_steps=0, then=(judge,))
        try:
            runs = fitter.runs([EVALUATION] * len(shapes_of(program)), micro_batch=0)
        except ValueError as error:
            raise UnsupportedError(f"{program.key} (eval) cannot be profiled: {error}") from error
        variants[variant_key("plain", num_chunks=num_chunks)] = Variant(first=runs, later=runs)
        on_progress(len(variants) / len(_CHUNKS))
    return variants


def _make_variant(program: Program, body: Body, *, num_chunks: int, tables: Tables) -> Variant:
    num_blocks = (1 + (body == "mixed")) * GROUP_SIZE
    num_checkpointed = 0 if body == "plain" else GROUP_SIZE
    fitter = _fitter(Asked(program, num_blocks, num_checkpointed, num_chunks), tables, num_steps=1)
    parts = [STEP] * len(shapes_of(program))
    try:
        return Variant(
            first=fitter.runs(parts, micro_batch=0), later=fitter.runs(parts, micro_batch=1)
        )
    except ValueError as error:
        raise UnsupportedError(f"{program.key} ({body}) cannot be profiled: {error}") from error


def _fitter(
    asked: Asked, tables: Tables, *, num_steps: int, then: Sequence[Continuation] = ()
) -> RunFitter:
    """Trace a program at every shape; see ``trace``."""
    traced = traced_at(asked, shapes_of(asked.program), num_steps=num_steps, then=then)
    fit = partial(_fitted, traced.shapes)
    blocks = Blocks(asked.num_checkpointed)
    return RunFitter(traced.recordings, fit, tables, blocks, traced.marks)


def _fitted(shapes: tuple[Dimensions, ...], sizes: tuple[int, ...]) -> tuple[Term, ...]:
    return fit_size(sizes, shapes)
