"""What ended a script that runs on the pretend GPU: its own line, and whether a real card says so.

Tells an error of the script's (shapes, names, types: any card says the same) from what only this
machine lacks (a package, a file, the hub), and from what only the pretend GPU lacks. Knows nothing
of how it is shown.
"""

import ast
import importlib.util
import linecache
import re
import sysconfig
import traceback
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from brimful.errors import BrimfulError
from brimful.pretend.hub_models import stood_in_for
from brimful.pretend.scripts import cell_of

_OURS = str(Path(__file__).parents[1])
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_LONGEST = 160
"""Characters of a message that are told in a sentence; all of it stands in the traceback."""
_MOST_LINES = 5
"""Of a message, below a traceback."""
_INNER = re.compile(r"got (\w+)\((?P<quote>['\"])(?P<said>.*?)(?P=quote)\)", re.DOTALL)
"""How PyTorch's compiler tells of the error that an operation ended in."""
_OF_PRETENDING = re.compile(
    r"PrivateUse1|privateuseone|fake tensor|fake mode|meta tensor|not compiled with CUDA"
    r"|NVIDIA driver|No CUDA GPUs|cudart|libcu|nvml|data-dependent|Could not run 'aten::"
    r"|data pointer|\.numpy\(\)|storage of a tensor|module 'torch.* has no attribute",
    re.IGNORECASE,
)
"""Words of what is missing where there is no card, and no numbers."""
_ANY_CARD = "any real card would say the same"
_OWN_FILES = (
    "put its config.json and its tokenizer's files in a folder and name that instead: no weights "
    "are needed"
)
_CALLS_ON = "(*"
"""Of a line of ours that hands an operation to PyTorch, with the arguments that it was given."""
_OF_NAMES = (NameError, KeyError, IndexError)
"""What is said of names in the script, whatever words are in it."""
_NEVER_BY_VALUES = (NameError, AttributeError, TypeError, SyntaxError)
"""What no value that the GPU computes decides, but for what a branch leaves unset."""
_UNSET = "NoneType"
_OF_FAKES, _OF_DEVICES = "torch._subclasses.fake_tensor", "DeviceMismatch"
"""Where errors of tensors without numbers are defined, and which of them a card has too."""
UNSCALED = "unscale FP16 gradients"
"""What a loss scaler says of parameters in fp16, as transformers 5 loads what is saved so."""
NO_KERNEL = "has no kernel for sparse tensors"
"""What PyTorch says in more words of an operation that no card has."""
_REMEDIES = (
    (r"cannot view a tensor|view size is not compatible", "write .reshape(...) for .view(...)"),
    (r"unexpected keyword", "that package, as it is installed here, names it otherwise"),
    (r"same device|two devices|different devices", "move both to one device"),
    (r"scalar type|same dtype|type .* should be the same", "cast one of them with .to(dtype)"),
    (r"mat1 and mat2|must match|broadcast|cannot be multiplied", "print both shapes before it"),
    (UNSCALED, "load the model with dtype=torch.float32, as transformers 4 did by itself"),
    (
        r"different number of tensors was saved|have different metadata",
        "give the checkpointed block no cache (use_cache=False): it has to compute the same twice",
    ),
    (NO_KERNEL, "keep sparse gradients out of it, as those of nn.Embedding(sparse=True)"),
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
        last: How the traceback ends: the error's type, the first lines of what it says, its notes.
    """

    where: str
    said: str
    why: str
    remedy: str
    frames: tuple[str, ...]
    last: tuple[str, ...]


def read_error(
    error: BaseException, *, stood_in: bool = False, assumptions: Collection[str] = ()
) -> ScriptError:
    """Read what ended a script.

    ``stood_in``: whether the script was given numbers that stand for what the GPU would compute.
    ``assumptions``: of its run, as on models of the hub that are not here.
    """
    stack = _stack(error)
    own = _own(stack)
    shown = traceback.StackSummary.from_list(map(_in_cell, own))
    kind, text = _told(error)
    why, remedy = _judged(error, text, stack, stood_in=stood_in)
    if why == _ANY_CARD and (name := stood_in_for(_raised_by(error), assumptions)):
        why = f"what raised it is Brimful's stand-in for {name}, not that itself"
        remedy = _OWN_FILES
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
        notes = [str(note) for note in getattr(error, "__notes__", ())]
        said = [line for line in "".join(lines[:1]).splitlines() if line.strip()]
        lines = [*said[: 1 if _is_of_compiler(error) else _MOST_LINES], *notes]
    return ScriptError(
        where,
        f"{kind}: {text}" if text else kind,
        why,
        remedy,
        tuple(line.rstrip("\n") for line in shown.format()),
        tuple(_as_cuda(line.rstrip("\n").expandtabs(4)) for line in lines),
    )


def below_runners(frames: TracebackType | None) -> TracebackType | None:
    """Drop what stands above the script in a traceback: us, and Python's own runner."""
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
    kind = type(error).__name__
    if isinstance(error, SyntaxError):
        return kind, str(error.msg or "")
    text = _as_cuda(_said(error).strip())
    if _is_of_compiler(error) and (inner := _INNER.search(text)):
        return inner[1], _short(inner["said"])
    if isinstance(error, KeyError):
        text = f"no key {text}"
    return kind.removeprefix("FakeTensor").replace("DeviceMismatch", "Runtime"), _short(text)


def _said(error: BaseException) -> str:
    """Return what an error says; nothing where it cannot."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - code of the script's
        return ""


def _is_of_compiler(error: BaseException) -> bool:
    return type(error).__module__.startswith("torch._dynamo")


def _as_cuda(text: str) -> str:
    """Name tensors and devices as they are called on a real card."""
    text = re.sub(r"torch\._subclasses\.fake_tensor\.FakeTensor\w*Error", "RuntimeError", text)
    return re.sub(r"\bgpu:(\d)", r"cuda:\1", text.replace("FakeTensor", "Tensor"))


def _short(text: str) -> str:
    """Return the first line of a message, and the second where the first announces it."""
    lines = [line.strip() for line in text.replace("\\n", "\n").splitlines() if line.strip()]
    line = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1]).rstrip(".!")
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def missing_import(error: BaseException | None) -> ImportError | None:
    """Return the import that failed, where an error is that, or was raised for it."""
    seen = set[int]()
    while error is not None and not isinstance(error, ImportError):
        seen.add(id(error))
        error = None if id(error.__cause__) in seen else error.__cause__
    return error


_DISTRIBUTIONS = {
    "PIL": "pillow", "bs4": "beautifulsoup4", "cv2": "opencv-python-headless",
    "fla": "flash-linear-attention", "skimage": "scikit-image", "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}  # fmt: skip
"""Packages of the registry by what they are imported as, where that is another name."""


def _install_words(error: BaseException) -> str:
    """Say what to install where a package is missing as a whole; empty where that is not so."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    package = error.name.partition(".")[0]
    if importlib.util.find_spec(package) is not None:
        return ""
    name = _DISTRIBUTIONS.get(package, package.replace("_", "-"))
    return f"install it here, no GPU is needed: pip install {name}"


_OF_HOST = "DefaultCPUAllocator: can't allocate memory"
"""In the words of ``c10/core/impl/alloc_cpu.cpp``."""


def is_of_host(error: BaseException) -> bool:
    """Whether it is this machine's own memory that was short."""
    return isinstance(error, MemoryError) or _OF_HOST in _said(error)


def _judged(
    error: BaseException, text: str, stack: list[traceback.FrameSummary], *, stood_in: bool
) -> tuple[str, str]:
    """Say whether a real card would say the same, and what to do.

    ``stood_in``: whether the script was given stand-ins for numbers.
    """
    remedy = next(
        (words for pattern, words in _REMEDIES if re.search(pattern, text, re.IGNORECASE)), ""
    )
    lacking = missing_import(error) or error
    if isinstance(lacking, ImportError | OSError):
        notes = getattr(lacking, "__notes__", ())  # of what is neither here nor known
        why = "it is this machine that lacks it, not the card"
        return why, notes[-1] if notes else _install_words(lacking)
    if is_of_host(error):
        return (
            "it is the memory of this machine's host that is short, not the card's"
        ), "what follows was not run here; give it fewer rows, or run this on a machine with more"
    if not _reaches_script(error):
        return "it is Brimful's own fault and not the script's", "tell us of it, with -v before --"
    is_told = bool(_OF_PRETENDING.search(text)) and not isinstance(error, _OF_NAMES)
    is_ours = _is_ours(stack) and not text.endswith(NO_KERNEL)
    if is_told or is_ours or _is_of_fakes(error):
        words = "leave that call out of the script, as far as memory does not depend on it"
        return "only the pretend GPU lacks it, a real card would not say so", words
    if stood_in and _may_be_by_values(error, stack):
        return (
            "a real card would say so too, unless a number decides it that the GPU computes, as "
            "none is computed here"
        ), "where such a number decides it, leave that check out"
    return _ANY_CARD, remedy or "fix that line"


def _raised_by(error: BaseException) -> object:
    """Return the object that lacks an attribute, or whose method raised an error."""
    if isinstance(error, AttributeError) and error.obj is not None:
        return error.obj
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return None if last is None else last.tb_frame.f_locals.get("self")


def _may_be_by_values(error: BaseException, stack: list[traceback.FrameSummary]) -> bool:
    """Whether Python code raised it, and not PyTorch where it checks shapes and types."""
    if isinstance(error, UnboundLocalError):
        return True  # it is set somewhere in its function
    if isinstance(error, _NEVER_BY_VALUES) and stack:
        return _UNSET in _said(error) or _is_set_elsewhere(error, stack[-1].filename)
    if isinstance(error, SyntaxError) or _is_of_compiler(error) or not stack:
        return False
    return not stack[-1].filename.startswith(_OURS)


def _is_set_elsewhere(error: BaseException, file: str) -> bool:
    """Whether a name that is missing is set in the script's text, in a branch that did not run."""
    if not isinstance(error, NameError):
        return False
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return False
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return any(n.id == error.name and isinstance(n.ctx, ast.Store) for n in names)


def _is_of_fakes(error: BaseException) -> bool:
    """Whether an operation says that it cannot be done without numbers."""
    kind = type(error)
    return kind.__module__ == _OF_FAKES and _OF_DEVICES not in kind.__name__


def _reaches_script(error: BaseException) -> bool:
    """Whether a script ran when it was raised."""
    if isinstance(error, SyntaxError):
        return True
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    return any(file.endswith("runpy.py") or "runpy>" in file for file in files) or any(
        not _is_library(file) for file in files
    )


def _is_ours(stack: list[traceback.FrameSummary]) -> bool:
    """Whether code of ours raised it; what calls on with what it was given only passed it on."""
    if not stack or not stack[-1].filename.startswith(_OURS):
        return False
    return _CALLS_ON not in (stack[-1].line or "")


def sentence_of(read: ScriptError, *, name: str, remedy: str = "") -> str:
    """Say in one sentence what ended a script.

    ``remedy``: what to do that is known from elsewhere; empty: what was read.
    """
    where = read.where or name
    doing = remedy or read.remedy
    return f"{where} raised {read.said}; {read.why}{f': {doing}' if doing else ''}"


def refusal_of(error: BaseException, *, name: str) -> str:
    """Say in few words what a script said with a value that it does not take."""
    if isinstance(error, BrimfulError):
        return str(error)
    read = read_error(error)
    return f"{read.where or name} raises {read.said}"


def own_traceback(read: ScriptError) -> Iterator[str]:
    """Yield the traceback of a script's own lines."""
    if read.frames:
        yield "Traceback (most recent call last, of the script's own lines):"
    yield from read.frames
    yield from read.last
