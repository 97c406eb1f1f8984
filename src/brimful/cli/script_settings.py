"""What a script on top of a trainer says of its job, read off its text where it cannot be run.

Its calls name the model, the adapters and the arguments of the trainer, in the words of the flags
of ``other_flags``. Numbers that are computed, or come from elsewhere, are not seen.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brimful.cli.other_flags import is_of_jobs, is_of_models
from brimful.errors import BrimfulError
from brimful.files.writing import is_there

_LOADS, _ADAPTS = "from_pretrained", ("get_peft_model", "LoraConfig")
_TELLING = (
    _LOADS, *_ADAPTS, "ModelConfig", "BitsAndBytesConfig", "TrainingArguments", "SFTConfig",
    "DPOConfig", "GRPOConfig",
)  # fmt: skip
"""How the names of calls end whose arguments say what is trained, and how: Transformers', PEFT's,
TRL's, and those of programs around them (``UnslothTrainingArguments``)."""
_ADAPTED = "--use-peft"


def plan_of(script: str, gpus: str) -> list[str]:
    """Return the words of the ``brimful plan`` that asks about a script's job.

    Args:
        script: Its path.
        gpus: On what.

    Returns:
        The words behind ``brimful``; empty where its text names no model that is known.
    """
    try:
        calls = list(_calls(ast.parse(Path(script).read_text("utf-8"))))
    except (OSError, SyntaxError, ValueError):
        return []
    model = next(filter(None, (_model(name, call) for name, call in calls)), "")
    if not model:
        return []
    adapts = any(name in _ADAPTS for name, _ in calls)
    given = [word for _, call in calls for each in call.keywords for word in _flag(each)]
    return ["plan", model, "--gpus", gpus, *([_ADAPTED] if adapts else []), *given]


def _calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls that tell something, each with the last part of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = str(getattr(node.func, "attr", None) or getattr(node.func, "id", ""))
            if name.endswith(_TELLING):
                yield name, node


def _model(name: str, call: ast.Call) -> str:
    """Return the model that a call loads, where it is a known one."""
    named = [each.value for each in call.keywords if is_of_models(_spelt(each.arg))]
    found = [*(call.args[:1] if name == _LOADS else []), *named]
    return next((each for each in map(_constant, found) if _is_known(each)), "")


def _is_known(name: Any) -> bool:
    """Whether a name is a known model's, or of a folder with one; no hub is asked."""
    from brimful.models.config import load_model
    from brimful.models.names import find

    if not isinstance(name, str):
        return False
    try:
        return bool(load_model(name) if is_there(name) else find(name))
    except BrimfulError:
        return False


def _flag(keyword: ast.keyword) -> list[str]:
    """Return an argument as a flag and its value; nothing of one that says nothing of a job.

    Nor of a negative number, by which such arguments are as if left out (``max_steps=-1``).
    """
    flag, value = _spelt(keyword.arg), _constant(keyword.value)
    if value is None or not is_of_jobs(flag) or (isinstance(value, int | float) and value < 0):
        return []
    if isinstance(value, list):
        return [flag, ",".join(map(str, value))]
    return [flag, str(value).lower() if isinstance(value, bool) else str(value)]


def _spelt(name: str | None) -> str:
    return f"--{name.replace('_', '-')}" if name else ""


def _constant(node: ast.expr) -> Any:
    """Return what stands there, if it is written out."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
