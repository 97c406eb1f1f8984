"""What ended a script that runs on the pretend GPU: its own line, and whether a real card says so.

Tells an error of the script's (shapes, names, types: any card says the same) from what only this
machine lacks (a package, a file, the hub), and from what only the pretend GPU lacks. Knows nothing
of how it is shown.
"""

import builtins
import re
import sysconfig
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from brimful.pretend.scripts import cell_of

_OURS = str(Path(__file__).parents[1])
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_RUNNERS = ("runpy.py", "<frozen")
_LONGEST = 160
"""Characters of a message that are told in a sentence; all of it stands in the traceback."""
_INNER = re.compile(r"got (\w+)\((?P<quote>['\"])(?P<said>.*?)(?P=quote)\)", re.DOTALL)
"""How PyTorch's compiler tells of the error that an operation ended in."""
_CHECKED = re.compile(
    r"shape|size|stride|dimension|\bdim\b|must match|cannot be multiplied|broadcast|out of range"
    r"|dtype|scalar type|same device|expected .* to (be|have)|requires? .* (input|argument)"
    r"|does not require grad|in-?place operation|second time|unexpected keyword|takes .* argument",
    re.IGNORECASE,
)
"""Words of what PyTorch checks before it computes anything: on every device alike."""
_OF_PRETENDING = re.compile(
    r"PrivateUse1|privateuseone|FakeTensor|fake tensor|fake mode|meta tensor|not compiled with CUDA"
    r"|NVIDIA driver|No CUDA GPUs|_cuda_|_Cuda|cudart|libcu|nvml|data-dependent"
    r"|data pointer|\.numpy\(\)|storage of a tensor",
    re.IGNORECASE,
)
"""Words of what is missing where there is no card, and no numbers."""
_BY_VALUES = (AssertionError, ArithmeticError, StopIteration)
"""What a value that the GPU computes may decide."""
UNSCALED = "unscale FP16 gradients"
"""What a loss scaler says of parameters in fp16, as transformers 5 loads what is saved so."""
_REMEDIES = (
    (r"cannot view a tensor|view size is not compatible", "write .reshape(...) for .view(...)"),
    (r"same device|two devices", "move both to one device"),
    (r"scalar type|same dtype|dtype", "cast one of them with .to(dtype)"),
    (r"mat1 and mat2|must match|broadcast|cannot be multiplied", "print both shapes before it"),
    (UNSCALED, "load the model with dtype=torch.float32, as transformers 4 did by itself"),
    (r"second time", "keep the graph (retain_graph=True), or go through it once"),
)
"""What to do, by what was said."""


class ScriptError(NamedTuple):
    """What ended a script.

    Attributes:
        where: The innermost line of the script's own code; empty where none is known.
        said: What it said there, and of which type it is, in one line.
        why: Whether a real card would say the same.
        remedy: What to do.
        frames: The script's own lines, outermost first, as a traceback shows them.
        last: How the traceback ends: the error's type, the first line of what it says, its notes.
    """

    where: str
    said: str
    why: str
    remedy: str
    frames: tuple[str, ...]
    last: tuple[str, ...]


def read_error(error: BaseException) -> ScriptError:
    """Read what ended a script.

    Args:
        error: As the script raised it.
    """
    stack = _stack(error)
    own = _own(stack)
    shown = traceback.StackSummary.from_list(map(_in_cell, own))
    kind, text = _told(error)
    why, remedy = _judged(error, kind, text, stack)
    named = own[-1] if own else None
    where = ""
    if named is not None:
        function = "" if named.name.startswith("<") else f" ({named.name})"
        cell = cell_of(named.filename, named.lineno or 0)
        place = f"{_shown(named.filename)}:{named.lineno}"
        where = f"{place if cell is None else f'{cell[0]}, line {cell[1]}'}{function}"
    elif isinstance(error, SyntaxError) and error.filename:
        where = f"{_shown(error.filename)}:{error.lineno}"
    lines = traceback.format_exception_only(error)
    if not isinstance(error, SyntaxError):  # which shows its line
        first, notes = lines[0].splitlines()[:1], lines[1:]
        lines = [*first, *notes] if notes == [*getattr(error, "__notes__", ())] else first
        lines += [note for note in getattr(error, "__notes__", ()) if note not in lines]
    return ScriptError(
        where,
        f"{kind}: {text}" if text else kind,
        why,
        remedy,
        tuple(line.rstrip("\n") for line in shown.format()),
        tuple(line.rstrip("\n") for line in lines),
    )


def below_runners(frames: TracebackType | None) -> TracebackType | None:
    """Drop what stands above the script in a traceback: us, and Python's own runner.

    Args:
        frames: Of an error that a script raised.
    """
    shown = frames
    while shown is not None:
        if not _is_runner(shown.tb_frame.f_code.co_filename):
            return shown
        shown = shown.tb_next
    return frames


def _is_runner(file: str) -> bool:
    return file.startswith((_OURS, "<frozen")) or file.endswith("runpy.py")


