"""The answer to ``pretend``: what somebody's program takes of a GPU, and who holds it."""

import re
from collections.abc import Sequence

from brimful.allocator.config import EXPANDABLE, parse_settings
from brimful.allocator.held import held_within
from brimful.pretend.combined import FUSED
from brimful.pretend.largest import Aim, Tried
from brimful.pretend.recording import SELECTS_ALL, Recording
from brimful.pretend.report_values import Alike, Failure, Missed, ModuleBytes, PretendReport
from brimful.pretend.scripts import short_line
from brimful.pretend.step_values import BUDGET_S, Cut
from brimful.search.larger_clusters import smallest_first
from brimful.show.changes import change_facts, chunk_facts, whole_facts
from brimful.show.kept import (
    copies_facts,
    graphs_facts,
    grows_facts,
    idle_facts,
    in_vain_facts,
    models_facts,
)
from brimful.show.simulate import unknown_facts
from brimful.show.summary import LOWER_BOUND, VERDICTS, Fact, Meter, Summary, at_least
from brimful.show.terminal import LABEL_WIDTH, WIDTH
from brimful.show.units import unit_facts, unit_ways
from brimful.units import format_bytes, format_range, format_seconds
from brimful.values.plan import Word
from brimful.values.results import (
    BUFFERS,
    GATHERED,
    GRADIENTS,
    LOGITS,
    NOT_UPDATED,
    OPTIMIZER_STATE,
    PAGED_STATE,
    PARAMETERS,
    REDUCED,
    SAVED_ACTIVATIONS,
    TRANSIENTS,
    WHOLE_GRADIENTS,
    WORKSPACES,
)

NUM_ITEMS, NUM_OWNERS, NUM_ALIKE, NUM_LINES = 3, 3, 2, 2
LEAST_ALIKE = 0.08
"""Of the peak, which tensors that are alike take that are named."""
LEAST_HOST = 0.05
"""Of the peak on the GPU, from which what is kept on the host is told."""
PASSING = (TRANSIENTS, BUFFERS, WORKSPACES)
"""Classes of what a host has anyway."""
LEAST_SAVED = 0.02
"""Of what is reserved, for which other settings of the allocator are named."""
OUTSIDE = "outside all modules"
_WRAPPER = re.compile(r"_(fsdp_wrapped_module|checkpoint_wrapped_module|orig_mod)(\.|$)")
"""What PyTorch puts into the path of a module that it wraps."""
_FEWER = "fewer tokens at once, or a kernel that fuses what makes them"
UPDATE = "optimizer"
"""The last word of a step's phase in which parameters are updated."""
LEAST_UNFUSED = 0.1
"""Of the peak, that temporaries of an update take where something is said of them."""
CHANGES = {
    PARAMETERS: "fewer bits, sharding, or adapters with fewer of them",
    GRADIENTS: "sharding, adapters, or updates within backward",
    OPTIMIZER_STATE: "8-bit moments, sharding, or moments on the host",
    SAVED_ACTIVATIONS: "checkpointed blocks, or fewer tokens at once",
    LOGITS: _FEWER,
    TRANSIENTS: _FEWER,
    GATHERED: "smaller units of sharding",
    REDUCED: "smaller units of sharding",
    WHOLE_GRADIENTS: "a reduction with each micro-batch",
}
"""What makes a class of bytes smaller, in a program of any kind."""


