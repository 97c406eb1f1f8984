"""Ask Brimful for figures that people published, and write what it says beside them.

``python validation/blind_asked.py FILE --into asked`` asks every row of a file of such figures, by
the command line, the schema or the script that the row says, and rewrites the file. A row is asked
once under one name: what was said first stays.
"""

import argparse
import contextlib
import io
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from brimful.cli.main import main as run_brimful
from brimful.units import GIB

KINDS = ("live_gib", "reserved_gib", "process_gib", "tokens_per_s")
SPEEDS = ("tokens_per_s", "simulated_tokens_per_s", "predicted_tokens_per_s")
SPEED, UNLIKE = "tokens_per_s", "speed_unlike"
"""A row with the second says why the first is of another program than was asked for: it is asked,
and not counted."""
FIRST = "asked"
SIMULATE = "brimful simulate"
SCRIPTS = Path(__file__).parent / "blind" / "scripts"
ENGINE = "use engine=deepspeed"
OWN_CODE = "simulate --for deepspeed"
PROGRAM = ("--engine", "deepspeed")
Row = dict[str, Any]


def main(argv: list[str] | None = None) -> None:
    """Ask, write and count."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--into", default=FIRST, help="the field that what is said goes into")
    parser.add_argument("--only", default="", help="rows whose names begin like this")
    told = parser.parse_args(argv)
    rows = [json.loads(line) for line in told.file.read_text().splitlines()]
    for row in rows:
        if told.into not in row and row["id"].startswith(told.only):
            row[told.into] = _beside(row["figures"], _said(row, told.into))
            print(row["id"], json.dumps(row[told.into]), flush=True)
    told.file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for complete in (True, False):
        print("complete configurations" if complete else "of these and all others")
        kept = [row for row in rows if told.into in row]
        _count([row for row in kept if row["complete"] or not complete], told.into)


def _said(row: Row, into: str) -> Row:
    """Ask a row; later than the first time in other words, where it says such (``anew``).

    What a script does not tell, its speed, is then by the words of the first time, or by those that
    ``speed_flags`` has.
    """
    anew = row.get("anew", {}) if into != FIRST else {}
    if anew.get("by") == "script":
        of_script = ask(row | anew)
        by_words = row | {"flags": anew.get("speed_flags", row.get("flags"))}
        return ask(by_words) | {
            kind: value for kind, value in of_script.items() if value is not None
        }
    return ask(row | anew)


def ask(row: Row) -> Row:
    """Return what Brimful says of a row: by a schema, a script or a command, as the row has it."""
    with tempfile.TemporaryDirectory() as folder:
        if row["by"] == "published":
            return _by_schema(row["run"], Path(folder))
        if row["by"] == "script":
            return _by_script(row)
        return _by_command(row, Path(folder))


def _by_schema(run: Row, folder: Path) -> Row:
    """Ask ``brimful validate``, which traces what does not ship."""
    file = folder / "runs.jsonl"
    file.write_text(f"{json.dumps(run)}\n")
    told, reason = _answer("validate", "--file", str(file), "--trace", "--runs", "--json")
    if told is None:
        return {"reason": reason}
    (row,) = told["runs"]
    return {
        "reason": row.get("reason", ""),
        "live_gib": row.get("predicted_allocated_gib"),
        "reserved_gib": row.get("likely_reserved_gib"),
        "process_gib": row.get("likely_process_gib"),
        "tokens_per_s": row.get("predicted_tokens_per_s"),
    }


def _by_script(row: Row) -> Row:
    """Ask ``brimful pretend`` of a script that was written after the description of a run."""
    name, *arguments = row["script"].split()
    command = (*row.get("launcher", "").split(), str(SCRIPTS / name), *arguments)
    told, reason = _answer("pretend", *row["flags"], "--json", "--", *command)
    return {"reason": reason} if told is None else _read(told)


def _by_command(row: Row, folder: Path) -> Row:
    """Ask ``brimful estimate``, or what it names instead: an engine, ``brimful simulate``."""
    config = folder / "config.json"
    config.write_text(json.dumps(row.get("model_config", {})))
    flags = [str(config) if flag == "MODEL" else flag for flag in row["flags"]]
    told, reason = _answer(row["by"], *flags, "--json")
    if told is None and ENGINE in reason:
        told, reason = _answer(row["by"], *flags, "--engine", "deepspeed", "--json")
    if told is None and OWN_CODE in reason and PROGRAM[0] in flags:
        return {"reason": ""} | _by_its_own_code(flags)
    if told is None and SIMULATE in reason:
        told, reason = _answer("simulate", *flags, "--json")
    if told is None:
        return {"reason": reason}
    found = _read(told)
    if found["reserved_gib"] is None and " ".join(PROGRAM) in " ".join(flags):
        return found | _by_its_own_code(flags)
    return found


def _by_its_own_code(flags: list[str]) -> Row:
    """Ask what DeepSpeed itself reserves, as an answer by its formula says: ``--for deepspeed``."""
    at = flags.index(PROGRAM[0])
    told, why = _answer("simulate", *flags[:at], *flags[at + 2 :], "--for", PROGRAM[1], "--json")
    ranks = told["ranks"] if told else []
    return ({} if told else {"reason": why}) | {
        kind: max(rank[field] for rank in ranks) / GIB
        for kind, field in (
            ("reserved_gib", "simulated_peak_reserved_bytes"),
            ("process_gib", "simulated_process_bytes"),
        )
        if ranks
    }


def _answer(*words: str) -> tuple[Row | None, str]:
    """Run a verb as a person would; return its JSON, or None and what it says instead."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        run_brimful([*words])
    try:
        told = json.JSONDecoder().raw_decode(out.getvalue())[0]
    except json.JSONDecodeError:
        told = {"error": next(iter(err.getvalue().strip().splitlines()), "no answer")}
    return (None, str(told["error"])) if "error" in told else (told, "")


