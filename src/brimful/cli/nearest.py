"""What is answered where what was asked is refused: the nearest question that can be answered.

The refusal is said first, in its one sentence, and the command ends with its exit code: what is
answered below it is another question, and says which.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from io import StringIO

from brimful.cli.going_together import checked, go_together, tell_planned
from brimful.cli.on_top import Room, room_for
from brimful.cli.output import BAD_INPUT, DOES_NOT_FIT, OUT_OF_TIME
from brimful.cli.parsing import note_once
from brimful.errors import (
    LESS,
    MORE,
    BrimfulError,
    InputError,
    OutOfTimeError,
    UnknownMemoryError,
    UnsupportedError,
)
from brimful.programs.base import Shortened
from brimful.show.stand_in import StandIn, Tried, standing_in
from brimful.show.terminal import speed_hidden
from brimful.techniques.runnable import NUM_DEVICES
from brimful.text.escaping import one_line
from brimful.text.terminal import forget_notes, note, say
from brimful.units import GIB, Labelled, Share

OF_JOBS = frozenset({"estimate", "plan", "rules", "shop", "simulate"})
OF_ONE = frozenset({"estimate", "simulate"})
"""Verbs of one strategy."""
VERBS = OF_JOBS | {"pretend"}
"""Verbs that answer something else where they refuse."""
WRITES = ("output", "page")
"""Flags of files: what is written is what was asked for, or nothing."""

EARLY = "optimizer_in_backward"

Run = Callable[[argparse.Namespace], int]


def answer(verb: str, run: Run, args: argparse.Namespace) -> int:
    """Run a verb; where it refuses, say why and answer the nearest question.

    Raises BrimfulError: it refuses, and nothing near it can be answered.
    """
    typed = dict(vars(args))
    try:
        if verb in OF_JOBS:
            from brimful.cli import diffusion, encoders
            from brimful.cli.least import tell_early

            _take_classes(args)
            diffusion.refuse(args)
            if (code := encoders.tell(args)) is not None:
                return code
            tell_early(args)
        return run(args)
    except (InputError, UnsupportedError, OutOfTimeError) as error:
        if verb not in VERBS or typed["json"]:
            raise
        if not typed.get("model", True):
            typed["model"] = args.model  # as a file named it
        is_late = isinstance(error, OutOfTimeError)
        is_unknown = is_late or isinstance(error, UnknownMemoryError)
        if not error.nearest and not is_unknown:
            raise
        if is_unknown:
            from brimful.cli.bound import tell_bound

            _complain(error)
            tell_bound(_changed(typed, {}), error.nearest)
        else:
            _answer_nearest(verb, run, typed, error)
        return OUT_OF_TIME if is_late else BAD_INPUT


def _answer_nearest(verb: str, run: Run, typed: Mapping[str, object], error: BrimfulError) -> None:
    """Say why a verb refuses, and answer the nearest that it does not.

    Of settings that do not go together the fewest are let go of.
    """
    args = _changed(typed, {})
    together = go_together(typed, error, checked(args)) if verb in OF_ONE else None
    refused = error if together is None else together.refusal
    _complain(refused)
    with speed_hidden(is_hidden="card_memory" in refused.nearest):
        code = _answer_around(run, typed, refused)
    if together is not None and code == DOES_NOT_FIT:
        tell_planned(args)


def _take_classes(args: argparse.Namespace) -> None:
    """Let two classes stand for a score: their head is a row larger, and the loss is small too."""
    if getattr(args, "num_labels", None) == 1:
        args.num_labels = 2
        note_once(
            "--num-labels 2 is taken for 1: a score, whose loss is not run by this version, takes "
            "as much"
        )


def _answer_around(run: Run, typed: Mapping[str, object], error: BrimfulError) -> int:
    """Run with what each refusal names instead, until nothing is refused.

    Where that leads nowhere the bytes of the states are told. Returns the code of what was run.
    """
    from brimful.cli.bound import MAX_CHANGES, tell_bound

    changes: dict[str, object] = {}
    on_top = takes = unlike = ""
    for _ in range(MAX_CHANGES):
        asked = _kept_length(_as_flags(error.nearest, typed), _changed(typed, changes))
        if not asked or not set(asked) <= set(typed) or set(asked) <= set(changes):
            break  # nothing is near, or what was is refused again
        changes |= asked
        near = _changed(typed, changes)
        forget_notes()
        if unlike := error.unlike or _cut_words(asked, changes):
            break
        on_top, takes = error.on_top or on_top, error.takes or takes
        room = room_for(on_top, near)
        if room is not None:
            takes = ""  # what comes on top is counted, or its owner left room for it
            if near.memory_limit is None:
                changes |= {"memory_limit": room.left}
        _head("instead", f"the same {_words(changes)}{_longer(typed, changes)}:")
        _tell_beside(room, _changed(typed, changes), is_early=EARLY in asked)
        try:
            if error.lower:
                return _answer_between(run, typed, changes, error.lower)
            with standing_in(_stand_in(changes, takes, room)):
                return run(_changed(typed, changes))
        except (InputError, UnsupportedError) as refused:
            _complain(refused)
            error = refused
    forget_notes()
    if unlike:
        _head("unknown", f"what {typed['model']} takes: {unlike}; of one as large:")
    if "model" in typed:
        tell_bound(_changed(typed, changes), {})
    return BAD_INPUT


def _answer_between(
    run: Run,
    typed: Mapping[str, object],
    changes: Mapping[str, object],
    lower: Mapping[str, object],
) -> int:
    """Answer by what takes no less than what was asked; where that fits not, by what takes no more.

    Only one of both is printed. ``changes``: ask for the first; ``lower``: what the second has
    instead. Returns the code of what is printed.
    """
    words = _words(changes)
    with redirect_stdout(StringIO()) as printed, standing_in(StandIn(words, MORE)) as judged:
        code = run(_changed(typed, changes))
    if judged and judged[-1].verdict == "UNKNOWN":
        forget_notes()
        under = {**changes, **lower}
        tried = Tried(words.removeprefix("with "), judged[-1].meter)
        _head("instead", f"the same {_words(under)}{_longer(typed, under)}:")
        try:
            with standing_in(StandIn(_words(under), LESS, above=tried)):
                return run(_changed(typed, under))
        except (InputError, UnsupportedError):
            forget_notes()  # the other is an answer, if a weaker one
    say(printed.getvalue(), end="")
    return code


def _stand_in(changes: Mapping[str, object], takes: str, room: Room | None) -> StandIn:
    """Return what is answered instead, and what each GPU has for what comes on top of it."""
    if room is None:
        return StandIn(_words(changes), takes)
    return StandIn(_words(changes), takes, room.counted_bytes, room.card_bytes)


def _tell_beside(room: Room | None, near: argparse.Namespace, *, is_early: bool) -> None:
    """Say what comes on top of what is answered, and what is foregone with what was left out.

    ``room``: what is left for what comes on top; None: nothing does. ``is_early``: whether updates
    inside the backward pass were left out.
    """
    from brimful.cli.least import spared_words

    if room is not None:
        _head("on top", room.words)
    if is_early and (words := spared_words(near)):
        _head("foregone", words)


def _cut_words(asked: Mapping[str, object], changes: Mapping[str, object]) -> str:
    """Say that another model takes no text as long as was asked; empty where it does.

    ``changes``: what was changed, this too; a model among it stands in for another.
    """
    if "model" not in changes or "seq_len" not in asked:
        return ""
    return f"{changes['model']} stands in, and takes texts of {asked['seq_len']} tokens at most"


def _head(label: str, text: str) -> None:
    """Say something above the answer."""
    from brimful.show.summary import Fact
    from brimful.show.terminal import fact_lines

    note("\n".join(map(str, fact_lines([Fact(label, text)]))), heads_answer=True)


def _kept_length(asked: dict[str, object], args: argparse.Namespace) -> dict[str, object]:
    """Keep the length of a text where it is the model's positions that end, and they can be more.

    ``args``: the flags with all that was changed before.
    """
    from brimful.cli.resolved import model_from
    from brimful.models.resized import is_rotary

    if "seq_len" not in asked or not isinstance(args.seq_len, int):
        return asked
    model = model_from(args)
    if asked["seq_len"] != model.max_seq_len or not is_rotary(model):
        return asked
    kept = {name: value for name, value in asked.items() if name not in {"seq_len", "prompt_len"}}
    return {**kept, "max_positions": args.seq_len}


def _as_flags(nearest: Mapping[str, object], typed: Mapping[str, object]) -> dict[str, object]:
    """Return what a refusal names as flags are called: as many GPUs as a strategy is for."""
    from brimful.hardware.names import split_counts

    flags = dict(nearest)
    num = flags.pop(NUM_DEVICES, None)
    gpus = typed.get("gpus")
    if num is not None:
        named = split_counts(gpus).gpu if isinstance(gpus, str) else ""
        flags["gpus" if named else NUM_DEVICES] = f"{num}x{named}"
    return flags


def _changed(typed: Mapping[str, object], changes: Mapping[str, object]) -> argparse.Namespace:
    """Return flags as they were typed, but for some; what a run notes in them is gone."""
    files = dict.fromkeys(name for name in WRITES if name in typed)
    return argparse.Namespace(**{**typed, **files, **changes})


def _words(changes: Mapping[str, object]) -> str:
    told = {name: value for name, value in changes.items() if not isinstance(value, Shortened)}
    given = [_flag(name, value) for name, value in told.items() if value is not None]
    left = [_flag(name, None) for name, value in told.items() if value is None]
    left += [
        flag for line in changes.values() if isinstance(line, Shortened) for flag in line.left_out
    ]
    parts = [f"with {' '.join(given)}"] if given else []
    return " ".join([*parts, *([f"without {' '.join(left)}"] if left else [])])


def _longer(typed: Mapping[str, object], changes: Mapping[str, object]) -> str:
    """Name models like the one that was asked about which take a text as long as was asked."""
    seq_len = typed.get("seq_len")
    if not isinstance(seq_len, int) or not {"seq_len", "max_positions"} & set(changes):
        return ""
    from brimful.models.names import find, longer

    taken = find(str(typed["model"]))
    names = () if taken is None else longer(taken.name, seq_len)
    why = "as YaRN scales them: it has learnt fewer" if "max_positions" in changes else ""
    more = f"as large, and longer: {', '.join(names)}" if names else ""
    said = "; ".join(filter(None, (why, more)))
    return f" ({said})" if said else ""


def _flag(name: str, value: object) -> str:
    if name == "model":
        return f"model {value}"
    if name == "memory_limit" and isinstance(value, Share):
        value = f"{value:.1%}"
    if isinstance(value, Labelled):
        value = f"{value / GIB:g}GB"
    flag = f"--{name.replace('_', '-')}"
    return flag if value is None or value is True else f"{flag} {value}"


def _complain(error: BrimfulError) -> None:
    forget_notes()
    say(f"brimful: {one_line(str(error))}", file=sys.stderr, flush=True)