def pretend_summary(
    report: PretendReport,
    program: Sequence[str],
    sizes: tuple[Fact, ...] = (),
    ways: tuple[Fact, ...] = (),
    mended: tuple[Fact, ...] = (),
) -> Summary:
    """Say what a program does to a GPU's memory.

    ``ways``: with which changes together; then none is told alone. ``mended``: what is left once a
    fault is mended; then no other size is told.
    """
    at = report.at_capacity
    fails = at.failure is not None
    used = (report.reserved if fails else at).simulated_peak_reserved_bytes
    is_most = any(line.endswith(SELECTS_ALL) for line in report.assumptions)
    word = word_of(report)
    is_bound = bool(report.unknown_ops) and not fails
    how = f"simulated{', at most' * is_most}"
    if is_most and is_bound:
        how = "simulated: selections whole, unknown kernels left out"
    meter = Meter(used, at.capacity_bytes, how)
    bound = f"{LOWER_BOUND} " if is_bound else ""
    is_kept = report.grows is not None or report.unused_graphs is not None
    is_no = fails and not is_most and not is_kept
    is_part, by_growth = report.fits is None, not fails and report.fits is False
    changes = change_facts(report) if is_no else ()
    no_batch = any(each.label == "no batch" for each in changes)
    changes = ways if is_no and ways else changes
    peak, says_why = [_peak(report)], fails and _has_parts(report)
    return Summary(
        "UNKNOWN" if is_part or (is_most and word == "no") else VERDICTS[word],
        f"{bound}{' '.join(program)} on {report.card}",
        at_least(meter) if is_part or by_growth or (is_bound and not is_most) else meter,
        (
            *_cut(report.cut),
            *([] if at.failure is None or is_most else _failed(report, at.failure)),
            *_in_vain(report, program),
            *mended,
            *whole_facts(report, firm_bytes(report)),
            *_units(report, word),
            *changes,
            *_host(report, meter),
            *(unknown_facts([each.op for each in report.unknown_ops], meter) if is_bound else ()),
            *_tight(report),
            *(() if report.grows is None else _first(report)),
            *(_allocator(report) if report.allocator else ()),
            *chunk_facts(report, firm_bytes(report)),
            *(() if is_kept or mended or no_batch else sizes),
            *_instead(report),
            *models_facts(report),
            *(peak if says_why or not fails else []),
            *(() if any(FUSED in way.text for way in ways) else _unfused(report)),
            *(() if report.untimed else _speed(report)),
            *copies_facts(report),
            *_tensors(report),
            *(peak if fails and not says_why else []),
            *_kernels(report),
            *(Fact("assumes", line) for line in report.assumptions),
            *(() if changes or _unfused(report) or report.grows is not None else _first(report)),
            *(_speed(report) if report.untimed else ()),
            *_holders(report),
            *(() if report.allocator else _allocator(report)),
        ),
    )


def _in_vain(report: PretendReport, program: Sequence[str]) -> tuple[Fact, ...]:
    """Say what is kept or done for nothing."""
    return (
        *grows_facts(report, program),
        *idle_facts(report),
        *graphs_facts(report, program),
        *in_vain_facts(report),
    )


def _units(report: PretendReport, word: str) -> tuple[Fact, ...]:
    """Say what one unit of FSDP has at once; what would be without is a change where it fails."""
    if word == "fits":
        return ()
    return (*unit_facts(report), *(unit_ways(report) if word == "tight" else ()))


def _cut(cut: Cut | None) -> tuple[Fact, ...]:
    """Say where a script was ended, and that nothing is known of what comes after that."""
    if cut is None:
        return ()
    whole = "--whole " if cut.num_alike or cut.is_passed or cut.error else ""
    more = f"{whole}--budget {max(BUDGET_S, 2 * cut.seconds)} before -- runs on"
    if cut.is_passed:
        alike = f", of which {cut.num_alike} were alike," if cut.num_alike else ""
        words = f"after {cut.num_steps} steps{alike} more of its data was passed over, what follows"
        more = more.replace("runs on", "runs all")
        short = f"after {cut.num_steps} steps passed over; {more}"
        return (Fact("data", f"{words} was run: {more}", short),)
    if cut.error:
        words = f"in what follows its data, of which the rest was passed over: {cut.error}; {more}"
    elif cut.num_alike:
        words = f"after {cut.num_steps} steps, of which the last {cut.num_alike} were alike"
        short = f"after {cut.num_steps} steps, as {cut.num_alike} were alike; --whole runs on"
        return (Fact("ended", f"{words}; what follows was not run: {more}", short),)
    elif cut.is_settled:
        done = f"after {cut.num_steps} steps in {cut.seconds} s"
        return (
            Fact(
                "ended",
                f"{done}; what follows was not run: {more}",
                f"{done}, the rest not run; {more}",
            ),
        )
    elif cut.num_steps:
        words = f"after {cut.seconds} s in {cut.phase}, before two steps were whole: {more}"
    else:
        words = f"after {cut.seconds} s, in which no optimizer made a step: {more}"
    return (Fact("ended", words),)


def word_of(report: PretendReport) -> Word:
    """Say whether a program holds: at ease, with its cache emptied on the way, or not."""
    at = report.at_capacity
    if at.failure is not None or report.fits is False:
        return "no"
    return (
        "tight"
        if at.num_retries or at.simulated_peak_reserved_bytes > firm_bytes(report)
        else "fits"
    )


