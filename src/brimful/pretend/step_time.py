"""Seconds of a step of somebody's script, by the work that its operations do.

Sums are taken while a script runs, by phase and by the type in which products are made: a script
has several, and nothing else says at which rate each runs. What a process waits for (data, values,
other processes) is not among them.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from brimful.cost.assumptions import around
from brimful.cost.attending import CAUSAL_SHARE, kernel_named
from brimful.cost.efficiency import (
    AttentionKernel,
    ProductSize,
    attention_share,
    efficiency_of,
    fused_bytes,
    product_share,
)
from brimful.cost.step import traffic_of_update
from brimful.hardware.cluster import Device, matrix_rate
from brimful.pretend.costs import row_of
from brimful.pretend.recording import TO_DEVICE, TO_HOST, Recording
from brimful.pretend.report_values import StepTime
from brimful.pretend.tape import Tape
from brimful.values.job import Precision
from brimful.values.results import GRADIENTS, OPTIMIZER_STATE

_PRODUCTS = frozenset({"mm", "addmm"})
"""Whose sizes say how wide a model is, and how many tokens it is given."""
_OTHERS = frozenset({"convolution", "convolution_backward", "_scaled_mm", "_int_mm"})
"""With FLOPs, at rates that were fitted to no run."""
_LEAST_OTHER = 0.1
"""Share of a step's FLOPs from which these leave its time unknown."""
_HALF: dict[torch.dtype, Precision] = {torch.bfloat16: "bf16-mixed", torch.float16: "fp16-mixed"}
_UPDATE = "optimizer"
_MOST_STEPS = 5
"""The last ones, of which the middle is told."""
_LINK_BYTES_PER_S = 1e10
"""Slower than a link to the host mostly is."""
_LEAST_COPIED = 0.1
"""Share of a step from which copies over it leave the step's time unknown."""


class Attended(NamedTuple):
    """What a fused attention's speed hangs on.

    Attributes:
        recipe: Of its type; empty: of a type at no known rate.
        kernel: What computes it.
        length: Tokens of a row; twice those of one that looks both ways.
        head: Width of a head.
    """

    recipe: str
    kernel: AttentionKernel
    length: int
    head: int

    @property
    def of_any_length(self) -> "Attended":
        """What rows of other lengths have in common, as they grow from round to round."""
        return self._replace(length=0)


@dataclass(slots=True)
class PhaseWork:
    """What the operations of a phase do.

    Attributes:
        products: FLOPs of matrix products, by recipe; empty: of a type at no known rate.
        attention: FLOPs of fused attention, what a causal mask leaves out left out.
        other_flops: Of what runs at no known rate.
        moved_bytes: Read and written by all else.
        num_ops: Operations.
    """

    products: Counter[str] = field(default_factory=Counter)
    attention: Counter["Attended"] = field(default_factory=Counter)
    other_flops: int = 0
    moved_bytes: int = 0
    num_ops: int = 0


