"""Runs a script once more whose model is one unit of FSDP, with its blocks as units."""

import argparse
import contextlib
import io

import msgspec

from brimful.cli.pretend_script import Done, allocator_of, ended_by, limits_of, pretended_gpu
from brimful.pretend.step_values import ENOUGH_STEPS


def with_blocks(args: argparse.Namespace, done: Done) -> Done:
    """Return what a script does to memory, and what it would with its blocks sharded one by one.

    Nothing is run where it fits, where no unit is most of its model, or where other values of an
    argument were asked for.
    """
    from brimful.show.pretend import word_of

    unit = done.report.whole_unit
    if args.largest is not None or unit is None or word_of(done.report) == "fits":
        return done
    from brimful.cli.progress import Progress
    from brimful.pretend.sharding_units import by_block
    from brimful.pretend.unit_values import ByBlock

    pretended, unheard = pretended_gpu(args), io.StringIO()
    what = f"running it with each {unit.block} sharded on its own"
    with (
        Progress(what, quiet=args.json),
        by_block(),
        contextlib.redirect_stdout(unheard),
        contextlib.redirect_stderr(unheard),
    ):
        error = ended_by(pretended, done.program, limits_of(args, most_steps=ENOUGH_STEPS))
    is_short = pretended.cut is not None and not pretended.cut.is_settled
    if error is not None or is_short:
        return done
    report = pretended.report(allocator=allocator_of(args), budget_bytes=args.memory_budget)
    if report.whole_unit is not None:  # what it calls is not what was changed
        return done
    held = report.reserved.simulated_peak_reserved_bytes
    told = ByBlock(simulated_peak_reserved_bytes=held, word=word_of(report))
    unit = msgspec.structs.replace(unit, by_block=told)
    return done._replace(report=msgspec.structs.replace(done.report, whole_unit=unit))