def firm_bytes(report: PretendReport) -> int:
    """Return what the allocator may have whatever lies outside of it, in bytes."""
    at = report.at_capacity
    most = at.card_bytes - sum(part.high_bytes for part in report.outside)
    return most if at.budget_bytes is None else min(at.budget_bytes, most)


def aim_of(report: PretendReport) -> Aim:
    """Return what other values of a script's argument are measured by.

    ``report``: of its first run.
    """
    sure, capacity = firm_bytes(report), report.at_capacity.capacity_bytes
    settings = parse_settings(report.allocator)

    def replayed(recording: Recording) -> Tried:
        free, done = held_within(recording.requests(), settings=settings, capacity_bytes=capacity)
        is_sure = free.peak_reserved_bytes <= sure
        word: Word = "no" if done.short_bytes else "fits" if is_sure else "tight"
        return Tried(word, free.peak_reserved_bytes)

    states = sum(each.num_bytes for each in report.states)
    return Aim(sure, capacity, states, replayed)


def tried_words(tried: Tried, aim: Aim) -> str:
    """Say what a run with one value said: the verdict, and its bytes."""
    sizes = f"{format_bytes(tried.num_bytes)} of {format_bytes(aim.capacity_bytes)}"
    return f"{VERDICTS[tried.word]}, {sizes}"


def _failed(report: PretendReport, failure: Failure) -> tuple[Fact, ...]:
    tensor = failure.tensor
    by, at = tensor.module or OUTSIDE, f" at {short_line(tensor.line)}" if tensor.line else ""
    words = (
        f"in {tensor.phase} of a real run: {by} asks for {format_bytes(tensor.num_bytes)} "
        f"({tensor.item}, {tensor.shape} {tensor.dtype}){at}, short by "
        f"{format_bytes(failure.short_bytes)}"
    )
    size = format_bytes(tensor.num_bytes)
    short = f"in {tensor.phase} of a real run: {by} asks for {size}{at}"
    if failure.called_at and failure.called_at != tensor.line:
        within = f" in {failure.called_in}" if failure.called_in else ""
        called = f", called{within} at {short_line(failure.called_at, num_parts=1)}"
        words, short = f"{words}{called}", f"{short}{called}"
    return (Fact("fails", words, short), *_before_evaluation(report))


def _before_evaluation(report: PretendReport) -> tuple[Fact, ...]:
    """Say what the training alone takes of a program that fails in an evaluation."""
    num_bytes = report.before_evaluation_bytes
    if num_bytes is None:
        return ()
    room = report.at_capacity.capacity_bytes
    fits = "which fits" if num_bytes <= firm_bytes(report) else "which fits (TIGHT)"
    words = f"{format_bytes(num_bytes)} of {format_bytes(room)} before the evaluation, {fits}"
    return (Fact("training", words),)


def _tensors(report: PretendReport) -> tuple[Fact, ...]:
    """Name the tensors that take most of the peak: of one size and type together, with lines."""
    sizes: dict[tuple[int, str], list[Alike]] = {}
    for each in report.alike:
        sizes.setdefault((each.one.num_bytes, each.one.dtype), []).append(each)
    told = [(sum(each.num_bytes for each in same), same) for same in sizes.values()]
    least = LEAST_ALIKE * report.simulated_peak_allocated_bytes
    most = sorted((each for each in told if each[0] >= least), key=lambda each: -each[0])
    num = NUM_ALIKE if report.at_capacity.failure is None else 1  # beside why it fails
    words = "; ".join(_alike_words(*each) for each in most[:num])
    return (Fact("tensors", words),) if words else ()


def _alike_words(num_bytes: int, same: Sequence[Alike]) -> str:
    one, num = same[0].one, sum(each.num_tensors for each in same)
    lines = dict.fromkeys(short_line(each.one.line) for each in same if each.one.line)
    where = f" ({', '.join(list(lines)[:NUM_LINES])})" if lines else ""
    what = " logits" if one.item == LOGITS else ""
    return f"{format_bytes(num_bytes)} in {num} x {one.shape} {one.dtype}{what}{where}"


