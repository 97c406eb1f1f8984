"""What an optimizer keeps, and what it needs beside that while it updates.

A rule turns the shapes of a bucket into parts that are updated one after another. Where a recipe
has masters the buckets are those of ``build/precision/masters.py``; otherwise they are the
optimizer's two groups, matrices and the rest.

Ignored: step counts (4 bytes per tensor) and, of 8-bit AdamW, its two tables of 256 values.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from brimful.cost.recipes import FP32_BYTES
from brimful.cost.shapes import Shape, groups_of
from brimful.cost.trained import trained_recipe, trained_shapes
from brimful.job import Job, Optimizer
from brimful.low_bit import LOW_BIT, BitsOf, kept_bytes, workspace_bytes

MASTERS_BUCKET_BYTES = 2**25
"""fp32 gradients that exist at a time; tested equal to ``build.precision.masters``."""
QUANTIZED_BLOCK, QUANTIZED_LEAST = 256, 4096
"""8-bit AdamW: values that share a scale, and the smallest tensor that is quantised; tested equal
to ``build.optimizers.adamw_8bit``."""


class Update(NamedTuple):
    """Bytes of an optimizer, above parameters and gradients: numbers, or [strategies] each.

    Attributes:
        kept: Its state, masters included; made before the first step.
        transient: The most there is in an update beside the state.
        why: What the state is, in words.
    """

    kept: Any
    transient: Any
    why: str


class Part(NamedTuple):
    """Parameters that are updated at once: bytes that stay, and bytes while it lasts."""

    kept: int
    transient: int


class Held(NamedTuple):
    """What hangs on the recipe and the device, and not on the shapes.

    Attributes:
        num_bytes: Of one value of what is updated.
        kernels: ``cuda`` or ``cpu``.
        momentum: Of SGD.
        decay: Of matrices.
    """

    num_bytes: int
    kernels: str
    momentum: float
    decay: float


Rule = Callable[[Sequence[Shape], Held], list[Part]]


def _adamw(shapes: Sequence[Shape], held: Held) -> list[Part]:
    """Two moments, updated in place by one kernel."""
    return [Part(2 * _num(shapes) * held.num_bytes, 0)]


def _adamw_foreach(shapes: Sequence[Shape], held: Held) -> list[Part]:
    """Two moments, and the roots of all second ones at once (``_multi_tensor_adam``)."""
    one = _num(shapes) * held.num_bytes
    return [Part(2 * one, one)]


def _adamw_8bit(shapes: Sequence[Shape], held: Held) -> list[Part]:
    """Two moments of a byte with an fp32 scale per block each; two fp32 ones of small tensors.

    The CPU's kernel widens both, the gradient and a 16-bit parameter, and makes the root of the
    second moment twice (``bitsandbytes/backends/cpu/ops.py``); CUDA's works in registers.
    """
    widened = 0 if held.kernels == "cuda" else 5 + (held.num_bytes < FP32_BYTES)
    parts = []
    for num in map(prod, shapes):
        is_small = num < QUANTIZED_LEAST
        blocks = 2 * FP32_BYTES * -(-num // QUANTIZED_BLOCK)
        kept = 2 * num * FP32_BYTES if is_small else 2 * num + blocks
        parts.append(Part(kept, 0 if is_small else widened * num * FP32_BYTES))
    return parts


def _low_bit(bits: BitsOf, shapes: Sequence[Shape], held: Held) -> list[Part]:
    """Two moments of few bits, one parameter after another, and what the compiled update takes."""
    return [
        Part(kept_bytes(bits, num, held.num_bytes), workspace_bytes(bits, num))
        for num in map(prod, shapes)
    ]


def _sgd(shapes: Sequence[Shape], held: Held) -> list[Part]:
    """One buffer, where there is momentum; fused in fp32.

    16-bit values are updated one parameter after another (``build/optimizers/sgd.py``), each matrix
    beside its gradient with the decay added; without momentum its predecessor's is still bound
    (``_single_tensor_sgd`` in ``torch/optim/sgd.py``).
    """
    if held.num_bytes == FP32_BYTES:
        return [Part(_num(shapes) * held.num_bytes * (held.momentum > 0), 0)]
    decays = held.decay > 0
    added = [prod(shape) * held.num_bytes * (decays and len(shape) > 1) for shape in shapes]
    if held.momentum > 0:
        kept = [prod(shape) * held.num_bytes for shape in shapes]
        return [Part(*part) for part in zip(kept, added, strict=True)]
    return [Part(0, before + now) for before, now in pairwise([0, *added])]


def _adafactor(shapes: Sequence[Shape], held: Held) -> list[Part]:
    """A matrix's mean squares of rows and of columns; of anything else every value's square.

    The estimate of one parameter's moment is made beside its predecessor's, which is still bound,
    and beside the means or squares of its own gradient (``_single_tensor_adafactor`` in
    ``torch/optim/_adafactor.py``).
    """
    nothing: Shape = (0,)
    in_turn = pairwise([nothing, *shapes])
    transient = max((prod(one) + prod(other) + sum(other) for one, other in in_turn), default=0)
    return [Part(sum(map(sum, shapes)) * held.num_bytes, transient * held.num_bytes)]


_RULES: dict[Optimizer, Rule] = {
    "adamw": _adamw,
    "adamw-foreach": _adamw_foreach,
    "adamw-8bit": _adamw_8bit,
    "adamw-4bit": partial(_low_bit, LOW_BIT["adamw-4bit"]),
    "adamw-fp8": partial(_low_bit, LOW_BIT["adamw-fp8"]),
    "sgd": _sgd,
    "adafactor": _adafactor,
}
_WHY: dict[Optimizer, str] = {
    "adamw": "AdamW: two moments per parameter",
    "adamw-foreach": "AdamW: two moments per parameter",
    "adamw-8bit": "AdamW: two moments of a byte, scales per 256",
    "adamw-4bit": "AdamW: two moments of half a byte, scales per 128",
    "adamw-fp8": "AdamW: two moments of a byte (fp8), scales per 256",
    "sgd": "SGD: momentum",
    "adafactor": "Adafactor: means of rows and columns",
}


def update_of(job: Job, kernels: str, shapes: Sequence[Shape] | None = None) -> Update:
    """Follow an update of a job that has a formula.

    Args:
        job: What is trained.
        kernels: ``cuda`` or ``cpu``.
        shapes: Of what this device updates; None: of everything that trains.
    """
    recipe, rule = trained_recipe(job), _RULES[job.optimizer]
    held = Held(recipe.updated, kernels, job.beta1, job.weight_decay)
    shapes = trained_shapes(job) if shapes is None else shapes
    kept, transient = _num(shapes) * recipe.master, 0
    for bucket in _buckets(shapes, is_cut=bool(recipe.master)):
        widened = _num(bucket) * recipe.master
        for part in rule(bucket, held):
            kept += part.kept
            transient = max(transient, widened + part.transient)
    why = _WHY[job.optimizer] + (", fp32 masters" if recipe.master else "")
    return Update(kept, transient, why)


def state_tensors(job: Job, shape: Shape) -> tuple[int, ...]:
    """Return the bytes of every tensor that an optimizer keeps of one parameter, masters left out.

    Their sum is what ``update_of`` says is kept.

    Args:
        job: What is trained.
        shape: Of what this device updates of the parameter.
    """
    num, recipe = prod(shape), trained_recipe(job)
    each = num * recipe.updated
    if job.optimizer == "adamw-8bit" and num >= QUANTIZED_LEAST:
        scales = FP32_BYTES * -(-num // QUANTIZED_BLOCK)
        return num, num, scales, scales
    held = Held(recipe.updated, "cuda", job.beta1, job.weight_decay)
    kept = sum(part.kept for part in _RULES[job.optimizer]([shape], held))
    return (each,) * (kept // each) if kept and kept % each == 0 else (kept // 2, kept - kept // 2)


def transients(job: Job, shapes: Sequence[Shape]) -> Iterator[tuple[int, ...]]:
    """Yield what is there beside the state while parameters are updated, a bucket at a time.

    Args:
        job: What is trained.
        shapes: Of what this device updates, in the order of ``Module.parameters()``.

    Yields:
        Bytes of tensors that come one after the other and go together.
    """
    recipe, rule = trained_recipe(job), _RULES[job.optimizer]
    held = Held(recipe.updated, "cuda", job.beta1, job.weight_decay)
    for bucket in _buckets(shapes, is_cut=bool(recipe.master)):
        widened = tuple(prod(shape) * recipe.master for shape in bucket if recipe.master)
        parts = [part for shape in bucket for part in rule([shape], held)]
        beside = tuple(part.transient for part in parts if part.transient)
        if len(rule(bucket, held)) == 1:  # all parameters at once
            yield (*widened, *beside)
        else:
            yield from ((*widened, num_bytes) for num_bytes in beside or (0,))


def _num(shapes: Sequence[Shape]) -> int:
    return sum(map(prod, shapes))


def _buckets(shapes: Sequence[Shape], *, is_cut: bool) -> Iterator[list[Shape]]:
    """Yield matrices, then the rest, each cut into runs whose fp32 gradients fit the bucket.

    A parameter larger than the bucket is a run of its own.
    """
    for group in groups_of(shapes):
        bucket: list[Shape] = []
        num_bytes = 0
        for shape in group:
            wide = prod(shape) * FP32_BYTES
            if is_cut and bucket and num_bytes + wide > MASTERS_BUCKET_BYTES:
                yield bucket
                bucket, num_bytes = [], 0
            bucket.append(shape)
            num_bytes += wide
        if bucket:
            yield bucket
