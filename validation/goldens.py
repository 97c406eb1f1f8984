"""What Brimful answers, frozen: whoever rebuilds the house shows that the answers stayed.

``python validation/goldens.py compare [PART]`` | ``write [PART]`` | ``draw``

``compare`` runs every frozen command line and shows what answers otherwise, byte by byte;
``write`` freezes what is answered now, for a difference that is named and meant; ``draw`` draws new
command lines. PART is the beginning of names, such as ``simulate``. ``goldens.jsonl`` holds the
command lines and a hash of each answer, ``goldens.xz`` the answers, for differences to be readable.

A local machine is a fixed one here, and floating-point numbers are kept to twelve digits, as
sums of vectors differ by processor.
"""

import contextlib
import difflib
import hashlib
import io
import json
import lzma
import math
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module, resources
from itertools import chain
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from brimful.process.library_output import quiet_libraries

quiet_libraries()

from goldens_draws import (  # noqa: E402
    ANSWERED,
    EVERY_TEXT,
    MOST_REFUSED,
    REFUSED_ALIKE,
    Golden,
    as_text,
    draw_goldens,
    write_config,
)

from brimful.cli.main import main as command_line  # noqa: E402
from brimful.hardware.cluster import Device, MatrixRates  # noqa: E402

HERE = Path(__file__).parent
CASES, ANSWERS = HERE / "goldens.jsonl", HERE / "goldens.xz"
SEED = 26
DIGITS = 12
REFUSED, SAME_WORDS = 2, 6
MOST_S = 4.0
"""Of a processor, for an answer that is kept: all are asked in a few minutes."""
DIFFERS, NOT_USED = 1, 2
NUM_PROCESSES, NUM_EACH = 2, 60
NUM_SHOWN, NUM_LINES = 12, 16
_LOCAL = Device(
    name="cpu", description="the CPU of the goldens", kernels="cpu", usable_bytes=16 * 2**30,
    capability=0.0, matrix_flops_per_s=MatrixRates(fp32=1e12, bf16=1e12),
    memory_bytes_per_s=2e10, op_overhead_s=1e-5, calibrated=False, source="made up",
)  # fmt: skip
_HOST_BYTES = 32 * 2**30
_DATA = ("profiles", "eval_profiles", "models", "gpus", "links", "prices", "workspaces")
_DOCUMENTS = (
    "brimful.values.plan:Plan", "brimful.values.run_files:DataSummary",
    "brimful.values.results:Simulation", "brimful.values.results:Measurement",
    "brimful.measure.verdict:Verdict", "brimful.search.record:SearchRecord",
    "brimful.hardware.calibration:Calibration", "brimful.cost.money:Prices",
    "brimful.cost.profiles:Profile", "brimful.doctor.examination:Examination",
    "brimful.compare.record:Comparison",
)  # fmt: skip
"""What is read from YAML and JSON, and what is written there."""


def main(argv: Sequence[str]) -> int:
    """Draw, freeze or compare."""
    match argv:
        case ["draw"]:
            _freeze(list(_kept(draw_goldens(SEED))), "", {})
            return 0
        case ["write", *part] if len(part) <= 1:
            _freeze(read_goldens(), "".join(part), read_answers())
            return 0
        case ["compare", *part] if len(part) <= 1:
            return _compare("".join(part))
        case _:
            print(__doc__.split("\n\n")[1], file=sys.stderr)
            return NOT_USED


def read_goldens() -> list[Golden]:
    """Read the frozen command lines, with the hashes of what they answered."""
    return [msgspec.json.decode(line, type=Golden) for line in CASES.read_bytes().splitlines()]


def read_answers() -> dict[str, str]:
    """Read what was answered, by name."""
    found: dict[str, str] = json.loads(lzma.decompress(ANSWERS.read_bytes()))
    return found


def _kept(drawn: Iterable[Golden]) -> Iterator[Golden]:
    """Yield as many as are wanted of each kind, and few refusals that are alike."""
    answered, refused, alike = Counter[str](), Counter[str](), Counter[str]()
    for golden in drawn:
        kind = golden.name.partition("/")[0]
        wanted = ANSWERED.get(kind, 0)
        if answered[kind] >= wanted and (wanted or refused[kind] >= MOST_REFUSED):
            continue
        begun_s = time.process_time()
        text = answer(golden)
        if time.process_time() - begun_s > MOST_S:
            continue
        if not text.startswith(f"exit {REFUSED}"):
            answered[kind] += 1
            if wanted:
                yield golden
            if kind == "estimate" and answered[kind] % EVERY_TEXT == 0:
                yield as_text(golden)
            continue
        begins = " ".join(text.splitlines()[-1].split()[:SAME_WORDS])
        alike[begins] += 1
        refused[kind] += 1
        if alike[begins] <= REFUSED_ALIKE and refused[kind] <= MOST_REFUSED:
            yield golden


