"""What to change in a program that does not fit, by what was recorded of it: bytes, and no advice.

Nothing is run again: each number is what is there now and would not be, and at most that much.
"""

from brimful.pretend.logits import NUM_CHUNKS
from brimful.pretend.report_values import PretendReport, StateBytes
from brimful.pretend.unit_values import EACH_BATCH, NO_SYNC, SET_SYNC
from brimful.show.summary import Fact
from brimful.units import format_bytes
from brimful.values.results import (
    EVAL,
    GRADIENTS,
    LOAD,
    LOGITS,
    OPTIMIZER_STATE,
    PARAMETERS,
    SAVED_ACTIVATIONS,
    TRANSIENTS,
    WORKSPACES,
)

_WITH_BATCH = (SAVED_ACTIVATIONS, LOGITS, TRANSIENTS)
"""Classes of bytes that grow with the tokens of a batch."""
_ELEMENT_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Of types in which an optimizer keeps moments, that one of 8 bits would keep in one."""
_JOINED = "aten.cat."
WIDE_BYTES = 4
"""Of elements that 16 bits would halve."""
LEAST_NAMED = 0.02
"""Of the peak: what changes less is not named."""

_REDUCING = {
    SET_SYNC: f"{SET_SYNC}(True)",
    NO_SYNC: f"no {NO_SYNC}()",
    EACH_BATCH: f"Accelerate's {EACH_BATCH}=True",
}
"""How gradients are not left whole, by the call that leaves them so."""


def change_facts(report: PretendReport) -> tuple[Fact, ...]:
    """Say what of a training that does not fit could be smaller, and by how much at most.

    Returns nothing where nothing trains.
    """
    if _failing_phase(report) == LOAD:
        return _loading(report)
    if _failing_phase(report).endswith(EVAL) and report.logits is not None:
        return _evaluating(report)
    states = _by_name(report.states)
    if not states.get(GRADIENTS) and not states.get(OPTIMIZER_STATE):
        return ()
    held = {item.name: item.num_bytes for item in report.items}
    peak = report.simulated_peak_allocated_bytes
    batch = {name: held[name] for name in _WITH_BATCH if held.get(name)}
    if held.get(WORKSPACES, 0) > LEAST_NAMED * peak:  # a library's own is small
        batch[WORKSPACES] = held[WORKSPACES]
    rounded = sum(map(_rounded_away, report.states))
    whole = report.whole_gradients.num_bytes if report.whole_gradients else 0
    adapted = max(states.get(GRADIENTS, 0), whole) + states.get(OPTIMIZER_STATE, 0)
    logits = held.get(LOGITS, 0) if report.logits is not None else 0
    saved_bytes = held.get(SAVED_ACTIVATIONS, 0) - report.already.checkpointed_bytes
    fewer = "fewer tokens at once" if report.already.is_of_one else "a smaller batch"
    fewer = "fewer rows at once" if report.is_between_steps else fewer
    ways = (
        (rounded, "8-bit moments"),
        (adapted, "LoRA (gradients and optimizer state)"),
        (logits - logits // NUM_CHUNKS, "the loss in chunks (logits)"),
        (saved_bytes, "checkpointing (saved activations)"),
        (sum(batch.values()), f"{fewer} ({_listed([*batch])})"),
    )
    short_bytes = report.reserved.simulated_peak_reserved_bytes - report.at_capacity.capacity_bytes
    named = [(num, words) for num, words in ways if num > LEAST_NAMED * peak]
    saved = [
        f"{format_bytes(num)}{' (may do)' if num >= short_bytes > 0 else ''}" for num, _ in named
    ]
    told = [f"{words} {num}" for (_, words), num in zip(named, saved, strict=True)]
    short = [
        f"{words.partition(' (')[0]} {num}" for (_, words), num in zip(named, saved, strict=True)
    ]
    return (*_no_batch(report, states), *_less(told, short))


def whole_facts(report: PretendReport, sure_bytes: int) -> tuple[Fact, ...]:
    """Say which gradients are whole until they are reduced, and what it is to reduce each.

    ``sure_bytes``: what the allocator may hold whatever lies outside of it.
    """
    whole, peak = report.whole_gradients, report.simulated_peak_allocated_bytes
    if whole is None or whole.num_bytes < LEAST_NAMED * peak:
        return ()
    kept = f"{format_bytes(whole.num_bytes)} of gradients are kept whole until they are reduced"
    how, num = _REDUCING.get(whole.by, ""), whole.num_backwards
    each = f"reduced with each micro-batch{f' ({how})' if how else ''}"
    words = f"{kept}: {each} shards are kept, for {num} reductions a step and not one"
    short = f"{kept}; {how or 'reducing each'} keeps shards, for {num} reductions a step"
    if whole.reduced_each_bytes is not None:
        taken = whole.reduced_each_bytes
        fits = "which fits" if whole.reduced_each_fits else "which does not fit"
        fits += " (TIGHT)" * bool(whole.reduced_each_fits and taken > sure_bytes)
        words += f": {format_bytes(taken)} then, {fits}, by replay"
        size = format_bytes(whole.num_bytes)
        short = f"{size} of gradients are kept whole; without that {format_bytes(taken)}, {fits}, "
        short += f"by replay: {how or 'reduced'} each time"
    return (Fact("whole", words, short),)


def chunk_facts(report: PretendReport, sure_bytes: int) -> tuple[Fact, ...]:
    """Say that a loss in chunks would make a training fit that does not, or surely so.

    ``sure_bytes``: what the allocator may hold whatever lies outside of it.
    """
    logits, at = report.logits, report.at_capacity
    if _failing_phase(report).endswith(EVAL):  # whose loss nothing goes back through
        return ()
    is_tight = at.num_retries or at.simulated_peak_reserved_bytes > sure_bytes
    trains = any(state.name == GRADIENTS for state in report.states)
    if logits is None or not trains or (at.failure is None and not is_tight):
        return ()
    reserved = logits.in_chunks_reserved_bytes
    how = f"with the loss in {logits.num_chunks} chunks, or fused by Liger"
    if reserved <= sure_bytes:
        return (Fact("would fit", f"{how}: {format_bytes(reserved)}, by replay"),)
    if at.failure is None or not logits.in_chunks_fits:
        return ()
    return (Fact("may fit", f"{how}: TIGHT, by replay"),)


def _failing_phase(report: PretendReport) -> str:
    """Return what a real run does where it ends for want of memory; empty: it does not."""
    failure = report.at_capacity.failure
    return "" if failure is None else failure.tensor.phase


def _loading(report: PretendReport) -> tuple[Fact, ...]:
    """Say what makes loading smaller: fewer bits, or no whole model on a device that has a part."""
    wide = sum(
        each.num_bytes
        for each in report.alike
        if _ELEMENT_BYTES.get(each.one.dtype, 0) >= WIDE_BYTES
    )
    half = f"in 16 bits {format_bytes(wide // 2)} less; " if wide else ""
    words = (
        f"{half}of several GPUs each has its part alone where the model is built on the meta "
        f"device, sharded, and filled then (to_empty)"
    )
    return (
        Fact(
            "change",
            words,
            f"{half}of several GPUs, built on the meta device, sharded, and filled then",
        ),
    )


def _evaluating(report: PretendReport) -> tuple[Fact, ...]:
    """Say what makes the logits of an evaluation smaller, which a metric is computed of."""
    held = sum(item.num_bytes for item in report.items if item.name == LOGITS)
    every = [each.one for each in report.alike if each.one.item == LOGITS]
    most = max(every, key=lambda each: each.num_bytes, default=None)
    words = f"logits of an evaluation {format_bytes(held)}: "
    there = ""
    if most is not None and most.op.startswith(_JOINED):  # fewer rows at once are as many together
        words += "they are of all its rows: "
        there = f", which takes {format_bytes(most.num_bytes)}"
    else:
        words += "fewer rows at once; "
    words += (
        f"keep what the metric needs (the Trainer's preprocess_logits_for_metrics), or move them "
        f"to the host (eval_accumulation_steps){there}"
    )
    return (Fact("change", words),)


def _less(told: list[str], short: list[str]) -> tuple[Fact, ...]:
    if not told:
        return ()
    words = f"{'; '.join(told)}; each saves at most that"
    return (Fact("change", words, f"{'; '.join(short)}, at most"),)


def _no_batch(report: PretendReport, states: dict[str, int]) -> tuple[Fact, ...]:
    """Say that no batch is small enough, where what none makes smaller has no room."""
    at = report.at_capacity
    # Gradients of a whole unit of FSDP are no shards yet.
    if sum(states.values()) <= at.capacity_bytes or report.whole_unit is not None:
        return ()
    each = _listed([f"{name} {format_bytes(states[name])}" for name in states])
    words = (
        f"fits: {each} alone are {format_bytes(sum(states.values()))} of "
        f"{format_bytes(at.capacity_bytes)}"
    )
    rounded = sum(map(_rounded_away, report.states))
    if rounded and sum(states.values()) - rounded < at.capacity_bytes:
        words += f"; with 8-bit moments {format_bytes(sum(states.values()) - rounded)}"
    return (Fact("no batch", words),)


def _by_name(states: tuple[StateBytes, ...]) -> dict[str, int]:
    """Sum states over types, in their order."""
    order = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE)
    sums = {name: sum(each.num_bytes for each in states if each.name == name) for name in order}
    return {name: num for name, num in sums.items() if num}


def _rounded_away(state: StateBytes) -> int:
    """Return the bytes of moments that one byte for each would not take."""
    size = _ELEMENT_BYTES.get(state.dtype, 1) if state.name == OPTIMIZER_STATE else 1
    return state.num_bytes - state.num_bytes // size


def _listed(words: list[str]) -> str:
    *others, last = words or [""]
    return f"{', '.join(others)} and {last}" if others else last
