"""A question and its answer: the summary that the command line prints, as a part of a page.

An answer comes in stages, each better than the one before: live tensors by arithmetic at once, then
the replay of the allocator, then what else is to be known, such as what would make it fit.
"""

import argparse
import contextlib
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from brimful.cli import inference, nearest, resolved
from brimful.cli.assumed import assumed_facts, prices_from, run_of
from brimful.cli.main import parse
from brimful.cli.output import estimate_json
from brimful.errors import BrimfulError
from brimful.measure.verdict import Climbed
from brimful.report.answer import answer_header
from brimful.report.html import figure_list
from brimful.report.memory_sections import peak_section
from brimful.show import markup
from brimful.show.markup import Html
from brimful.show.summary import Fact, Summary
from brimful.text.escaping import one_line
from brimful.text.terminal import forget_notes, noted
from brimful.units import format_bytes, format_money, format_seconds
from brimful.web.models import find_model
from brimful.web.state import State, arguments, command
from brimful.web.taken import spelled_fields, taken
from brimful.web.words import Words

if TYPE_CHECKING:
    from brimful.show.estimate import Around
    from brimful.values.plan import Estimate

Stage = Literal["tensors", "replayed", "whole"]
Part = dict[str, Any]
"""What the page's script gets: JSON, with markup that is escaped already under ``html``."""
_BILLION = 1e9


def answer(state: State, stage: Stage, words: Words) -> Part:
    """Answer a question.

    Returns the answer; where it is refused, why.
    """
    forget_notes()
    try:
        found = find_model(state)
        if found.unread:
            return {"untold": found.unread, "command": command(state)}
        args = parse("estimate", arguments(state, found.argument))
        noting = [found.note] if found.note else []
        part = _refusing(state, args, stage, words)
    except BrimfulError as error:
        return {"refused": one_line(str(error)), "command": command(state)}
    return {**part, "notes": [*noting, *part.get("notes", [])], "command": command(state)}


def _refusing(state: State, args: argparse.Namespace, stage: Stage, words: Words) -> Part:
    """Answer; in the last stage what is refused is answered by the nearest question."""
    if stage != "whole":
        return answered(args, command(state), stage, words)
    parts: list[Part] = []
    asked = dict(vars(args))

    def run(near: argparse.Namespace) -> int:
        typed = command(state, changes=_changes(asked, near))
        parts.append({**answered(near, typed, stage, words), "command": typed})
        return 0

    printed, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
        code = nearest.answer("estimate", run, args)
    if code == 0:
        return parts[0]
    refusals = [line.removeprefix("brimful: ") for line in told.getvalue().splitlines() if line]
    near = parts[-1] if parts else {}
    return {
        "refused": " ".join(refusals),
        "nearest": {**near, "text": printed.getvalue()},
    }


def _changes(asked: dict[str, Any], near: argparse.Namespace) -> dict[str, Any]:
    """List the flags in which another question differs; files that a verb writes are none."""
    return {
        key: value
        for key, value in vars(near).items()
        if key in asked and asked[key] != value and key not in nearest.WRITES
    }


def answered(args: argparse.Namespace, typed: str, stage: Stage, words: Words) -> Part:
    """Answer what is not refused.

    Raises BrimfulError: it is.
    """
    if inference.is_asked(args):
        return _inference(args, typed, words)
    asked = resolved.asked(args)
    from brimful.cost.formula import missing_formula, told_short

    untold = missing_formula(asked.job, asked.strategy, asked.cluster.device)
    if untold:
        return {"untold": told_short(untold)}
    from brimful.cost.estimate import estimate

    predicted = estimate(*asked)
    if stage != "tensors":
        from brimful.cost.reserved import predicted_reserved

        reserved = predicted_reserved(*asked)
        predicted = msgspec.structs.replace(predicted, predicted_reserved=reserved)
    from brimful.show.estimate import estimate_summary

    around, fix = _around(args, asked, predicted, stage)
    summary = estimate_summary(*asked, predicted, around)
    return {
        "verdict": summary.verdict,
        "memory": _memory(summary),
        "html": header(summary, assumed_facts(args, asked.job, is_whole=True), typed, words),
        "detail": markup.join(_drawn(args, asked, predicted, words)),
        "notes": _notes(),
        "settings": settings_of(asked),
        "fix": fix,
        "values": estimate_json(
            asked, predicted, usable_bytes=predicted.usable_bytes, fits=summary.verdict == "FITS"
        ),
    }


def _notes() -> list[str]:
    return [" ".join(note.removeprefix("brimful: ").split()) for note in noted()]


def _around(
    args: argparse.Namespace, asked: resolved.Asked, predicted: "Estimate", stage: Stage
) -> "tuple[Around, dict[str, str] | None]":
    """Find what is said beside a prediction, what takes long only in the last stage.

    Returns what is said, and the fields of what would make it fit; None: nothing is known of that.
    """
    from brimful.cli.fixes import NO_FIXES, fixes_of
    from brimful.show.estimate import Around
    from brimful.show.predicted import verdict_of
    from brimful.show.stages import stage_facts

    run = run_of(args, asked, predicted, predicted.predicted_step_s)
    if stage != "whole":
        return Around(run, (), (), (), is_compared=False), None
    from brimful.search.beside import beside

    others = beside(asked.job, asked.cluster, asked.strategy)
    fixes = NO_FIXES if verdict_of(predicted) == "FITS" else fixes_of(asked, others)
    fix = None if fixes.found is None else taken(asked._replace(strategy=fixes.found.strategy))
    return Around(run, fixes.facts, stage_facts(*asked), fixes.others(others)), fix


