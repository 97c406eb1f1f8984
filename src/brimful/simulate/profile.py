"""Tracing a profile: small models on the pretend GPU, cut into runs, fitted into formulas.

Six blocks are enough to see every role: the first checkpointed block, one between, the last, and
the same for plain ones. The same program at several shapes gives the same sequence of events with
other sizes; event by event the sizes are fitted (``fit.py``).
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib import resources
from itertools import product
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from brimful.cost.profiles import (
    EVALUATED,
    NUM_CHUNKS,
    PROFILE_SCHEMA,
    TWO_CHUNKS,
    Body,
    Mark,
    Profile,
    Variant,
    dimensions,
    variant_key,
)
from brimful.cost.programs import (
    ADAPTED,
    HALF,
    TRACED_ATTENTIONS,
    TRACED_PRECISIONS,
    Kernels,
    Program,
    Tuning,
    is_written_out,
)
from brimful.errors import UnsupportedError, unknown_name
from brimful.job import QUANTIZED, Adapter, Base, Job, Method, Precision, plain_job
from brimful.models.kernels import OWN_SCORES
from brimful.pretend.kernel_memory import BLAS, BLAS_LT
from brimful.pretend.recording import Recording
from brimful.routing import Routing
from brimful.rungs import WORKSPACES
from brimful.simulate.phases import Continuation, judged
from brimful.simulate.run import DEFAULT_CAPABILITY, trace
from brimful.simulate.runs import EVALUATION, GROUP_SIZE, RunFitter, Tables
from brimful.simulate.small_models import (
    SHAPES,
    Sizes,
    degree,
    parting,
    share_received,
    small_model,
)
from brimful.simulate.two_chunks import told_apart
from brimful.strategy import Recompute, Strategy, spell_checkpointing
from brimful.versions import versions

ARCHITECTURES = (
    "llama", "llama-tied", "llama-mha", "llama-tied-mha", "gpt2-tied", "qwen3", "qwen3-tied",
    "phi3", "olmo2", "gpt2-gelu-tied", "mixtral", "qwen3_moe",
    "gemma2-tied",
    "llama-tp", "llama-tied-tp", "llama-mha-tp", "llama-tied-mha-tp", "qwen3-tp", "qwen3-tied-tp",
    "mixtral-ep", "qwen3_moe-ep",
)  # fmt: skip
PUBLISHED = ("gpt2-gelu-tied",)
"""Architectures of published runs, shipped for what was published: everything trained in bf16 or
bf16-mixed, with fused attention, on CUDA."""
BEFORE_AMPERE = (
    "llama", "llama-tied", "llama-mha", "qwen3", "qwen3-tied", "gpt2-tied",
    "llama-tp", "llama-mha-tp",
)  # fmt: skip
"""Architectures whose profiles of older cards are shipped: everything trained, or adapters."""
ON_CPU = ("llama", "gpt2")
"""Whose profiles of CPU kernels are shipped: those of the demonstration and of the evidence."""
WITH_ADAPTERS = ("llama", "gpt2", "qwen3", "phi3", "mixtral", "qwen3_moe", "gemma2")
"""Whose profiles with adapters are shipped."""
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
}
"""With which recipes each tuning is shipped."""
_UNTIED, _ANY_LLAMA = ("llama",), ("llama", "llama-tied")
_ALSO_MIXTRAL = (*_ANY_LLAMA, "mixtral")
NARROW: dict[Tuning, tuple[str, ...]] = {
    "lora-fp32": _UNTIED,
    "lora-fp32-qkvo": _ALSO_MIXTRAL,
    "lora-qkvo": _UNTIED,
    "lora-qv": _UNTIED,
    "lora-half-qkvo": _ANY_LLAMA,
    "lora-half-qv": _UNTIED,
    "nf4-double-qkvo": _ALSO_MIXTRAL,
    "nf4-double-qkvo-norms": _ALSO_MIXTRAL,
    "nf4-double-qv": _UNTIED,
}
"""Tunings of published runs, shipped for what was published: these blocks, recomputed in full."""
FITTED_BUFFERS = (
    "gradient times output",
    "contiguous copy of the input",
    "contiguous copy of the gradient",
    "softmax before masked rows are zeroed",
    "mask of minus infinity",
    "softmax_d, fp32 row sums",
    "dq_accum, fp32",
    "dk of every query head",
    "dv of every query head",
    "contiguous copy of the gradient of the output",
    "contiguous copy of the output",
)
"""Workspaces that have formulas, by the names that the table of workspaces gives them."""
TURING = 7.5
AS_FP16: dict[Precision, Precision] = {"bf16": "fp16", "bf16-mixed": "fp16-mixed"}
_ROWS_ADDED = "aten.embedding_dense_backward.default"
_CHUNKS = (1, TWO_CHUNKS, NUM_CHUNKS)
CUT_IN_HALF = ("qwen3",)
"""Architectures whose cut programs are shipped for recipes that compute in 16 bits."""
_CUT, _PARTED = "-tp", "-ep"
"""Of architectures whose every matrix is cut, or whose experts are parted among devices: everything
trained, by CUDA kernels."""


def source_hash() -> str:
    """Hash the sources that decide what a trace looks like."""
    digest = hashlib.sha256()
    for package in ("build", "pretend", "simulate"):
        folder = resources.files("brimful").joinpath(package)
        for file in sorted(Path(str(folder)).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


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
    tunings, recomputes = get_args(Tuning), get_args(Recompute)
    every = product(
        ARCHITECTURES, tunings, TRACED_PRECISIONS, TRACED_ATTENTIONS, get_args(Kernels), recomputes
    )
    return tuple(program for program in map(Program._make, every) if _is_wanted(program))


def _is_wanted(program: Program) -> bool:
    written_out = is_written_out(program.precision, program.attention, program.kernels)
    is_special = program.tuning != "" or program.recompute == "selective"
    code = program.architecture.partition("-")[0]
    is_plain = program.attention == ("eager" if code in OWN_SCORES else "sdpa")
    on_cuda, is_old = program.kernels != "cpu", program.kernels == "cuda7"
    wanted = (
        program.architecture not in PUBLISHED or _is_published(program),
        "mha" not in program.architecture or (written_out and (is_old or not is_special)),
        not is_old or _is_older(program),
        on_cuda or code in ON_CPU,
        is_plain or not (is_special or code in OWN_SCORES),
        not program.tuning or (on_cuda and code in WITH_ADAPTERS),
        program.precision in TUNED_PRECISIONS[program.tuning],
        program.architecture in NARROW.get(program.tuning, (program.architecture,)),
        program.tuning not in NARROW or program.recompute == "full",
        not is_cut(program) or (on_cuda and is_plain and not program.tuning),
        not is_cut(program) or code not in CUT_IN_HALF or program.precision != "fp32",
        not is_parted(program) or (on_cuda and is_plain and not program.tuning),
        not is_parted(program) or program.precision not in HALF,  # they are gathered in 16 bits
    )
    return all(wanted)


def is_cut(program: Program) -> bool:
    """Whether it is the program of one of several devices that share every matrix."""
    return program.architecture.endswith(_CUT)


def is_parted(program: Program) -> bool:
    """Whether it is the program of one of several devices that part the experts among them."""
    return program.architecture.endswith(_PARTED)


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

    Raises:
        InputError: It is not a key of a profile that is shipped.
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

    Args:
        key: See ``cost.programs.Program.key``.
        on_progress: Called with the share that is done.

    Returns:
        The profile.

    Raises:
        UnsupportedError: The traces at two shapes are not the same program, or a size is no
            product of dimensions.
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
    return told_apart(traced)


def _eval_variants(
    program: Program, tables: Tables, on_progress: Callable[[float], None]
) -> dict[str, Variant]:
    """Trace forward passes without gradients, where checkpointing makes no difference."""
    judge, variants = partial(judged, num_batches=1), dict[str, Variant]()
    for num_chunks in _CHUNKS:
        asked = _Asked(program, num_blocks=GROUP_SIZE, num_checkpointed=0, num_chunks=num_chunks)
        fitter = _fitter(asked, tables, num_steps=0, then=(judge,))
        try:
            runs = fitter.runs(EVALUATION, micro_batch=0)
        except ValueError as error:
            raise UnsupportedError(f"{program.key} (eval) cannot be profiled: {error}") from error
        variants[variant_key("plain", num_chunks=num_chunks)] = Variant(first=runs, later=runs)
        on_progress(len(variants) / len(_CHUNKS))
    return variants


def _make_variant(program: Program, body: Body, *, num_chunks: int, tables: Tables) -> Variant:
    num_blocks = (1 + (body == "mixed")) * GROUP_SIZE
    num_checkpointed = 0 if body == "plain" else GROUP_SIZE
    fitter = _fitter(_Asked(program, num_blocks, num_checkpointed, num_chunks), tables, num_steps=1)
    try:
        return Variant(first=fitter.runs(micro_batch=0), later=fitter.runs(micro_batch=1))
    except ValueError as error:
        raise UnsupportedError(f"{program.key} ({body}) cannot be profiled: {error}") from error


class _Asked(NamedTuple):
    """What is traced at every shape."""

    program: Program
    num_blocks: int
    num_checkpointed: int
    num_chunks: int


def _fitter(
    asked: _Asked, tables: Tables, *, num_steps: int, then: Sequence[Continuation] = ()
) -> RunFitter:
    """Trace a program at every shape; see ``trace``."""
    program, num_chunks = asked.program, asked.num_chunks
    recordings, shapes = [], []
    for sizes in _shapes(program):
        job = _job(program, sizes, num_layers=asked.num_blocks)
        tp, ep = (f(program.architecture, sizes) for f in (degree, parting))
        strategy = Strategy(
            micro_batch=sizes.micro_batch,
            activation_checkpointing=spell_checkpointing(
                asked.num_checkpointed, num_layers=asked.num_blocks, recompute=program.recompute
            ),
            loss_chunks=num_chunks,
            attention=program.attention,
            tp=tp,
        )
        traced = trace(
            job, strategy, imitate="cpu" if program.kernels == "cpu" else "cuda",
            capability=TURING if program.kernels == "cuda7" else DEFAULT_CAPABILITY,
            count_costs=True, num_steps=num_steps, then=then,
            routing=Routing(share_received(sizes)), parted=ep,
        )  # fmt: skip
        recordings.append(traced.recording)
        chunk_tokens = sizes.micro_batch * sizes.seq_len // num_chunks
        own = dimensions(
            job, micro_batch=sizes.micro_batch, chunk_tokens=chunk_tokens, tp=tp, ep=ep
        )
        shapes.append(own._replace(r=round(own.r * share_received(sizes))))
    kept = [_with_formulas(recording) for recording in recordings]
    marks = _marks(recordings[0])
    return RunFitter(kept, tuple(shapes), tables, asked.num_checkpointed, marks)


def _with_formulas(recording: Recording) -> Recording:
    """Leave out workspaces that have no formula: all but those of flash attention and softmax.

    Theirs hang on the card's multiprocessors, on tiles and thresholds, and are small beside what
    is alive then; cuBLAS's, which stays, is closed form (``cost.memory``).
    """
    return recording.without(_is_left_out(recording))


def _is_left_out(recording: Recording) -> NDArray[np.bool_]:
    """Tell which rows are workspaces without a formula: [rows]."""
    kept = np.array([name in FITTED_BUFFERS for name in recording.ops], dtype=bool)
    workspace = np.array([item == WORKSPACES for item in recording.items], dtype=bool)
    left_out: NDArray[np.bool_] = workspace[recording.item] & ~kept[recording.op]
    return left_out


_MARKS: dict[str, Mark] = {BLAS: "cuBLAS", BLAS_LT: "cuBLASLt", _ROWS_ADDED: "embedding"}


def _marks(recording: Recording) -> dict[int, list[Mark]]:
    """Return what is asked for behind how many of the events that stay, by operation."""
    left_out = _is_left_out(recording)
    row = np.where(recording.events >= 0, recording.events, ~recording.events)
    stays = np.cumsum(~left_out[row])
    born = {name: recording.born[recording.op == op] for op, name in enumerate(recording.ops)}
    found: dict[int, list[Mark]] = {}
    for name, mark in _MARKS.items():
        for event in born.get(name, ()):
            found.setdefault(int(stays[event]), []).append(mark)
    return found


def _job(program: Program, sizes: Sizes, *, num_layers: int) -> Job:
    method: Method = "full"
    if program.tuning:
        method = "qlora" if ADAPTED[program.tuning].base in QUANTIZED else "lora"
    return plain_job(
        small_model(program.architecture, sizes, num_layers=num_layers),
        method=method,
        adapter=_adapter(program.tuning, sizes.rank) if program.tuning else None,
        precision=_recipe(program),
        seq_len=sizes.seq_len,
        global_batch=2 * sizes.micro_batch,
        num_steps=2,
        learning_rate=1e-3,
    )


def _recipe(program: Program) -> Precision:
    """Return the recipe to trace: before Ampere the kernel of ungrouped heads takes fp16 only."""
    return AS_FP16[program.precision] if program.kernels == "cuda7" else program.precision


def _shapes(program: Program) -> tuple[Sizes, ...]:
    """Three shapes tell products apart; a fourth is a check, on the basic programs."""
    is_special = program.tuning != "" or is_cut(program) or is_parted(program)
    is_basic = not is_special and program.recompute == "full"
    return SHAPES if is_basic else SHAPES[:3]


_BASES: dict[str, Base] = {"same": "same", "half": "bf16", "nf4-double": "nf4-double"}


def _adapter(tuning: Tuning, rank: int) -> Adapter:
    adapted = ADAPTED[tuning]
    return Adapter(
        rank=rank,
        alpha=2.0 * rank,
        targets=adapted.targets,
        trained_modules=(),
        dtype="fp32" if adapted.is_wide else "same",
        base=_BASES[adapted.base],
        upcast=adapted.upcast,
        input_requires_grad=False,
    )