def _instead(report: PretendReport) -> tuple[Fact, ...]:
    """Say what would make it fit: other settings of the allocator, or the smallest other GPU."""
    if word_of(report) == "fits" or report.grows is not None:  # no card is large enough for long
        return ()
    reserved = report.reserved
    if reserved.simulated_peak_reserved_expandable_bytes <= firm_bytes(report):
        return (Fact("would fit", f"with PYTORCH_ALLOC_CONF={EXPANDABLE}, by its replay"),)
    if report.at_capacity.budget_bytes is not None:
        return ()
    need = reserved.simulated_peak_reserved_bytes + sum(part.high_bytes for part in report.outside)
    for device in smallest_first():
        if device.usable_bytes >= need:
            return (Fact("instead", f"--gpu {device.name} would hold it (the smallest that does)"),)
    return (Fact("instead", "no single known GPU would hold it"),)


def _unfused(report: PretendReport) -> tuple[Fact, ...]:
    """Say what a fused optimizer would spare, where the step's own temporaries are at the peak.

    PyTorch updates lists of tensors (``foreach``) unless it is told otherwise, and holds a result
    of each at once; its fused kernels hold none (``torch/optim/adamw.py``).
    """
    held = {item.name: item.num_bytes for item in report.items}
    beside = held.get(TRANSIENTS, 0)
    is_update = report.peak_phase.endswith(UPDATE) and report.grows is None
    most = max(held.get(OPTIMIZER_STATE, 0), held.get(PARAMETERS, 0))
    if beside > most:  # more than results of all parameters: of what runs behind the update
        return ()
    if not is_update or beside < LEAST_UNFUSED * report.simulated_peak_allocated_bytes:
        return ()
    words = f"an optimizer of torch.optim with fused=True: at most {format_bytes(beside)} less"
    return (Fact("first", words),)


def _tight(report: PretendReport) -> tuple[Fact, ...]:
    at = report.at_capacity
    if at.failure is not None or word_of(report) != "tight":
        return ()
    if at.num_retries:
        times = "once" if at.num_retries == 1 else f"{at.num_retries} times"
        return (Fact("tight", f"completes by emptying the allocator's cache {times} (slow)"),)
    firm = format_bytes(firm_bytes(report))
    why = f"{firm} are certain; CUDA's context and NCCL may take the rest"
    return (Fact("tight", why),)


def _kernels(report: PretendReport) -> tuple[Fact, ...]:
    """Say which packages of kernels the program would find where it trains and did not find here.

    Those that PyTorch does not bring along are there only if somebody installs them; ``-v`` lists
    them.
    """
    beside = report.beside_torch
    missed = [
        Fact(
            "kernels",
            f"{_askers(missed)} would find {missed.package} where it trains, as PyTorch for GPUs "
            f"brings it, and may run other kernels: install it, or --assume {missed.package}",
        )
        for missed in beside.missed
        if missed.comes_with_torch
    ]
    return (*missed, *(Fact("assumes", line) for line in beside.stood_in))


def _askers(missed: Missed) -> str:
    """Name the libraries that looked for a package."""
    names = ["the program" if name == "__main__" else name for name in missed.libraries]
    return ", ".join(names[:-1]) + " and " * bool(names[1:]) + names[-1]


def _peak(report: PretendReport) -> Fact:
    """Say how much tensors take, when, and what they are: logits by their shape, if many."""
    items = sorted(report.items, key=lambda item: -item.num_bytes)[:NUM_ITEMS]
    logits = report.logits
    total = report.simulated_peak_allocated_bytes
    least = LEAST_ALIKE * total
    is_told = logits is not None and logits.num_bytes >= least
    if is_told and LOGITS not in {item.name for item in items}:
        items += [item for item in report.items if item.name == LOGITS]
    items += [item for item in report.items if item.name == NOT_UPDATED and item not in items]
    sizes = {item.name: f"{item.name} {format_bytes(item.num_bytes)}" for item in items}
    held = [*sizes.values()]
    short = ", ".join(held)
    if logits is not None and is_told:
        sizes[LOGITS] += f" in {logits.num_tensors} of up to {logits.shape} {logits.dtype}"
    words = ", ".join(sizes.values())
    size, when = format_bytes(total), f"in {report.peak_phase}"
    if not words:
        return Fact("peak", f"{size} of tensors {when}")
    lines = [f"{size} {when}: {', '.join(held[: num + 1])}" for num in range(len(held))]
    line = next((each for each in reversed(lines) if len(each) <= WIDTH - LABEL_WIDTH), lines[0])
    return Fact("peak", f"{size} of tensors {when}: {words}", f"{size} {when}: {short}", line)


