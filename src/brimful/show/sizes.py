"""Of which size of its own argument a program would fit, or how to find that out."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from brimful.allocator.config import parse_settings
from brimful.pretend.combined import combined
from brimful.pretend.largest import Largest, counted
from brimful.pretend.proportion import Argument, Batch, Proportion, Room, batch_of, proportion_of
from brimful.pretend.raising import raised
from brimful.pretend.recording import Recording
from brimful.pretend.remedies import Mended
from brimful.pretend.report_values import PretendReport
from brimful.pretend.scripts import written_in
from brimful.show.pretend import firm_bytes, word_of
from brimful.show.summary import AS_FAR, Fact
from brimful.units import format_bytes
from brimful.values.results import EVAL, GRADIENTS, LOAD

_NUM_RAISING = 2
"""Changes that are named beside a largest value."""
_AS_GOOD = 0.99
"""Of a number: the number."""
_OF_BATCH, _BATCHES = "batch", "batches"
"""What stands in the name of an argument that says how large a batch is, or how many there are."""


def largest_facts(
    report: PretendReport,
    program: Sequence[str],
    found: Largest | None,
    recording: Recording | None = None,
) -> tuple[Fact, ...]:
    """Say of which size of its own argument a program would fit, or how to find that out.

    ``found``: the largest value that fits; None: it was not looked for. ``recording``: of the
    program: how much of its batch would fit by proportion; None: not told.
    """
    if found is not None:
        words = _largest_words(found, is_bound=bool(report.unknown_ops))
        more = () if recording is None else _raised(report, program, found, recording)
        return (Fact("largest", words), *more)
    names = _sizes(program)
    if word_of(report) == "fits" or report.is_between_steps:
        return ()
    about = None if recording is None else _proportion(report, program, recording)
    if about is not None:
        return (_about(about),)
    if not names:
        return ()
    words = f"--largest {names[0]} before -- finds the largest {names[0]} that fits"
    short = f"--largest {names[0]} before -- finds the largest that fits"
    return (Fact("sizes", words, short),)


def mended_facts(report: PretendReport, program: Sequence[str], mended: Mended) -> tuple[Fact, ...]:
    """Say what is left once a named fault is mended, whether that fits, and which batch does."""
    without = report.without
    if without is None or word_of(report) == "fits":
        return ()
    room = format_bytes(report.at_capacity.capacity_bytes)
    least, most = without.least_bytes, without.most_bytes
    if without.fits:
        fits = "which fits" if most <= firm_bytes(report) else "which fits (TIGHT)"
        return (Fact("without", f"{_bounds(least, most)} of {room} without that, {fits}"),)
    if without.fits is False:
        words = f"at least {format_bytes(least)} of {room} without that, which does not fit"
        words += "; fewer rows at once, too" if report.is_between_steps else ""
    else:
        words = f"{_bounds(least, most)} of {room} without that, which may not fit"
    if report.is_between_steps:
        return (Fact("without", words),)
    upper, lower = (_proportion(report, program, each) for each in (mended.least, mended.most))
    if upper is not None and lower is not None:  # what takes least goes with the largest batch
        found = upper._replace(least=min(lower.least, upper.most), is_sure=lower.is_sure)
        words += f"; {_about(found).text.partition(';')[0]}"
    return (Fact("without", words),)


def _bounds(least: int, most: int) -> str:
    """Say between what a number lies; the most alone where the least is little less."""
    is_one = least > _AS_GOOD * most
    return format_bytes(most) if is_one else f"{format_bytes(least)} to {format_bytes(most)}"


def combined_facts(
    report: PretendReport, program: Sequence[str], recording: Recording
) -> tuple[Fact, ...]:
    """Say with which changes together a training would fit that does not."""
    trains = any(state.name == GRADIENTS for state in report.states)
    failure = report.at_capacity.failure
    is_kept = report.grows is not None or report.unused_graphs is not None
    if failure is None or not trains or is_kept or not _is_of_steps(report):
        return ()
    batch = _batch(program, recording)
    if batch is None:
        return ()
    again = report.already.checkpointed_bytes > 0
    found = combined(recording, batch, _room(report), is_checkpointed=again)
    if found is None:
        return ()
    size = f"a batch of {found.num}"
    if found.num < batch.given:
        size += f" in place of {_named(batch)}"
    told = f"{' and '.join(found.changes)}, with {size}"
    words = f"with {told}: {format_bytes(found.reserved_bytes)}, by proportion"
    return (Fact("would fit", words),)


def _raised(
    report: PretendReport, program: Sequence[str], found: Largest, recording: Recording
) -> tuple[Fact, ...]:
    """Say which changes would raise what was found, those that do most."""
    name = found.flag.removeprefix("--")
    of_it = [Argument(key, int(text)) for key, text in _numbers(program) if key == name]
    batch = batch_of(recording, of_it)
    if batch is None or not _is_of_steps(report):
        return ()
    again = report.already.checkpointed_bytes > 0
    ways = raised(recording, batch, _room(report), is_checkpointed=again)
    peak = format_bytes(report.simulated_peak_allocated_bytes)
    told = (
        f"{way.change} to about {way.num}"
        + (f" ({format_bytes(way.num_bytes)} of the peak's {peak})" if way.num_bytes else "")
        for way in ways[:_NUM_RAISING]
    )
    words = "; ".join(told)
    return (Fact("raise", f"{words}, each alone, by proportion"),) if words else ()


def _is_of_steps(report: PretendReport) -> bool:
    """Whether it is a step of training that fails: no loading, no evaluation, no other pass."""
    failure = report.at_capacity.failure
    phases = {report.peak_phase, "" if failure is None else failure.tensor.phase}
    if report.is_between_steps:
        return False
    return not any(phase == LOAD or phase.endswith(EVAL) for phase in phases)


def _room(report: PretendReport) -> Room:
    at = report.at_capacity
    return Room(parse_settings(report.allocator), firm_bytes(report), at.capacity_bytes)


def _proportion(
    report: PretendReport, program: Sequence[str], recording: Recording
) -> Proportion | None:
    """Return how much of its batch a program would fit with; None: it ends in loading."""
    if report.peak_phase == LOAD:
        return None
    batch = _batch(program, recording)
    return None if batch is None else proportion_of(recording, batch, _room(report))


def _batch(program: Sequence[str], recording: Recording) -> Batch | None:
    """Return the batch of a program, as an argument says it, its text or its tensors."""
    written = (each for each in written_in(program[0]) if _says_batch(each[0].lower()))
    constants = [Argument(name, value) for name, value in written]
    return batch_of(recording, _batches(program), constants, by_tensors=True)


def _named(batch: Batch | Proportion) -> str:
    return f"{batch.constant} = {batch.given}" if batch.constant else f"{batch.given}"


def _about(found: Proportion) -> Fact:
    """Say a proportion; a range where it is not seen whether something grows with the batch."""
    least, most = found.least, found.most
    if not found.names:
        return Fact("batch", _about_rows(found))
    name, names = found.names[0], " or ".join(found.names)
    if not most:
        words = f"by proportion not even {names} 1 fits"
        return Fact("sizes", f"{words}; --largest {name} before -- tries it", words)
    num = f"{least} to {most}" if 0 < least < most else f"{most}"
    num += "" if found.is_sure else " (TIGHT)"
    about = f"about {names} {num}" if least else f"{names} at most {num}"
    words = f"{about} by proportion; --largest {name} before -- finds it"
    return Fact("sizes", words, f"{about}, by proportion (--largest finds it)")


def _about_rows(found: Proportion) -> str:
    """Say a proportion of a batch that no argument says."""
    least, most = found.least, found.most
    if not most:
        return f"by proportion not even one of 1 fits, in place of {_named(found)}"
    num = f"{least} to {most}" if 0 < least < most else f"{most}"
    tight = "" if found.is_sure else " (TIGHT)"
    about = "about" if least else "at most"
    return f"{about} {num}{tight} in place of {_named(found)}, by proportion"


def _batches(program: Sequence[str]) -> Iterator[Argument]:
    """List what may say how large the batch of a program is: typed, or its text's own default."""
    typed = _numbers(program)
    yield from (Argument(name, int(text)) for name, text in typed if _says_batch(name))
    told = {name for name, _ in typed}
    for flag, default in counted(program):
        if _says_batch(flag) and (name := flag.removeprefix("--")) not in told:
            yield Argument(name, default)


