"""``brimful pretend --largest NAME``: runs a script with other values of one of its arguments."""

import argparse
import contextlib
import io
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from brimful.cli.pretend_script import (
    Done,
    allocator_of,
    ended_by,
    known_event,
    limits_of,
    name_of,
    pretended_gpu,
)
from brimful.pretend.largest import Argument, Largest, Tried, find_largest, value_in
from brimful.pretend.step_values import ENOUGH_STEPS

if TYPE_CHECKING:
    from brimful.pretend import Run


def largest_of(args: argparse.Namespace, first: Done, argument: Argument) -> tuple[Largest, Done]:
    """Run the script with other values of one of its arguments; what it prints is dropped.

    What is known of a value is said as soon as it is.

    Returns what was found, and the run of the largest value that surely fits, else of the largest
    that may, or of the first where none does.
    """
    from brimful.cli.progress import Progress
    from brimful.pretend.script_errors import refusal_of
    from brimful.pretend.until import until
    from brimful.show.pretend import aim_of, tried_words

    aim = aim_of(first.report)
    done: dict[int, tuple[Sequence[str], Run]] = {argument.value: (first.program, first.run)}

    def told(value: int, tried: Tried) -> None:
        progress.note(f"{argument.flag} {value}: {tried_words(tried, aim)}")

    def run(changed: Sequence[str]) -> Tried:
        value = value_in(changed, argument)
        progress.update(f"{argument.flag} {value}", 0.0)
        pretended, unheard = pretended_gpu(args), io.StringIO()
        with contextlib.redirect_stdout(unheard), contextlib.redirect_stderr(unheard):
            error = ended_by(pretended, changed, limits_of(args, most_steps=most_steps))
        if interrupted.is_asked:  # the script may have taken it for its own
            raise KeyboardInterrupt
        is_short = pretended.cut is not None and not pretended.cut.is_settled
        refused = "its time was over before two steps were whole" if is_short else ""
        if error is not None:
            refused = refusal_of(error, name=name_of(changed))
        if refused:
            progress.note(f"{argument.flag} {value}: {refused}")
            return Tried("no", refused=refused)
        done[value] = changed, pretended
        recording = pretended.recording()
        tried = aim.replayed(recording)._replace(recording=recording)
        told(value, tried)
        return tried

    recording, most_steps = first.run.recording(), None
    if (known := known_event(first)) is not None:
        # Of a script whose steps are alike two say all, and runs of as many can be compared.
        recording, most_steps = until(recording, known), ENOUGH_STEPS
    given = aim.replayed(recording)._replace(recording=recording)
    what = f"running it with other values of {argument.flag}"
    with Progress(what, quiet=args.json) as progress, _Interrupted() as interrupted:
        told(argument.value, given)
        found = find_largest(first.program, argument, run, first=given, aim=aim)
    shown = next((value for value in (found.sure, found.value) if value in done), argument.value)
    if shown == argument.value:
        return found, first
    program, pretended = done[shown]
    report = pretended.report(allocator=allocator_of(args), budget_bytes=args.memory_budget)
    return found, Done(program, pretended, report)


class _Interrupted:
    """Lets whoever interrupts or ends this process have what was found by then.

    A script may catch what is raised in it, and go on.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        with contextlib.suppress(ValueError):  # in a thread that is not the main one
            for each in (signal.SIGINT, signal.SIGTERM):
                self._before[each] = signal.signal(each, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _ask(self, *_: object) -> None:
        self.is_asked = True
        raise KeyboardInterrupt
