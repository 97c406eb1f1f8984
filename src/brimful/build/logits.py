"""What a decoder does to its logits after the output layer: scale them, cap them, or nothing.

The build path takes the output layer by itself, so that logits can be computed in chunks; what
follows it in the class's own ``forward`` is read from its source and done there too. What cannot be
read is refused, not trained as something else.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

_NAME = "logits"
_HEAD = r"self\.{}\(hidden_states(\[[^\]]*\])?\)(\.contiguous\(\)|\.float\(\))*"
"""A call of the output layer. What it returns is contiguous, and the loss works in fp32."""
_SCALED = re.compile(r"logits (?P<operator>[*/]) self\.(?P<path>(config\.)?\w+)")
_CAPPED = re.compile(r"(torch|nn\.functional|F)\.tanh\(logits\)")
_GUARD = re.compile(r"self\.(?P<path>(config\.)?\w+) is not None")
_STEPS = "brimful_logit_steps"
"""Attribute of an output layer: what is done to what it returns."""


class OwnWayError(Exception):
    """A class treats its logits in a way that is not known here; ``skeleton_of`` says which."""


class LogitStep(NamedTuple):
    """One elementwise operation.

    Attributes:
        operator: ``*``, ``/`` or ``tanh``.
        value: By what; of no meaning for ``tanh``.
    """

    operator: str
    value: float


def read_steps(model: Any) -> tuple[LogitStep, ...]:
    """Read what the class of a decoder does to its logits after the output layer.

    Args:
        model: On ``meta``; its configuration says which branches are taken, and by how much.

    Raises:
        OwnWayError: Something else than a scale or a cap, or the output layer is not called once.
    """
    head = model.get_output_embeddings()
    names = [name for name, module in model.named_children() if module is head]
    if not names:
        raise OwnWayError
    called = re.compile(_HEAD.format(names[0]))
    made = list(_assigned(_renamed(_body(type(model)), called), model))
    if not made or not called.fullmatch(made[0]):
        raise OwnWayError
    steps = (_step(text, model) for text in made[1:])
    return tuple(step for step in steps if step.operator == "tanh" or step.value != 1)


def _body(model_class: type[nn.Module]) -> list[ast.stmt]:
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(model_class.forward)))
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)  # a method's source is one
    return function.body


def _renamed(body: list[ast.stmt], called: re.Pattern[str]) -> list[ast.stmt]:
    """Let what the output layer returns be called logits, whatever the class calls it."""
    names = {
        target.id
        for statement in body
        if isinstance(statement, ast.Assign) and called.fullmatch(ast.unparse(statement.value))
        for target in statement.targets
        if isinstance(target, ast.Name)
    }
    for node in chain.from_iterable(map(ast.walk, body)):
        if isinstance(node, ast.Name) and node.id in names:
            node.id = _NAME
    return body


def _assigned(body: list[ast.stmt], model: Any) -> Iterator[str]:
    """Yield what is assigned to the logits, in order, on the branches that are taken."""
    for statement in body:
        if isinstance(statement, ast.Assign) and any(map(_is_name, statement.targets)):
            yield ast.unparse(statement.value)
        elif not _assigns(statement):
            continue
        elif isinstance(statement, ast.If) and not statement.orelse:
            if _is_given(ast.unparse(statement.test), model):
                yield from _assigned(statement.body, model)
        else:
            raise OwnWayError


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == _NAME


def _assigns(statement: ast.stmt) -> bool:
    """Whether a statement stores to the logits anywhere inside."""
    return any(_is_name(n) and isinstance(n.ctx, ast.Store) for n in ast.walk(statement))  # type: ignore[attr-defined]


def _is_given(test: str, model: Any) -> bool:
    guard = _GUARD.fullmatch(test)
    if guard is None:
        raise OwnWayError
    return _value(guard["path"], model) is not None


def _step(text: str, model: Any) -> LogitStep:
    if _CAPPED.fullmatch(text):
        return LogitStep("tanh", 1.0)
    scaled = _SCALED.fullmatch(text)
    value = None if scaled is None else _value(scaled["path"], model)
    if scaled is None or not isinstance(value, float | int):
        raise OwnWayError
    return LogitStep(scaled["operator"], float(value))


def _value(path: str, model: Any) -> Any:
    for part in path.split("."):
        model = getattr(model, part, None)
    return model


def mark_head(head: nn.Module, steps: tuple[LogitStep, ...]) -> None:
    """Note on an output layer what is done to what it returns."""
    setattr(head, _STEPS, steps)


def steps_of(head: nn.Module) -> tuple[LogitStep, ...]:
    """Return what was noted; nothing where nothing was."""
    steps: tuple[LogitStep, ...] = getattr(head, _STEPS, ())
    return steps


def finish(logits: torch.Tensor, steps: tuple[LogitStep, ...]) -> torch.Tensor:
    """Scale and cap logits, in their own type, as the class does.

    Args:
        logits: [tokens, vocab].
        steps: In order; none returns the logits as they are.
    """
    for step in steps:
        if step.operator == "tanh":
            logits = logits.tanh()
        else:
            logits = logits * step.value if step.operator == "*" else logits / step.value
    return logits
