"""What a program keeps in vain: growth, graphs of an evaluation, gradients that nothing uses."""

from collections.abc import Sequence
from pathlib import Path

from brimful.pretend.kept_lines import KeptLine, kept_lines
from brimful.pretend.report_values import PretendReport
from brimful.pretend.scripts import short_line
from brimful.show.summary import Fact
from brimful.units import format_bytes, format_count

NUM_LINES, NUM_MODELS = 2, 4
"""Lines that are named, of those that may keep something."""
LEAST_COPY = 0.04
"""Of the peak, from which models that no optimizer updates are named."""
LEAST_IDLE = 0.02
"""Of the peak, from which gradients that nothing uses are told."""


def grows_facts(report: PretendReport, program: Sequence[str]) -> tuple[Fact, ...]:
    """Say that a longer run takes more, what is left behind, and which lines may keep it."""
    grows = report.grows
    if grows is None:
        return ()
    one = grows.largest
    where = f", made at {short_line(one.line)}" if one.line else ""
    held_by = "" if report.cut is None else report.cut.held_by
    words = f"{format_bytes(grows.num_bytes)} more with every step, which something still holds"
    words += f" (no fragmentation): {one.shape} {one.dtype}{where}"
    full = f"in about step {grows.full_step} of a real run the card is full, by proportion"
    fails = report.at_capacity.failure is None and report.fits is False
    if report.at_capacity.failure is None and not fails:
        words += f"; {full}"
    keepers = _growing(program, one.line, held_by)
    return (*([Fact("fails", full)] if fails else []), Fact("grows", f"{words}{keepers}"))


def graphs_facts(report: PretendReport, program: Sequence[str]) -> tuple[Fact, ...]:
    """Say that an evaluation keeps graphs which no backward pass goes through."""
    unused = report.unused_graphs
    if unused is None:
        return ()
    several = unused.num_forwards > 1
    who = f"{unused.num_forwards} forward passes keep" if several else "a forward pass keeps"
    words = f"{format_bytes(unused.num_bytes)} of the peak {who} for a backward pass that does not"
    where = f" ({short_line(unused.called_at, num_parts=1)})" if unused.called_at else ""
    keepers = _keepers(program, unused.called_at) if several else ""
    words += f" come: torch.no_grad() around {'them' if several else 'it'}{where}"
    return (Fact("graphs", f"{words}{keepers}", words),)


def idle_facts(report: PretendReport) -> tuple[Fact, ...]:
    """Say which model gets gradients that no update uses, where they are more than a little."""
    least = LEAST_IDLE * report.simulated_peak_allocated_bytes
    found = [each for each in report.idle_gradients if each.num_bytes >= least]
    words = " and ".join(
        f"{format_bytes(each.num_bytes)} for {format_count(each.num_parameters)} parameters of "
        f"{each.model}"
        for each in found
    )
    why = "that no optimizer has: torch.no_grad() there saves them, and what its forward keeps"
    return (Fact("idle", f"gradients of {words} {why}"),) if found else ()


def copies_facts(report: PretendReport) -> tuple[Fact, ...]:
    """Say which models and copies of models are held that no optimizer updates, if much."""
    least = LEAST_COPY * report.simulated_peak_allocated_bytes
    found = [each for each in report.not_updated if each.num_bytes >= least]
    words = ", ".join(
        f"{each.model or 'tensors of the sizes of what is trained'} "
        f"{format_bytes(each.num_bytes)}{_made_at(each.line)}"
        for each in found
    )
    return (Fact("copies", f"in no optimizer: {words}"),) if found else ()


def models_facts(report: PretendReport) -> tuple[Fact, ...]:
    """Say what each of several models has at the peak."""
    sizes = [f"{each.name} {format_bytes(each.num_bytes)}" for each in report.models[:NUM_MODELS]]
    words = ", ".join(sizes)
    with_all = f"{words}, each with its state and what its passes left"
    return (Fact("models", with_all, words),) if words else ()


def in_vain_facts(report: PretendReport) -> tuple[Fact, ...]:
    """Say that checkpointing was turned on, and that nothing was computed anew for it."""
    model = report.already.in_vain
    if not model:
        return ()
    if not report.already.is_eval:
        words = f"gradient_checkpointing of {model} is on, and no backward pass computes anew"
        return (Fact("no effect", words),)
    words = f"gradient_checkpointing is on, and off again as {model} is in eval mode"
    short = f"checkpointing, as {model} is in eval mode"
    return (Fact("no effect", f"{words}: model.train() before the loop", short),)


def _made_at(line: str) -> str:
    return f" ({short_line(line, num_parts=1)})" if line else ""


def _growing(program: Sequence[str], made_at: str, held_by: str) -> str:
    """Name the line of a script that keeps what grows; empty where none does.

    ``held_by``: what of the script was seen to hold it; empty: nothing was.
    """
    script = _script_of(program)
    lines = () if script is None else kept_lines(script, of_graphs=False)
    file, _, number = made_at.rpartition(":")
    is_here = script is not None and Path(file).name == script.name
    by_name = [each for each in lines if each.name == held_by]
    by_line = [each for each in lines if is_here and str(each.number) == number]
    found = by_name or by_line or ([] if held_by else lines[:NUM_LINES])
    if held_by and not found:
        return f"; {held_by} holds it"
    return _told(script, found)


def _keepers(program: Sequence[str], called_at: str = "") -> str:
    """Name the lines of a script that add to something in a loop; empty where there are none.

    ``called_at``: the script's line of what is kept: lines behind it come first, the nearest.
    """
    script = _script_of(program)
    lines = () if script is None else kept_lines(script)
    if script is None or not lines:
        return ""
    file, _, number = called_at.rpartition(":")
    most = NUM_LINES
    if number.isdecimal() and Path(file).name == script.name:
        at = int(number)
        lines = tuple(sorted(lines, key=lambda each: (each.number < at, abs(each.number - at))))
        most = 1 if lines[0].number >= at else NUM_LINES
    return _told(script, lines[:most])


def _script_of(program: Sequence[str]) -> Path | None:
    return next((Path(word) for word in program if word.endswith(".py")), None)


def _told(script: Path | None, lines: Sequence[KeptLine]) -> str:
    if script is None or not lines:
        return ""
    told = " or ".join(f":{each.number} ({each.name})" for each in lines)
    return f"; {script.name}{told} keeps what its loop makes"
