"""Tracing a program at small sizes: what is run, and what of a recording a profile keeps."""

import re
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from brimful.cost.profiles import Dimensions, Mark, dimensions
from brimful.cost.programs import ADAPTED, Program, Tuning
from brimful.models.small_sizes import SmallSizes
from brimful.pretend.kernel_memory import BLAS, BLAS_LT
from brimful.pretend.reading import FITTED_BUFFERS, OF_TOKENS
from brimful.pretend.recording import Recording
from brimful.simulate.phases import Continuation
from brimful.simulate.run import DEFAULT_CAPABILITY, trace
from brimful.simulate.small_models import SHAPES, degree, parting, share_received, small_model
from brimful.techniques.parallel.routing import Routing
from brimful.values.job import QUANTIZED, Adapter, Base, Job, Method, Precision, plain_job
from brimful.values.results import WORKSPACES
from brimful.values.strategy import Strategy, spell_checkpointing

TURING = 7.5
AS_FP16: dict[Precision, Precision] = {"bf16": "fp16", "bf16-mixed": "fp16-mixed"}
_ROWS_ADDED = "aten.embedding_dense_backward.default"
_CUT, _PARTED = "-tp", "-ep"
"""Of architectures whose every matrix is cut, or whose experts are parted among devices: everything
trained, by CUDA kernels."""


def is_cut(program: Program) -> bool:
    """Whether it is the program of one of several devices that share every matrix."""
    return program.architecture.endswith(_CUT)


def is_parted(program: Program) -> bool:
    """Whether it is the program of one of several devices that part the experts among them."""
    return program.architecture.endswith(_PARTED)


class Asked(NamedTuple):
    """What is traced at every shape."""

    program: Program
    num_blocks: int
    num_checkpointed: int
    num_chunks: int


class Traced(NamedTuple):
    """A program at several shapes.

    Attributes:
        recordings: Without workspaces that have no formula.
        shapes: Dimensions of each.
        marks: As for ``EventFitter``.
    """

    recordings: list[Recording]
    shapes: tuple[Dimensions, ...]
    marks: dict[int, list[Mark]]


def traced_at(
    asked: Asked, every: Sequence[SmallSizes], *, num_steps: int, then: Sequence[Continuation] = ()
) -> Traced:
    """Trace a program at some sizes; see ``trace``."""
    program, num_chunks = asked.program, asked.num_chunks
    recordings, shapes = [], []
    for sizes in every:
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
            narrowed_from="bf16-mixed" if "narrow" in program.architecture.split("-") else None,
        )  # fmt: skip
        recordings.append(traced.recording)
        chunk_tokens = sizes.micro_batch * sizes.seq_len // num_chunks
        own = dimensions(
            job, micro_batch=sizes.micro_batch, chunk_tokens=chunk_tokens, tp=tp, ep=ep
        )
        shapes.append(own._replace(r=round(own.r * share_received(sizes))))
    kept = [with_formulas(recording) for recording in recordings]
    return Traced(kept, tuple(shapes), marks_of(recordings[0]))


def with_formulas(recording: Recording, fitted: Collection[str] = FITTED_BUFFERS) -> Recording:
    """Leave out workspaces that have no formula: all but those of attention and softmax.

    Theirs hang on the card's multiprocessors, on tiles and thresholds, and are small beside what
    is alive then; cuBLAS's, which stays, is closed form (``cost.memory``).
    """
    return recording.without(_is_left_out(recording, fitted))


def fitted_of(recording: Recording, num_tokens: Mapping[str, int]) -> tuple[str, ...]:
    """Return the workspaces that have formulas at widths of one's own, which are numbers there.

    ``num_tokens``: tokens of a micro-batch, by the phases in which they run.
    """
    found = list(FITTED_BUFFERS)
    for buffer in set(OF_TOKENS).intersection(recording.ops):
        each: dict[str, set[Fraction]] = {}
        for row in np.flatnonzero(recording.op == recording.ops.index(buffer)):
            phase = recording.phases[recording.phase[row]]
            share = Fraction(int(recording.num_bytes[row]), num_tokens.get(phase, 1))
            each.setdefault(phase, set()).add(share)
        is_alike = all(shares == next(iter(each.values())) for shares in each.values())
        if is_alike and each.keys() <= num_tokens.keys():
            found.append(buffer)
    return tuple(found)


