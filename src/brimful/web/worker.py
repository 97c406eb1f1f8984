"""A process that answers: ``python -m brimful.web.worker``. Lines of JSON in, lines of JSON out.

It runs in an empty folder of its own, so that no name that somebody types is a path to anything,
and the hub is asked by it only where a question says so. One question at a time. A question that
takes too long ends the process, and so does a job whose asker has gone; a fault of ours does not.
"""

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from brimful.errors import BrimfulError
from brimful.text.escaping import one_line
from brimful.web.state import PROGRAM, State, arguments, command, fields_of, read_state
from brimful.web.words import Words, words_of

Event = dict[str, Any]
Tell = Callable[[Event], None]
_OFFLINE, _NO_TOKEN = "HF_HUB_OFFLINE", "HF_HUB_DISABLE_IMPLICIT_TOKEN"
"""The hub is asked as nobody in particular: the page must not show what only its host may see."""


def main() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else may write between the lines
    folder = tempfile.mkdtemp(prefix="brimful-web-")
    os.environ[_NO_TOKEN] = "1"
    os.chdir(folder)
    try:
        # Import what answers, and answer once, so that the first question waits for nothing.
        from brimful.web.answers import answer

        answer(read_state({}), "replayed", words_of("en"))
        _tell(answers, {"event": "ready"})
        for line in sys.stdin:
            _answer(json.loads(line), lambda event: _tell(answers, event))
            _tell(answers, {"event": "end", "is_heavy": "torch" in sys.modules})
            _empty(Path(folder))
    except BrokenPipeError:
        return  # the server has gone
    finally:
        os.chdir("/")
        shutil.rmtree(folder, ignore_errors=True)


def _tell(answers: IO[str], event: Event) -> None:
    from brimful.text.escaping import json_text

    answers.write(json_text(event) + "\n")


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()


def _answer(request: dict[str, Any], tell: Tell) -> None:
    """Answer one request; what is refused is an answer too, and so is a fault of ours."""
    try:
        _refusing(request, tell)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - whoever asks next must be answered
        _log(error)
        tell({"event": "refused", "text": _FAULT})


_FAULT = "this question met a fault of ours, which the log of the server names; ask another"


def _log(error: Exception) -> None:
    """Write where a fault is, and nothing of what was asked."""
    lines = traceback.format_tb(error.__traceback__)
    sys.stderr.write("".join(["Traceback (most recent call last):\n", *lines]))
    sys.stderr.write(f"{type(error).__name__}, of a question that is not written here\n")


def _refusing(request: dict[str, Any], tell: Tell) -> None:
    try:
        words = words_of(request.get("language", "en"))
        state = read_state(request["query"])
        # Say whether the hub's client may ask it, to one that was imported before too.
        allowed = "hub" in state.given
        os.environ[_OFFLINE] = "0" if allowed else "1"
        constants = sys.modules.get("huggingface_hub.constants")
        if constants is not None:
            constants.HF_HUB_OFFLINE = not allowed  # type: ignore[attr-defined]
        _OPERATIONS[request["do"]](state, request, words, tell)
    except BrimfulError as error:
        tell({"event": "refused", "text": one_line(str(error))})
    except ModuleNotFoundError as error:
        tell({"event": "refused", "text": _missing(error)})


def _missing(error: ModuleNotFoundError) -> str:
    from brimful.cli.main import EXTRAS

    name = (error.name or "").partition(".")[0]
    extra = next((extra for extra, names in EXTRAS.items() if name in names), None)
    if extra is None:
        raise error
    return f"this needs {name} where the page is served; pip install 'brimful[{extra}]' there"


def _ask(state: State, request: dict[str, Any], words: Words, tell: Tell) -> None:
    from brimful.web.answers import answer

    tell({"event": "answer", "part": answer(state, request["stage"], words)})


def _sweep(state: State, request: dict[str, Any], words: Words, tell: Tell) -> None:
    from brimful.web.sweep_plot import sweep_figure
    from brimful.web.sweeps import sweep

    found = sweep(state, request["axis"])
    points = [point._asdict() for point in found.points]
    tell({
        "event": "sweep", "html": sweep_figure(found, state, words), "points": points,
        "breaks_at": found.breaks_at,
    })  # fmt: skip


def _why(state: State, request: dict[str, Any], words: Words, tell: Tell) -> None:
    from brimful.web import why

    html = why.rules(state) if request["what"] == "rules" else why.reasons(state, words)
    tell({"event": "html", "html": html})


