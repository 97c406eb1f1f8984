"""The doctor's shares beside those of tensors that are kept whole and worked on in fp64.

Two questions. Whether what is counted of a step's tensors (zeros, subnormals, what formats would
round to 0) is what fp64 arithmetic on the same tensors says. And whether what is said to have
vanished is what is 0 in the recipe and not 0 in the same step run in fp64, number by number.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from cases import Case
from precision_cases import Plant, steps_of
from torch import nn

from brimful.build.assemble import build_program
from brimful.build.program import Program
from brimful.doctor.formats import FORMATS
from brimful.doctor.program import PlainStep, compare, run_without_update
from brimful.doctor.records import Kind, Row
from brimful.doctor.seen import NOISE

Kept = dict[tuple[str, Kind], torch.Tensor]
_NARROW = ("fp16", "bf16", "e5m2", "e4m3")


def worst_errors(case: Case, plant: Plant) -> tuple[float, float, int]:
    """Compare all shares of one step.

    Returns:
        Largest difference of counted shares, of vanished shares, and how many were compared.
    """
    program = build_program(case.job, case.strategy, torch.device("cpu"))
    step = plant(program, steps_of(case))[0]
    scale = None if program.scaler is None else program.scaler.scale
    compared = compare(program, step)
    assert compared is not None
    assert compared.wide == "fp64"
    rows, said = compared.recipe, compared.vanished()
    low = _kept(program, step, scale)
    wide = _kept_in_fp64(program, step)
    counted = max(_counted_error(row, low[row.name, row.kind]) for row in rows)
    vanished = max(
        abs(said[place] - float(((low[place] == 0) & _counts(wide[place])).double().mean()))
        for place in said
    )
    return counted, vanished, 6 * len(rows) + len(said)


def _counts(wide: torch.Tensor) -> torch.Tensor:
    """Tell what is more than what rounding leaves of a sum that comes to 0."""
    largest = float(wide.abs().amax())
    return (
        wide.abs() >= 2.0 ** (math.frexp(largest)[1] - 1 - NOISE["fp64"]) if largest else wide != 0
    )


def _counted_error(row: Row, kept: torch.Tensor) -> float:
    """Work out a row's shares in fp64 and return the largest difference."""
    x = kept.double().abs()
    own = FORMATS[{"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}[row.held]]
    theirs = [(x == 0), (x > 0) & (x < 2.0**own.least_exponent)]
    ours = [row.zero_share, row.subnormal_share]
    for name in _NARROW:
        form = FORMATS[name]
        is_known = x >= 2.0**-126  # smaller ones are told apart by no count
        theirs.append((x > 0) & is_known & (x <= 2.0**form.vanish_exponent))
        below = row.spectrum._between(1, 2) if name != "bf16" else 0  # noqa: SLF001
        ours.append(row.vanishing_share(name) - below / row.spectrum.num)
    pairs = zip(ours, theirs, strict=True)
    return max(abs(one - float(other.double().mean())) for one, other in pairs)


def _kept(program: Program, step: PlainStep, scale: float | None) -> Kept:
    """Run a step without an update and keep every tensor that the doctor looks at."""
    kept: dict[tuple[str, Kind], list[torch.Tensor]] = {}
    with _keeping(program, kept):
        run_without_update(program, step, loss_scale=scale)
    return {place: torch.cat(tensors) for place, tensors in kept.items()}


def _kept_in_fp64(program: Program, step: PlainStep) -> Kept:
    job = msgspec.structs.replace(program.job, precision="fp32", loss_scale=None)
    wide = dataclasses.replace(program, job=job, scaler=None)
    held = {p: p.dtype for p in program.model.parameters()}
    for parameter in held:
        parameter.grad = None
        parameter.data = parameter.data.double()
    batches = [_wide_inputs(batch) for batch in step.micro_batches]
    plain = PlainStep(micro_batches=batches, num_targets=step.num_targets)
    try:
        return _kept(wide, plain, None)
    finally:
        for parameter, dtype in held.items():
            parameter.grad = None
            parameter.data = parameter.data.to(dtype)


def _wide_inputs(batch: Any) -> Any:
    inputs = batch.inputs
    return batch._replace(inputs=inputs.double()) if inputs.is_floating_point() else batch


@contextmanager
def _keeping(program: Program, kept: dict[tuple[str, Kind], list[torch.Tensor]]) -> Iterator[None]:
    keeper = _Keeper(kept)
    root = type(program.model).__name__
    named = {module: name or root for name, module in program.model.named_modules()}
    handles = [
        module.register_forward_hook(keeper.hook(name))
        for module, name in {program.loss: "loss", **named}.items()
    ]
    handles += [
        parameter.register_hook(keeper.taking(name, "gradient"))
        for name, parameter in program.model.named_parameters()
        if parameter.requires_grad
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Keeper:
    """Keeps every tensor, which is what the doctor must not do."""

    def __init__(self, kept: dict[tuple[str, Kind], list[torch.Tensor]]) -> None:
        self._kept = kept
        self._seen: list[torch.Tensor] = []

    def taking(self, name: str, kind: Kind) -> Callable[[torch.Tensor], None]:
        def take(tensor: torch.Tensor) -> None:
            self._kept.setdefault((name, kind), []).append(tensor.detach().flatten().clone())

        return take

    def hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def leave(_module: nn.Module, _args: Any, out: Any) -> None:
            for tensor in _floats(out):
                if any(tensor is other for other in self._seen):
                    continue  # its part's own
                self._seen.append(tensor)
                self.taking(name, "activation")(tensor)
                if tensor.requires_grad:
                    tensor.register_hook(self.taking(name, "output-gradient"))

        return leave


def _floats(out: Any) -> list[torch.Tensor]:
    values = out.values() if isinstance(out, dict) else out
    values = [values] if isinstance(values, torch.Tensor) else values or ()
    return [x for x in values if isinstance(x, torch.Tensor) and x.is_floating_point()]