class TimedTape(Tape):
    """A tape that sums up the work of operations, and keeps none of each."""

    def __init__(self, **how: Any) -> None:
        """Make an empty one; see ``Tape``."""
        super().__init__(count_costs=True, **how)
        self.work = [PhaseWork()]
        self.sizes: Counter[tuple[int, int]] = Counter()

    def begin_phase(self, name: str) -> None:
        """Attribute everything from here on to the phase ``name``."""
        super().begin_phase(name)
        self.work.append(PhaseWork())

    def _worked(self, call: Any, out: Any, first: torch.Tensor) -> None:
        work = self.work[-1]
        matrix_flops, attention_flops, moved = call.work(out)
        work.num_ops += 1
        work.moved_bytes += sum(moved)
        if not matrix_flops and not attention_flops:
            return
        name = call.func.overloadpacket.__name__
        if name in _OTHERS:
            work.other_flops += matrix_flops
            return
        recipe = _recipe(first.dtype)
        work.products[recipe] += matrix_flops
        if attention_flops:
            place = _place_of_causal(call.func)
            given = call.args[place] if 0 <= place < len(call.args) else False
            is_causal = bool(call.kwargs.get("is_causal", given))
            share = CAUSAL_SHARE if is_causal else 1.0
            tokens, head = row_of(name, call.args)
            at = Attended(recipe, kernel_named(name), tokens * (2 - is_causal), head)
            work.attention[at] += int(share * attention_flops)
        elif name in _PRODUCTS:
            rows, inner = call.args[-2].shape
            self.sizes[rows, min(inner, call.args[-1].shape[-1])] += matrix_flops

    def work_done(self) -> PhaseWork:
        """Return what the phase that is running has done so far."""
        now = self.work[-1]
        counters = now.products.copy(), now.attention.copy()
        return PhaseWork(*counters, now.other_flops, now.moved_bytes, now.num_ops)

    def work_on(self, seen: Sequence[PhaseWork], num: int) -> None:
        """Add the work of stretches of rounds that were left out, by three that were not.

        ``seen``: what was done at both ends of the two before them, which have one in common, and
        of the one behind them. Through three goes what grows evenly, and its square.
        """
        first, second, third, start, stop = seen
        ends = (first, second), (second, third), (start, stop)
        now, last = self.work[-1], num + 2

        def left_out(work_of: Callable[[PhaseWork], int]) -> int:
            one, two, three = (work_of(y) - work_of(x) for x, y in ends)
            at = np.arange(2, last, dtype=np.float64)
            parts = (
                one * (at - 1) * (at - last) / last,
                two * at * (at - last) / (1 - last),
                three * at * (at - 1) / (last * (last - 1)),
            )
            return round(float(np.sum(parts)))

        for name in list(now.products):
            now.products[name] += left_out(partial(_of_recipe, name))
        longest = {each.of_any_length: each for each in sorted(now.attention)}
        for alike, at in longest.items():
            now.attention[at] += left_out(partial(_of_attention, alike))
        now.other_flops += left_out(lambda work: work.other_flops)
        now.moved_bytes += left_out(lambda work: work.moved_bytes)
        now.num_ops += left_out(lambda work: work.num_ops)


def _of_recipe(recipe: str, work: PhaseWork) -> int:
    return work.products[recipe]


def _of_attention(alike: "Attended", work: PhaseWork) -> int:
    return sum(flops for at, flops in work.attention.items() if at.of_any_length == alike)


def _recipe(dtype: torch.dtype) -> str:
    """Return the recipe at whose rate a product of a type runs; empty: none."""
    if dtype is torch.float32:
        return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "fp32"
    return _HALF.get(dtype, "")


@cache
def _place_of_causal(func: Any) -> int:
    """Return where an operation is told that its mask is causal; -1: nowhere."""
    names = [argument.name for argument in func._schema.arguments]  # noqa: SLF001
    return names.index("is_causal") if "is_causal" in names else -1


def step_time(recording: Recording, tape: TimedTape, device: Device) -> StepTime | str:
    """Sum up the seconds of a step of a script that trains on one device.

    Returns of the step that is the middle one of those that are whole, the first left out where
    there are others: it makes the optimizer's state. Else why there are none, as of what a rate is
    not known.
    """
    phases = recording.phases
    numbers = [int(name.split()[1]) if name.startswith("step ") else 0 for name in phases]
    updated = {n for n, name in zip(numbers, phases, strict=True) if name.endswith(_UPDATE)}
    whole = (sorted(updated)[1:] or sorted(updated))[-_MOST_STEPS:]
    size = _size_of(tape.sizes)
    times: dict[int, float] = {}
    for step in whole:
        chosen = [i for i, number in enumerate(numbers) if number == step]
        seconds = _seconds(recording, tape.work, chosen, device, size)
        if isinstance(seconds, str):
            return seconds
        times[step] = seconds
    if not times:
        return "no step was whole"
    middle_s = statistics.median_low(times.values())
    step = next(step for step, seconds in times.items() if seconds == middle_s)
    band = around(middle_s, device)
    return StepTime(step=step, simulated_s=middle_s, low_s=band.low, high_s=band.high)