def _paged(report: PretendReport, meter: Meter) -> tuple[Fact, ...]:
    """Say what a paged optimizer keeps, and how much of it has room beside the peak."""
    paged = report.host.paged_bytes
    if not paged:
        return ()
    fits = min(paged, max(0, meter.usable_bytes - meter.used_bytes))
    words = f"{format_bytes(paged)} of optimizer state in managed memory, of which "
    rest = "all fits" if fits == paged else f"{format_bytes(fits)} fits"
    return (Fact("paged", f"{words}{rest} beside the peak"),)


def _host(report: PretendReport, meter: Meter) -> tuple[Fact, ...]:
    """Say what this process keeps on the host for its GPU: states, what it saves for backward."""
    paged = _paged(report, meter)
    kept = [item for item in report.host.items if item.name not in (*PASSING, PAGED_STATE)]
    num_bytes = sum(item.num_bytes for item in kept)
    if num_bytes < LEAST_HOST * report.simulated_peak_allocated_bytes:
        return paged
    most = sorted(kept, key=lambda item: -item.num_bytes)[:NUM_ITEMS]
    words = ", ".join(f"{item.name} {format_bytes(item.num_bytes)}" for item in most)
    size = format_bytes(report.host.simulated_peak_bytes)
    told = f"{size} of tensors of this process"
    return (*paged, Fact("host", f"{told}: {words}", told))


def _speed(report: PretendReport) -> tuple[Fact, ...]:
    """Say how long a step takes where every rate of it is known, else why that is not told."""
    time = report.step_time
    if time is None:
        words = f"a step's seconds are not told: {report.untimed}"
        return (Fact("speed", words, f"not told: {report.untimed}"),) if report.untimed else ()
    step = f"a step of {format_seconds(time.simulated_s)} ({format_range(time.low_s, time.high_s)})"
    if report.at_capacity.failure is not None:
        return (Fact("speed", f"{step}, had the card room for it"),)
    return (Fact("speed", f"{step}, by the work of its operations; data may be waited for", step),)


def _has_parts(report: PretendReport) -> bool:
    """Whether more than one class of bytes takes much of the peak."""
    least = LEAST_ALIKE * report.simulated_peak_allocated_bytes
    return sum(item.num_bytes >= least for item in report.items) > 1


def _holders(report: PretendReport) -> tuple[Fact, ...]:
    """Say which modules hold most at the peak."""
    owners = [owner.whole for owner in report.owners[:NUM_OWNERS]]
    words = ", ".join(_module(owner) for owner in owners)
    return (Fact("who", words),) if words else ()


def _first(report: PretendReport) -> tuple[Fact, ...]:
    """Say what to change first: of the largest class that can be changed, all of it at most."""
    if report.grows is not None:
        return (Fact("first", "let go of that: .item() of a number, .detach().cpu() of a tensor"),)
    held = max(
        (item for item in report.items if item.name in CHANGES),
        key=lambda item: item.num_bytes,
        default=None,
    )
    if held is None or not held.num_bytes:
        return ()
    words = f"{held.name}: {CHANGES[held.name]}, at most {format_bytes(held.num_bytes)} less"
    return (Fact("first", words),)


def _module(owner: ModuleBytes) -> str:
    many = f" ({owner.num_modules} modules)" if owner.num_modules > 1 else ""
    name = _WRAPPER.sub("", owner.module)
    return f"{name or OUTSIDE}{many} {format_bytes(owner.num_bytes)}"


def _allocator(report: PretendReport) -> tuple[Fact, ...]:
    """Lay what PyTorch's two kinds of segments hold beside one another.

    Said where somebody gave settings, or the other kind would hold less.
    """
    reserved, tensors = report.reserved, report.simulated_peak_allocated_bytes
    native = reserved.simulated_peak_reserved_native_bytes
    expandable = reserved.simulated_peak_reserved_expandable_bytes
    saved = native - expandable
    if not report.allocator and saved < LEAST_SAVED * native:
        return ()
    words = (
        f"expandable segments hold {format_bytes(expandable)}, the default {format_bytes(native)}"
    )
    more = format_bytes(abs(saved))
    if tensors > firm_bytes(report):
        return ()  # and no allocator helps
    if abs(saved) < LEAST_SAVED * native:
        words += ": no difference to speak of"
    else:
        words += f": {more} {'less' if saved > 0 else 'more'} with PYTORCH_ALLOC_CONF={EXPANDABLE}"
    return (Fact("allocator", words),)
