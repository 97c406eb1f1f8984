"""What a unit of FSDP that is most of a model takes at once, and what its blocks would."""

from brimful.pretend.report_values import PretendReport
from brimful.pretend.unit_values import WholeUnit
from brimful.show.summary import Fact
from brimful.units import format_bytes, format_count

_LEAST_TOLD = 0.02
"""Of the peak, which a unit has whole where something is said of it."""
_OF_FSDP2 = "fully_shard"


def unit_facts(report: PretendReport) -> tuple[Fact, ...]:
    """Say how much is gathered and reduced at once, and what smaller units would save."""
    unit, peak = report.whole_unit, report.simulated_peak_allocated_bytes
    if unit is None or unit.most_saved_bytes < _LEAST_TOLD * peak:
        return ()
    share = f"{format_count(unit.num_parameters)} of {format_count(unit.all_parameters)} parameters"
    words = f"one FSDP unit holds {share}: {format_bytes(unit.gathered_bytes)} are gathered"
    if unit.reduced_bytes:
        words += f" and {format_bytes(unit.reduced_bytes)} reduced"
    words += " at once"
    less = f"saves at most {format_bytes(unit.most_saved_bytes)}"
    if (told := unit.by_block) is None:
        return (Fact("units", f"{words}; {_change(unit)} {less}"),)
    if told.word == "no":
        held = format_bytes(told.simulated_peak_reserved_bytes)
        return (Fact("units", f"{words}; {_change(unit)}: {held}, simulated, which is too much"),)
    return (Fact("units", words),)


def unit_ways(report: PretendReport) -> tuple[Fact, ...]:
    """Say that a program would fit whose blocks are units, where that was simulated."""
    unit = report.whole_unit
    if unit is None or (told := unit.by_block) is None or told.word == "no":
        return ()
    held = f"{format_bytes(told.simulated_peak_reserved_bytes)}, simulated"
    if told.word == "tight":
        return (Fact("may fit", f"with {_change(unit)}: TIGHT, {held}"),)
    return (Fact("would fit", f"with {_change(unit)}: {held}"),)


def _change(unit: WholeUnit) -> str:
    """Name the change to a script's text."""
    where = f"{unit.block} ({unit.path})"
    if unit.call == _OF_FSDP2:
        return f"{_OF_FSDP2} on each {where} before that"
    return f"auto_wrap_policy=ModuleWrapPolicy({{{unit.block}}}) ({unit.path})"