def _stack(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the lines of a traceback, and below them those of the code that was being compiled."""
    found = list(traceback.extract_tb(below_runners(error.__traceback__)))
    compiled = getattr(error, "real_stack", None)  # of PyTorch's compiler
    return [*found, *compiled] if isinstance(compiled, traceback.StackSummary) else found


@cache
def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({str(Path(paths[name]).resolve()) for name in ("stdlib", "platstdlib")})


def _is_library(file: str) -> bool:
    """Whether a file is nobody's who runs the script: Python's, a package's or ours."""
    if file.startswith((_OURS, "<")):
        return True
    if not _PACKAGES.isdisjoint(Path(file).parts):
        return True
    return str(Path(file).resolve()).startswith(_library_folders())


def _own(stack: list[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Keep the lines of the script's own code; of a module that is installed, those of its own."""
    own = [frame for frame in stack if not _is_library(frame.filename)]
    if own or not stack:
        return own
    package = Path(stack[0].filename).parent
    if _PACKAGES.isdisjoint(package.parts):
        return []
    return [frame for frame in stack if package in Path(frame.filename).parents]


def _in_cell(frame: traceback.FrameSummary) -> traceback.FrameSummary:
    """Return a line of a notebook as one of its cell's."""
    cell = cell_of(frame.filename, frame.lineno or 0)
    if cell is None:
        return frame
    return traceback.FrameSummary(*cell, frame.name, lookup_line=False, line=frame.line)


def _shown(file: str) -> str:
    """Name a file from here, if it is below this folder."""
    try:
        return str(Path(file).resolve().relative_to(Path.cwd()))
    except ValueError:
        return file


def _told(error: BaseException) -> tuple[str, str]:
    """Return an error's type and what it says in a line; of compiled code, its operation's."""
    if isinstance(error, SyntaxError):
        return type(error).__name__, error.msg
    text = str(error).strip()
    if type(error).__module__.startswith("torch._dynamo") and (inner := _INNER.search(text)):
        return inner[1], _short(inner["said"])
    if isinstance(error, KeyError):
        text = f"no key {text}"
    return type(error).__name__, _short(text)


def _short(text: str) -> str:
    line = next(iter(text.replace("\\n", "\n").splitlines()), "").strip().rstrip(".!")
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _judged(
    error: BaseException, kind: str, text: str, stack: list[traceback.FrameSummary]
) -> tuple[str, str]:
    """Say whether a real card would say the same, and what to do.

    Args:
        error: That ended the script.
        kind: Of which type it is; PyTorch's compiler tells that of an operation's by name.
        text: What it says.
        stack: Where.
    """
    of_type = vars(builtins).get(kind, type(error))
    remedy = next(
        (words for pattern, words in _REMEDIES if re.search(pattern, text, re.IGNORECASE)), ""
    )
    if isinstance(error, ImportError | OSError):
        notes = getattr(error, "__notes__", ())  # of what is neither here nor known
        return "it is this machine that lacks it, not the card", notes[-1] if notes else ""
    if not _reaches_script(error):
        return "it is Brimful's own fault and not the script's", "tell us of it, with -v before --"
    is_checked = bool(_CHECKED.search(text))
    if _OF_PRETENDING.search(text) or (not is_checked and _is_of_pretending(of_type, stack)):
        words = "leave that call out of the script, as far as memory does not depend on it"
        return "only the pretend GPU lacks it, a real card would not say so", words
    if issubclass(of_type, _BY_VALUES):
        return (
            "a real card would say so too, unless a number decides it that the GPU computes, as "
            "none is computed here"
        ), "where such a number decides it, leave that check out"
    return "any real card would say the same", remedy or "fix that line"


def _reaches_script(error: BaseException) -> bool:
    """Whether a script ran when it was raised."""
    if isinstance(error, SyntaxError):
        return True
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return any(file.endswith("runpy.py") or "runpy>" in file for file in files) or any(
        not _is_library(file) for file in files
    )


def _is_of_pretending(of_type: type[BaseException], stack: list[traceback.FrameSummary]) -> bool:
    """Whether an error that no check of PyTorch's explains came of code of ours."""
    if issubclass(of_type, NotImplementedError):
        return bool(stack) and _is_library(stack[-1].filename)
    return bool(stack) and stack[-1].filename.startswith(_OURS)


def sentence_of(read: ScriptError, *, name: str, remedy: str = "") -> str:
    """Say in one sentence what ended a script.

    Args:
        read: What was read of it.
        name: Of the script.
        remedy: What to do that is known from elsewhere; empty: what was read.
    """
    where = read.where or name
    doing = remedy or read.remedy
    return f"{where} raised {read.said}; {read.why}{f': {doing}' if doing else ''}"


def own_traceback(read: ScriptError) -> Iterator[str]:
    """Yield the traceback of a script's own lines.

    Args:
        read: What was read of it.
    """
    if read.frames:
        yield "Traceback (most recent call last, of the script's own lines):"
    yield from read.frames
    yield from read.last