def _freeze(goldens: Sequence[Golden], part: str, before: dict[str, str]) -> None:
    found = before | dict(_answers([each for each in goldens if each.name.startswith(part)]))
    taken = [
        msgspec.structs.replace(golden, sha256=digest(found[golden.name])) for golden in goldens
    ]
    found |= {name: text for name, text in fixed().items() if name.startswith(part)}
    CASES.write_bytes(b"".join(msgspec.json.encode(golden) + b"\n" for golden in taken))
    packed = json.dumps(found, ensure_ascii=False, sort_keys=True).encode()
    ANSWERS.write_bytes(lzma.compress(packed, preset=9 | lzma.PRESET_EXTREME))


def _compare(part: str) -> int:
    frozen, num, differ = read_answers(), 0, []
    asked = [golden for golden in read_goldens() if golden.name.startswith(part)]
    kept = [(name, text) for name, text in fixed().items() if name.startswith(part)]
    for name, now in chain(kept, _answers(asked)):
        num += 1
        if digest(now) != digest(frozen.get(name, "")):
            differ.append(name)
            if len(differ) <= NUM_SHOWN:
                print("\n".join(difference(name, frozen.get(name, ""), now)), flush=True)
    print(f"{num - len(differ)} of {num} answers are what they were")
    if differ:
        print(f"not: {' '.join(differ)}")
    return DIFFERS if differ else 0


def _answers(goldens: Sequence[Golden]) -> Iterator[tuple[str, str]]:
    """Answer on two cores; a process ends before what it remembers outgrows a small machine."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(NUM_PROCESSES, maxtasksperchild=NUM_EACH) as pool:
        answers = pool.imap(answer, goldens)
        yield from zip([golden.name for golden in goldens], answers, strict=True)


def difference(name: str, before: str, now: str) -> list[str]:
    """Return the first lines in which two answers differ."""
    lines = difflib.unified_diff(
        before.splitlines(), now.splitlines(), f"{name} frozen", f"{name} now", lineterm="", n=1
    )
    found = list(lines)
    return [*found[:NUM_LINES], *([f"... {len(found)} lines"] if len(found) > NUM_LINES else [])]


def digest(text: str) -> str:
    """Return the hash of an answer."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def answer(golden: Golden) -> str:
    """Run the commands of a golden in a folder of their own; return what the last one answers."""
    said = ""
    with _apart() as folder:
        if golden.config:
            (folder / "config.json").write_bytes(write_config(golden))
        for command in golden.commands:
            code, out, err = _run(command)
            said = f"exit {code}\n{_told(out)}\n{err}".rstrip("\n") + "\n"
            if code == REFUSED:
                break
    return said.replace(str(folder), "FOLDER")


def _run(command: Sequence[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = command_line(list(command))
        except Exception as error:  # noqa: BLE001 - what it ends in is its answer
            return REFUSED, out.getvalue(), f"{type(error).__name__}: {error}\n"
    return code, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def _apart() -> Iterator[Path]:
    """Run in an empty folder, on a machine that is always the same, with an empty cache."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(name))
        own = {"BRIMFUL_CACHE": f"{name}/cache", "COLUMNS": "80", "NO_COLOR": "1"}
        stack.enter_context(mock.patch.dict(os.environ, own))
        here = "brimful.hardware.gpus"
        stack.enter_context(mock.patch(f"{here}.probe_local", return_value=_LOCAL))
        stack.enter_context(mock.patch(f"{here}.host_ram_bytes", return_value=_HOST_BYTES))
        # However busy the machine is.
        stack.enter_context(mock.patch("brimful.cli.on_demand.MOST_LEANER_S", math.inf))
        yield Path(name)


_TOOK = re.compile(r"\b(allocations and frees in|strategies in) [\d.]+ s")
"""Where a text tells how long something took."""


def _told(out: str) -> str:
    """Spell an answer so that differences are lines."""
    try:
        told = json.loads(out)
    except ValueError:
        return _TOOK.sub(r"\1 some s", out)
    return json.dumps(_rounded(told), indent=0, ensure_ascii=False)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items() if key not in _CLOCKS}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


_CLOCKS = frozenset({"seconds", "elapsed_s", "simulate_s", "versions"})
"""What differs from run to run and from machine to machine."""


def fixed() -> dict[str, str]:
    """Return what no command line prints: the keys of data, profiles among them, and schemas."""
    found = {}
    for folder in _DATA:
        files = sorted(resources.files("brimful").joinpath("data", folder).iterdir(), key=str)
        lines = [f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]
        found[f"data/{folder}"] = "\n".join(lines) + "\n"
    for place in _DOCUMENTS:
        module, _, name = place.partition(":")
        kind = getattr(import_module(module), name)
        schema = _undescribed(msgspec.json.schema(kind))
        found[f"schema/{name}"] = json.dumps(schema, indent=0, sort_keys=True) + "\n"
    return found


def _undescribed(schema: Any) -> Any:
    """Return a schema without docstrings."""
    if isinstance(schema, dict):
        kept = {key: each for key, each in schema.items() if not _is_description(key, each)}
        return {key: _undescribed(each) for key, each in kept.items()}
    return [_undescribed(each) for each in schema] if isinstance(schema, list) else schema


def _is_description(key: str, value: Any) -> bool:
    return key == "description" and isinstance(value, str)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