def _compare(state: State, request: dict[str, Any], words: Words, tell: Tell) -> None:
    from brimful.web.compare import compared

    tell({"event": "html", "html": compared(state, read_state(request["other"]), words)})


def _take(state: State, request: dict[str, Any], _words: Words, tell: Tell) -> None:
    from brimful.web import why

    if request["target"] == why.REPORT:
        tell({"event": "file", "text": why.report_of(why.plan_of(state), None)})
        return
    exported = why.taken_along(state, request["target"])
    tell({"event": "file", "text": exported.text, "lost": why.lost_words(exported)})


def _market(state: State, _request: dict[str, Any], words: Words, tell: Tell) -> None:
    from brimful.web.market import offer_row, offers, offers_table

    tell({"event": "table", "html": offers_table(words, words["market.caption"])})
    for offer in offers(state):
        told = {**offer._asdict(), "state": fields_of(offer.state)}
        tell({"event": "row", "html": offer_row(offer, words), "offer": told})


class _Lines(io.TextIOBase):
    """A stream whose lines are told as they are written."""

    def __init__(self, kind: str, tell: Tell) -> None:
        self._kind, self._tell, self._rest = kind, tell, ""

    def write(self, text: str) -> int:
        """Tell whole lines, and keep the last until it is whole."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._tell({"event": self._kind, "text": line.removeprefix("brimful: ")})
        return len(text)

    def isatty(self) -> bool:
        """Nobody sees a bar."""
        return False


def _run_verb(state: State, request: dict[str, Any], words: Words, tell: Tell) -> None:
    """Run a verb of the command line, whose lines are told as they come, and its answer at last."""
    from brimful.cli import nearest
    from brimful.cli.main import parse
    from brimful.text.terminal import forget_notes
    from brimful.web.answers import header
    from brimful.web.models import find_model

    verb = request["verb"]
    forget_notes()
    args = parse(verb, arguments(state, find_model(state).argument, verb=verb))
    args.output = Path(_FILES[verb]) if verb in _FILES else None
    typed = command(state, verb=verb)

    def take(answer: Any) -> None:
        html = header(answer.summary, answer.facts, typed, words, level=3)
        tell({"event": "answer", "part": {"verdict": answer.summary.verdict, "html": html}})

    is_told = False

    def told(event: Event) -> None:
        """Tell an event; with the first line of a plan its settings, which are written by then."""
        nonlocal is_told
        tell(event)
        if verb == "plan" and not is_told:
            for made in _made(verb, state):
                is_told = True
                tell(made)

    args.page = take
    with (
        contextlib.redirect_stdout(_Lines("text", told)),
        contextlib.redirect_stderr(_Lines("note", tell)),
    ):
        nearest.answer(verb, import_module(f"brimful.cli.{verb}").run, args)
    for event in _made(verb, state):
        tell(event)


_FILES = {"plan": "plan.yaml", "simulate": "simulation.json"}


def _made(verb: str, state: State) -> Iterator[Event]:
    """Yield what a verb has written: the settings of a plan, the sections of a simulation."""
    path = Path(_FILES.get(verb, ""))
    if verb == "plan" and path.is_file():
        from brimful.cli.resolved import Asked
        from brimful.values.plan import read_plan
        from brimful.web.taken import taken

        plan = read_plan(path)
        fields = state.changed(**taken(Asked(plan.job, plan.cluster, plan.strategy)))
        if PROGRAM in state.given:  # which may train in another recipe than ours
            fields = fields.changed(precision=plan.job.precision)
        yield {"event": "plan", "query": fields_of(fields), "yaml": path.read_text("utf-8")}
    if verb == "simulate" and path.is_file():
        import msgspec

        from brimful.report.html import sections_of
        from brimful.show import markup
        from brimful.values.results import Simulation
        from brimful.web import why

        simulation = msgspec.json.decode(path.read_bytes(), type=Simulation)
        plan = why.plan_of(state)
        folder = why.folder_of(plan, simulation)
        left_out = {"inputs", "provenance", "ledger", "breakdown", "pipeline", "step-time"}
        drawn = [markup.section(*each) for each in sections_of(folder) if each[0] not in left_out]
        yield {"event": "sections", "html": markup.join(drawn)}
        yield {"event": "report", "text": why.report_of(plan, simulation)}


_OPERATIONS: dict[str, Callable[[State, dict[str, Any], Words, Tell], None]] = {
    "ask": _ask,
    "sweep": _sweep,
    "why": _why,
    "compare": _compare,
    "take": _take,
    "market": _market,
    "verb": _run_verb,
}


if __name__ == "__main__":
    main()