def _says_batch(name: str) -> bool:
    return _OF_BATCH in name and _BATCHES not in name


def _numbers(program: Sequence[str]) -> list[tuple[str, str]]:
    """List the arguments of a program that are given whole numbers."""
    found = []
    for word, following in pairwise([*program[1:], ""]):
        key, is_joined, value = word.partition("=")
        text = value if is_joined else following
        if key.startswith("--") and text.isdecimal():
            found.append((key.removeprefix("--"), text))
    return found


def _largest_words(found: Largest, *, is_bound: bool) -> str:
    """Say which value fits; who left kernels out is sure of nothing."""
    runs = _runs_words(found)
    if found.is_idle:
        return f"{found.flag} changes nothing in memory; {runs}"
    if found.value is None and not found.is_whole:
        return f"{found.flag} {found.beyond} does not fit; {runs}"
    if found.value is None:
        least = f": even {found.beyond} needs {format_bytes(found.beyond_bytes)}"
        which = f"{found.flag} that was tried" if found.refused else found.flag
        return f"no {which} fits{least if found.beyond_bytes else ''}; {runs}"
    beyond = "" if found.beyond is None else f", {found.beyond} does not"
    if found.above is not None:
        beyond += f", though {found.above} does, where blocks of the allocator fall otherwise"
    if found.refused:
        beyond = f"; with {found.beyond} {found.refused}"
    if found.sure == found.value:
        fits = f"fits{AS_FAR if is_bound else ''}"
        return f"{found.flag} {found.value} {fits}{beyond}; {runs}"
    more = f"{found.value} may fit (TIGHT){beyond}; {runs}"
    if found.sure is None:
        return f"no {found.flag} that was tried surely fits; {more}"
    fits = f"fits{AS_FAR}" if is_bound else "surely fits"
    return f"{found.flag} {found.sure} {fits}; {more}"


def _runs_words(found: Largest) -> str:
    """Say by how much work a value was found, and whether there was more to do."""
    if not found.num_runs and found.is_whole:
        return "nothing else was run"
    runs = f"found in {found.num_runs} more run{'' if found.num_runs == 1 else 's'}"
    if found.num_replays:
        runs += " and replays of others"
    if found.is_whole:
        return runs
    return f"{runs}, interrupted: {'the best so far' if found.value else 'nothing less was tried'}"


def _sizes(program: Sequence[str]) -> list[str]:
    """Name the arguments of a program that are given whole numbers, the largest first.

    Where none is, that of its batch, if its own text has one with a default. Of one that is 1
    there is nothing less.
    """
    found = [(-int(text), name) for name, text in _numbers(program) if int(text) > 1]
    batches = (name for name, value in counted(program) if _says_batch(name) and value > 1)
    return [name for _, name in sorted(found)] or [name.removeprefix("--") for name in batches]