def _read(said: Row) -> Row:
    held = said.get("predicted_reserved") or said.get("reserved") or _fullest(said)
    devices = said.get("world_size") or said.get("cluster", {}).get("num_devices", 1)
    speed = next((said[name] for name in SPEEDS if said.get(name)), None)
    return {
        "reason": "",
        "live_gib": _gib(said, "predicted_peak_allocated_bytes", "simulated_peak_allocated_bytes"),
        "reserved_gib": _gib(
            held, "predicted_peak_reserved_bytes", "simulated_peak_reserved_bytes"
        ),
        "process_gib": _gib(said | held, "predicted_process_bytes", "simulated_process_bytes"),
        "tokens_per_s": speed / devices if speed else None,
    }


def _fullest(said: Row) -> Row:
    """Return what holds the most of the ranks of a program that is predicted, or the whole."""
    ranks = [rank for rank in said.get("ranks", ()) if "predicted_peak_reserved_bytes" in rank]
    return max(ranks, key=lambda rank: rank["predicted_peak_reserved_bytes"], default=said)


def _gib(said: Row, *names: str) -> float | None:
    found = next((said[name] for name in names if isinstance(said.get(name), int | float)), None)
    return None if found is None else found / GIB


def _beside(figures: Row, said: Row) -> Row:
    """Put what was said beside what was published, with how far it is off."""
    beside: Row = {"reason": said["reason"]} if said["reason"] else {}
    for kind, published in figures.items():
        value = said.get(kind)
        error = None if value is None else round(value / published - 1, 4)
        beside[kind] = {"said": None if value is None else round(value, 4), "error": error}
    return beside


def _count(rows: list[Row], into: str) -> None:
    for kind in KINDS:
        asked = [
            row[into][kind]["error"]
            for row in rows
            if kind in row["figures"] and not (kind == SPEED and UNLIKE in row)
        ]
        errors = sorted(abs(error) for error in asked if error is not None)
        print(f"  {kind}: {len(errors)} of {len(asked)}{_spread(errors)}")


def _spread(errors: list[float]) -> str:
    if not errors:
        return ""
    tenth = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    middle = statistics.median(errors)
    return f", median {middle:.1%}, ninetieth {tenth:.1%}, worst {errors[-1]:.1%}"


if __name__ == "__main__":
    main()