def _drawn(
    args: argparse.Namespace, asked: resolved.Asked, predicted: "Estimate", words: Words
) -> Iterator[Html]:
    """Yield what is drawn below: large figures, how far such are off, memory by item."""
    yield figure_list(_figures(args, asked, predicted, words))
    yield off_by(words, "allocated unseen", "speed test")
    peak = peak_section(Climbed(predicted, None, None, predicted.usable_bytes))
    if peak is not None:
        heading = markup.text(words["peak.title"])
        yield Html(f'<h2 class="part-title">{heading}</h2>{peak}')


def header(
    summary: Summary, facts: tuple[Fact, ...], typed: str, words: Words, *, level: int = 1
) -> Html:
    """Set what an answer says first, with its labels in the page's language."""
    named = summary._replace(facts=tuple(map(words.labelled, summary.facts)))
    return answer_header(named, map(words.labelled, facts), typed, level=level)


def _memory(summary: Summary) -> str:
    """Say what is needed of what there is, for where there is room for nothing else."""
    meter = summary.meter
    if meter is None:
        return ""
    return f"{format_bytes(meter.used_bytes)} / {format_bytes(meter.usable_bytes)}"


def _figures(
    args: argparse.Namespace, asked: resolved.Asked, predicted: "Estimate", words: Words
) -> list[tuple[str, str, str]]:
    """List what is asked first: memory, speed, time and money, each with its kind."""
    from brimful.cost.money import cost_of

    kind, step_s = words["kind.predicted"], predicted.predicted_step_s
    cost = cost_of(asked.job, asked.cluster, step_s, prices_from(args))
    peak = format_bytes(predicted.predicted_peak_allocated_bytes)
    figures = [(words["figure.peak"], peak, kind)]
    reserved = predicted.predicted_reserved
    if reserved is not None:
        held = format_bytes(reserved.predicted_unhindered_bytes)
        figures.append((words["figure.reserved"], held, kind))
    if step_s is not None:
        if predicted.tokens_per_s is not None:
            figures.append((words["figure.speed"], f"{predicted.tokens_per_s:,.0f}", kind))
        figures.append((words["figure.step"], format_seconds(step_s), kind))
    if cost.usd is not None and cost.num_tokens:
        each = format_money(cost.usd * _BILLION / cost.num_tokens)
        figures.append((words["figure.money"], each, f"{kind}, {cost.usd_per_gpu_hour:.2f} USD/h"))
    return figures


def off_by(words: Words, *kinds: str) -> Html:
    """Say how far such numbers were off on published runs, with the page that says all of it."""
    from brimful.web.accuracy import sentence

    said = "; ".join(sentence(kind, words) for kind in kinds)
    more = markup.text(words["accuracy.link"])
    href = f"/accuracy?lang={words.language}"
    return Html(f'<p class="note off-by">{markup.text(said)} <a href="{href}">{more}</a></p>')


def settings_of(asked: resolved.Asked) -> dict[str, str]:
    """Return what every field of the form stands at, where nothing is typed in it."""
    job, strategy = asked.job, asked.strategy
    named = {
        "seq_len": job.seq_len,
        "global_batch": job.global_batch,
        "precision": job.precision,
        "optimizer": job.optimizer,
        "packing": job.packing,
        "lora_rank": "" if job.adapter is None else job.adapter.rank,
        "base": "" if job.adapter is None else job.adapter.base,
    }
    settings = {key: str(value) for key, value in named.items()}
    return {**settings, **spelled_fields(strategy)}


def _inference(args: argparse.Namespace, typed: str, words: Words) -> Part:
    """Answer for a model that is loaded to write text, as ``brimful estimate`` does."""
    from brimful.report.answer import laid_out
    from brimful.web.written import defaults_of, usd_of_tokens, written

    told = written(args)
    given, (job, cluster) = told.answer, told.asked
    kind = words["kind.predicted"]
    figures = []
    if given.summary.meter is not None:
        peak = format_bytes(given.summary.meter.used_bytes)
        figures.append((words["figure.peak"], peak, kind))
    if told.tokens_per_s is not None:
        figures.append((words["figure.most"], f"{told.tokens_per_s:,.0f}", kind))
    usd = usd_of_tokens(args, cluster, told.tokens_per_s)
    if usd is not None:
        figures.append((words["figure.least"], format_money(usd), kind))
    tables = markup.join(laid_out(given.tables))
    return {
        "verdict": given.summary.verdict,
        "memory": _memory(given.summary),
        "html": header(given.summary, given.facts, typed, words),
        "detail": markup.join([figure_list(figures), tables]),
        "notes": _notes(),
        "settings": defaults_of(job),
        "values": {"verdict": given.summary.verdict, "facts": list(given.summary.facts)},
    }
