"""What breaks first: the peak over one setting at a time, every other as it is asked.

Live tensors by arithmetic, which is what tens of points can be asked of; each point is a question
of its own, so that taking it is following its link.
"""

from typing import TYPE_CHECKING, Literal, NamedTuple

from brimful.cli import inference, resolved
from brimful.cli.main import parse
from brimful.errors import BrimfulError, InputError, UnsupportedError, unknown_name
from brimful.hardware.cluster import Cluster
from brimful.hardware.names import split_counts
from brimful.text.escaping import one_line
from brimful.text.terminal import forget_notes
from brimful.values.strategy import data_parallel, num_checkpointed
from brimful.web.models import find_model
from brimful.web.state import ADAPTERS, GPUS, INFERENCE, State, arguments

if TYPE_CHECKING:
    from brimful.cost.inference import InferenceJob

Axis = Literal[
    "seq_len", "micro_batch", "gpus", "lora_rank", "activation_checkpointing", "global_batch"
]
AXES: tuple[Axis, ...] = (
    "seq_len", "micro_batch", "gpus", "lora_rank", "activation_checkpointing", "global_batch",
)  # fmt: skip
OF_INFERENCE: tuple[Axis, ...] = ("seq_len", "global_batch", "gpus")
"""Of a model that writes text: its batch is the texts that are there at once."""
OF_TRAINING: tuple[Axis, ...] = AXES[:-1]
"""Of training: a batch beyond the micro-batch is accumulated, which takes no memory."""
MOST_POINTS = 9
_LEAST_LENGTH = 512
_MOST_BATCH = 64
_GPU_COUNTS = (1, 2, 4, 8, 16, 32, 64)
_PER_NODE = 8
_RANKS = (4, 8, 16, 32, 64, 128, 256)


class Point(NamedTuple):
    """One question of a sweep.

    Attributes:
        value: Where it stands on the axis.
        changes: Fields that differ from the question that was asked; of that itself none.
        peak_bytes: Live tensors at their peak; None: it is refused.
        limit_bytes: What tensors may take.
        refused: Why, in a sentence.
        is_here: Whether it is what was asked.
    """

    value: int
    changes: dict[str, str]
    peak_bytes: int | None
    limit_bytes: int
    refused: str
    is_here: bool


class Sweep(NamedTuple):
    """The points of one axis.

    Attributes:
        axis: What is changed.
        points: By value.
    """

    axis: Axis
    points: tuple[Point, ...]

    @property
    def falls(self) -> bool:
        """Whether more of it takes less memory."""
        return self.axis in {"gpus", "activation_checkpointing"}

    @property
    def breaks_at(self) -> int | None:
        """The first value that does not fit, in the direction in which memory grows."""
        known = [point for point in self.points if point.peak_bytes is not None]
        short = [point.value for point in known if (point.peak_bytes or 0) > point.limit_bytes]
        if not short:
            return None
        return max(short) if self.falls else min(short)


def sweep(state: State, axis: str) -> Sweep:
    """Ask a question over one axis.

    Raises BrimfulError: the question itself is refused, or has no such axis.
    """
    if axis not in AXES:
        raise unknown_name("axis", axis[:40], AXES)
    forget_notes()
    own = OF_INFERENCE if state.what == INFERENCE else OF_TRAINING
    if axis not in own:
        raise InputError(f"what={state.what} has no plot of {axis}; ask for {', '.join(own)}")
    model = find_model(state).argument
    here, values = _values(state, axis, model)
    points = tuple(
        _point(
            state, model, value, {} if value == here else _changes(state, axis, value, model),
            is_here=value == here,
        )
        for value in sorted({*values, *([] if here is None else [here])})
    )  # fmt: skip
    return Sweep(axis, points)


def _values(state: State, axis: Axis, model: str) -> tuple[int | None, list[int]]:
    """Return what is asked for, None where it is no number, and what is looked at beside it."""
    if state.what == INFERENCE:
        job, cluster = _of_inference(state, model)
        if axis == "seq_len":
            return _lengths(job.seq_len, job.model.max_seq_len)
        return _batches(job.num_sequences) if axis == "global_batch" else _counts(cluster)
    asked = _asked(state, model)
    if axis in ADAPTERS and asked.job.adapter is None:
        raise InputError(f"what={state.what} trains no adapter, so that no rank changes it")
    if axis == "seq_len":
        return _lengths(asked.job.seq_len, asked.job.model.max_seq_len)
    if axis == "micro_batch":
        return _batches(asked.strategy.micro_batch)
    if axis == "lora_rank":
        return (asked.job.adapter.rank if asked.job.adapter else 0), list(_RANKS)
    return _counts(asked.cluster) if axis == "gpus" else _depths(asked)