def _size_of(sizes: Counter[tuple[int, int]]) -> ProductSize:
    """Return how large products are: the middle of their sizes, by FLOPs."""
    if not sizes:
        return ProductSize(0.0, 0.0)
    every, flops = np.array([*sizes]), np.array([*sizes.values()], dtype=np.float64)
    middle = []
    for column in every.T:
        order = np.argsort(column)
        reached = np.cumsum(flops[order]) >= flops.sum() / 2
        middle.append(float(column[order][reached.argmax()]))
    return ProductSize(*middle)


def _seconds(
    recording: Recording,
    works: Sequence[PhaseWork],
    chosen: Sequence[int],
    device: Device,
    size: ProductSize,
) -> float | str:
    """Return the seconds of the phases of a step; of what a rate is not known, where one is not."""
    reached = efficiency_of(device)
    bandwidth = device.memory_bytes_per_s * reached.memory_share
    matrix_s = moved = 0.0
    other = total = num_ops = 0
    for i in chosen:
        work = works[i]
        for recipe, flops in work.products.items():
            rate = _rate(device, recipe, size)
            if flops and not rate:
                return f"{recipe or 'its type of'} products have no known rate"
            matrix_s += flops / rate if flops else 0.0
        for at, flops in work.attention.items():
            rate = matrix_rate(device, cast("Precision", at.recipe)) if at.recipe else 0.0
            rate *= float(attention_share(device, at.kernel, at.length, at.head))
            if not rate:
                return f"{at.recipe or 'its type of'} attention has no known rate"
            matrix_s += flops / rate
        other, total = other + work.other_flops, total + sum(work.products.values())
        # What an update moves is counted from what it keeps: in place it has no outputs to count.
        moved += 0 if recording.phases[i].endswith(_UPDATE) else work.moved_bytes
        num_ops += work.num_ops
    if not bandwidth:
        return "the card's bandwidth is not known"
    if other > _LEAST_OTHER * (other + total):
        share = other / (other + total)
        return f"{share:.0%} of its FLOPs (convolutions, 8 bits) have no known rate"
    moved += float(fused_bytes(_update_bytes(recording, chosen), device))
    busy_s = matrix_s + moved / bandwidth
    if _copied_bytes(recording, chosen) > _LEAST_COPIED * busy_s * _LINK_BYTES_PER_S:
        return "much is copied to the host or from it"
    return max(busy_s, num_ops * device.op_overhead_s)


def _rate(device: Device, recipe: str, size: ProductSize) -> float:
    if not recipe:
        return 0.0
    precision = cast("Precision", recipe)
    return float(matrix_rate(device, precision) * product_share(device, precision, size))


def _update_bytes(recording: Recording, chosen: Sequence[int]) -> float:
    """Return what an update moves of what it has: gradients, parameters of as many, and states."""
    start = next(i for i in chosen if recording.phases[i].endswith(_UPDATE))
    alive = recording.alive_at(int(recording.phase_starts[start]) - 1)
    tags = np.array(recording.items, dtype=object)[recording.item[alive]]
    gradients, states = (
        float(recording.num_bytes[alive][tags == name].sum())
        for name in (GRADIENTS, OPTIMIZER_STATE)
    )
    return traffic_of_update(gradients=gradients, kept=gradients + states)


def _copied_bytes(recording: Recording, chosen: Sequence[int]) -> int:
    ways, phases = {TO_HOST, TO_DEVICE}, {*chosen}
    copies = (each for each in recording.costs if each.op in ways and each.phase in phases)
    return sum(sum(each.moved_bytes) for each in copies)