def _is_left_out(recording: Recording, fitted: Collection[str]) -> NDArray[np.bool_]:
    """Tell which rows are workspaces without a formula: [rows]."""
    kept = np.array([name in fitted for name in recording.ops], dtype=bool)
    workspace = np.array([item == WORKSPACES for item in recording.items], dtype=bool)
    left_out: NDArray[np.bool_] = workspace[recording.item] & ~kept[recording.op]
    return left_out


_CONVOLUTION, _VECTOR = "aten.convolution_backward.default", re.compile(r"\W*\d+\W*")
_NORMS = ("aten.native_layer_norm_backward.default", "aten._fused_rms_norm_backward.default")
_MARKS: dict[str, Mark] = {BLAS: "cuBLAS", BLAS_LT: "cuBLASLt", _ROWS_ADDED: "embedding"}


def marks_of(
    recording: Recording, fitted: Collection[str] = FITTED_BUFFERS
) -> dict[int, list[Mark]]:
    """Return what is asked for behind how many of the events that stay, by operation."""
    left_out = _is_left_out(recording, fitted)
    row = np.where(recording.events >= 0, recording.events, ~recording.events)
    stays = np.cumsum(~left_out[row])
    born = {name: recording.born[recording.op == op] for op, name in enumerate(recording.ops)}
    found: dict[int, list[Mark]] = {}
    for name, mark in _MARKS.items():
        for event in born.get(name, ()):
            found.setdefault(int(stays[event]), []).append(mark)
    for event in _vectors_of(recording, {_CONVOLUTION}):
        found.setdefault(int(stays[event]), []).append("convolution")
    for event in _vectors_of(recording, _NORMS, alone=True):
        found.setdefault(int(stays[event]), []).append("norm")
    return found


def _vectors_of(recording: Recording, names: Collection[str], *, alone: bool = False) -> list[int]:
    """List the events by which vectors come that are made by kernels of their own.

    ``names``: of the operations that make them beside other gradients. ``alone``: whether only
    those are asked for that no other vector of the call is beside: a norm's weight and bias tell
    themselves, as they are alike.
    """
    ops = np.array([name in names for name in recording.ops], dtype=bool)
    vectors = np.array([_VECTOR.fullmatch(shape) is not None for shape, _ in recording.shapes])
    if not ops.any():
        return []
    rows = np.flatnonzero(ops[recording.op])
    is_vector = vectors[recording.shape_dtype[rows]]
    if alone:
        beside = np.pad(is_vector, 1)
        is_vector = is_vector & ~(beside[:-2] | beside[2:])
    made: list[int] = recording.born[rows[is_vector]].tolist()
    return made


def _job(program: Program, sizes: SmallSizes, *, num_layers: int) -> Job:
    method: Method = "full"
    if program.tuning:
        method = "qlora" if ADAPTED[program.tuning].base in QUANTIZED else "lora"
    return plain_job(
        small_model(program.architecture, sizes, num_layers=num_layers),
        method=method,
        adapter=_adapter(program.tuning, sizes.rank) if program.tuning else None,
        precision=recipe_of(program),
        seq_len=sizes.seq_len,
        global_batch=2 * sizes.micro_batch,
        num_steps=2,
        learning_rate=1e-3,
    )


def recipe_of(program: Program) -> Precision:
    """Return the recipe to trace: before Ampere the kernel of ungrouped heads takes fp16 only."""
    return AS_FP16[program.precision] if program.kernels == "cuda7" else program.precision


def shapes_of(program: Program) -> tuple[SmallSizes, ...]:
    """Three shapes tell products apart; a fourth is a check, on the basic programs."""
    is_special = program.tuning != "" or is_cut(program) or is_parted(program)
    is_basic = not is_special and program.recompute == "full"
    return SHAPES if is_basic else SHAPES[:3]


BASES: dict[str, Base] = {
    "same": "same",
    "half": "bf16",
    "nf4": "nf4",
    "nf4-double": "nf4-double",
}


def _adapter(tuning: Tuning, rank: int) -> Adapter:
    adapted = ADAPTED[tuning]
    return Adapter(
        rank=rank,
        alpha=2.0 * rank,
        targets=adapted.targets,
        trained_modules=(),
        dtype="fp32" if adapted.is_wide else "same",
        base=BASES[adapted.base],
        upcast=adapted.upcast,
        input_requires_grad=False,
    )