def _asked(state: State, model: str) -> resolved.Asked:
    return resolved.asked(parse("estimate", arguments(state, model)))


def _of_inference(state: State, model: str) -> "tuple[InferenceJob, Cluster]":
    return inference.asked(parse("estimate", arguments(state, model)))


def _point(
    state: State, model: str, value: int, changes: dict[str, str], *, is_here: bool
) -> Point:
    try:
        peak, limit = _peak(state.changed(**changes), model)
    except BrimfulError as error:
        return Point(value, changes, None, 0, one_line(str(error)), is_here)
    return Point(value, changes, peak, limit, "", is_here)


def _peak(state: State, model: str) -> tuple[int, int]:
    """Return live tensors at their peak, and what tensors may take."""
    if state.what == INFERENCE:
        return inference_peak(*_of_inference(state, model))
    from brimful.cost.estimate import estimate

    made = estimate(*_asked(state, model))
    return made.predicted_peak_allocated_bytes, made.usable_bytes


def inference_peak(job: "InferenceJob", cluster: Cluster) -> tuple[int, int]:
    """Return what each GPU takes at most to write text, and what tensors may take."""
    from brimful.cost.inference import estimate_inference
    from brimful.cost.inference_shared import share_inference

    if cluster.num_devices > 1:
        shared = share_inference(job, cluster)
        peak, usable, unknown = shared.most_bytes, shared.usable_bytes, ""
    else:
        alone = estimate_inference(job, cluster)
        peak, usable = alone.predicted_peak_allocated_bytes, alone.usable_bytes
        unknown = alone.unknown
    if peak is None:
        raise UnsupportedError(unknown or "what its forward takes is not known")
    return peak, usable


def _lengths(here: int, most: int) -> tuple[int, list[int]]:
    """Return powers of two about what is asked, as far as the model has positions."""
    every = [1 << power for power in range(4, 24) if (1 << power) <= most]
    near = sorted(every, key=lambda value: abs(value.bit_length() - here.bit_length()))
    large = [value for value in near if value >= _LEAST_LENGTH] or near
    return here, large[: MOST_POINTS - 1]


def _batches(here: int) -> tuple[int, list[int]]:
    top = max(_MOST_BATCH, 2 * here)
    every = [1 << power for power in range(top.bit_length()) if (1 << power) <= top]
    return here, every[-MOST_POINTS:]


def _counts(cluster: Cluster) -> tuple[int, list[int]]:
    return cluster.num_devices, list(_GPU_COUNTS)


def _depths(asked: resolved.Asked) -> tuple[int | None, list[int]]:
    """Return depths of full checkpointing; none of them is what was asked where that is another."""
    num = asked.job.model.num_layers
    steps = min(num, MOST_POINTS - 1)
    is_other = asked.strategy.activation_checkpointing.startswith("selective")
    here = None if is_other else num_checkpointed(asked.strategy, num_layers=num)
    return here, [round(place * num / steps) for place in range(steps + 1)] if num else []


def _changes(state: State, axis: Axis, value: int, model: str) -> dict[str, str]:
    """Return the fields of one point: what depends on its value goes along."""
    if axis == "gpus":
        named = split_counts(state.given[GPUS]).gpu
        nodes, each = max(1, value // _PER_NODE), min(value, _PER_NODE)
        count = f"{nodes}x{each}x" if nodes > 1 else f"{each}x" if each > 1 else ""
        unset = dict.fromkeys(("zero", "dp_replicate", "dp_shard", "tp"), "")
        batch = {} if state.what == INFERENCE else {"global_batch": ""}
        return {GPUS: f"{count}{named}", **unset, **batch}
    if axis == "global_batch":
        return {axis: str(value), "micro_batch": ""}
    if axis == "activation_checkpointing":
        num = _asked(state, model).job.model.num_layers
        depth = "none" if value == 0 else "full" if value == num else f"full:{value}"
        return {axis: depth}
    if axis == "micro_batch":
        asked = _asked(state, model)
        fits = asked.job.global_batch % (value * data_parallel(asked.strategy)) == 0
        return {axis: str(value), **({} if fits else {"global_batch": ""})}
    return {axis: str(value)}
