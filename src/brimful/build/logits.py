"""What a decoder does to its logits after the output layer: scale them, cap them, or nothing.

The build path takes the output layer by itself, so that logits can be computed in chunks; what
stands before it and what follows it in the class's own ``forward`` is read from its source and done
there too. What cannot be read is refused, not trained as something else.
"""

import ast
import inspect
import textwrap
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

_STEPS = "brimful_logit_steps"
"""Attribute of an output layer: what is done to what it returns."""
_BEFORE = "brimful_before_head"
"""Attribute of a model: what hidden states go through before its output layer."""
_WIDENED, _FIRST, _CAPPED = "float", "first", "tanh"
_OPERATORS: dict[type[ast.operator], str] = {ast.Mult: "*", ast.Div: "/"}
_SLICED = "slice_logits_to_keep"
"""Function of ``transformers`` that leaves out tokens, of which none is left out here."""
_ASKED = frozenset({"get_text_config", "get_decoder"})
"""Methods of a model, or its configuration, that say which part of it is meant."""
_TRAINING = "training"
"""Says of a module that it trains, which all do here."""
_CAST = "to"
"""Stands for a module among those before the head: hidden states take its weight's type."""


class OwnWayError(Exception):
    """A class treats its logits in a way that is not known here; ``skeleton_of`` says which."""


class LogitStep(NamedTuple):
    """One operation on logits, token by token.

    Attributes:
        operator: ``*``, ``/``, ``tanh``, ``float`` (to fp32) or ``first`` (of the vocabulary).
        value: By what, or how many; of no meaning for ``tanh`` and ``float``.
    """

    operator: str
    value: float


_METHODS = {_WIDENED: [LogitStep(_WIDENED, 1.0)], "contiguous": []}
"""By methods of a tensor: what they do to logits, which are contiguous."""


class LogitWay(NamedTuple):
    """How a class makes logits of hidden states.

    Attributes:
        before: Names of its modules that hidden states go through before the output layer, and
            what they are scaled by.
        steps: What is done to what that returns.
    """

    before: tuple[str | LogitStep, ...]
    steps: tuple[LogitStep, ...]


def read_steps(model: Any) -> tuple[LogitStep, ...]:
    """Read what the class of a decoder does to its logits after the output layer.

    ``model``: on ``meta``; its configuration says which branches are taken, and by how much. Raises
    OwnWayError: something else than a scale or a cap, or the output layer is not called once.
    """
    return read_way(model).steps


def read_way(model: Any) -> LogitWay:
    """Read how the class of a decoder makes logits; see ``read_steps``."""
    reader = _Reader(model, model.get_output_embeddings())
    made = reader.made_by(model)
    if made is None or reader.num_calls != 1:
        raise OwnWayError
    steps = [step for step in made if step.operator in {_CAPPED, _WIDENED} or step.value != 1]
    while steps and steps[-1].operator == _WIDENED:
        steps.pop()  # as the loss does in any case
    return LogitWay(tuple(reader.before), tuple(steps))


class _Scope(NamedTuple):
    """What is known while a module's ``forward`` is read.

    Attributes:
        module: Whose it is.
        logits: What was done to logits, by the names that they have.
        values: Other names: what they stand for; None: nobody knows.
        made: By which expressions.
    """

    module: Any
    logits: dict[str, list[LogitStep]]
    values: dict[str, Any]
    made: dict[str, ast.expr]


class _Reader:
    """Follows logits from the output layer through a class's ``forward``, and its parts'."""

    def __init__(self, model: Any, head: nn.Module | None) -> None:
        self._model, self._head = model, head
        self.num_calls = 0
        self.before: list[str | LogitStep] = []

    def made_by(self, module: Any, given: list[LogitStep] | None = None) -> list[LogitStep] | None:
        """Return what a module does to logits in all; None where it makes none.

        ``module``: whose ``forward`` is read. ``given``: what was done to what it is given; None:
        it is given hidden states.
        """
        function = _function(type(module))
        names = {} if given is None else {function.args.args[1].arg: given}
        scope = _Scope(module, names, {}, {})
        self._read(function.body, scope)
        if module is self._model:
            return list(scope.logits.values())[-1] if scope.logits else None
        returned = [node for node in function.body if isinstance(node, ast.Return)]
        value = returned[0].value if len(returned) == 1 else None
        return None if value is None else self._chain(value, scope)

    def _read(self, body: list[ast.stmt], scope: _Scope) -> None:
        """Take note of what is assigned to logits, in order, on the branches that are taken."""
        for statement in body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name = statement.targets[0].id
                chain = self._chain(statement.value, scope)
                if chain is not None:
                    scope.logits[name] = chain
                elif name in scope.logits:
                    raise OwnWayError
                else:
                    scope.values[name] = _value(statement.value, scope)
                    scope.made[name] = _unnamed(statement.value, name, scope.made)
            elif not self._concerns(statement, scope):
                continue
            elif isinstance(statement, ast.If) and (
                statement.orelse or not _asks_training(statement.test)
            ):  # what is done to logits of a model that trains alone would be of another model
                taken = _is_taken(statement.test, scope)
                self._read(statement.body if taken else statement.orelse, scope)
            else:
                raise OwnWayError

    def _concerns(self, statement: ast.stmt, scope: _Scope) -> bool:
        """Whether a statement makes logits or stores to them anywhere inside."""
        if isinstance(statement, ast.Return):
            return False
        nodes = list(ast.walk(statement))
        stored = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        called = (_called(node, scope.module) for node in nodes if isinstance(node, ast.Call))
        return bool(stored & {*scope.logits}) or any(map(self._makes_logits, called))

    def _makes_logits(self, called: Any) -> bool:
        return isinstance(called, nn.Module) and any(m is self._head for m in called.modules())

    def _chain(self, node: ast.expr, scope: _Scope) -> list[LogitStep] | None:
        """Return what was done to logits to make an expression; None where it is none of them.

        Raises OwnWayError: it was something else than what is known here.
        """
        if isinstance(node, ast.Name):
            return scope.logits.get(node.id)
        if isinstance(node, ast.Call):
            return self._of_call(node, scope)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            done = self._chain(node.right, scope)
            if done is not None:  # a number times logits
                return [*done, _step(ast.BinOp(node.right, node.op, node.left), scope)]
        if isinstance(node, ast.BinOp | ast.Subscript):
            inner = node.left if isinstance(node, ast.BinOp) else node.value
            done = self._chain(inner, scope)
            return None if done is None else [*done, _step(node, scope)]
        return None

    def _of_call(self, call: ast.Call, scope: _Scope) -> list[LogitStep] | None:
        called = _called(call, scope.module)
        if called is not None and called is self._head:
            self.num_calls += 1
            self._take(call.args, scope)
            return []
        is_part = called is not getattr(self._model, "base_model", None) and len(call.args) == 1
        if is_part and self._makes_logits(called):
            return self.made_by(called)
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if isinstance(call.func, ast.Attribute) and method in _METHODS and not call.args:
            done = self._chain(call.func.value, scope)
            return None if done is None else [*done, *_METHODS[method]]
        if isinstance(call.func, ast.Name) and call.args:
            return self._of_function(call, call.func.id, scope)
        is_function = len(call.args) == 1 and not call.keywords
        done = self._chain(call.args[0], scope) if is_function else None
        if done is None or method == _CAPPED:
            return None if done is None else [*done, LogitStep(_CAPPED, 1.0)]
        if isinstance(called, nn.Module) and not any(True for _ in called.parameters()):
            return self.made_by(called, done)
        raise OwnWayError

    def _of_function(self, call: ast.Call, name: str, scope: _Scope) -> list[LogitStep] | None:
        """Return what a function beside a class, which is given logits first, makes of them."""
        done = self._chain(call.args[0], scope)
        if done is None:
            return None
        function = getattr(inspect.getmodule(type(scope.module)), name, None)
        if not inspect.isfunction(function) or call.keywords:
            raise OwnWayError
        tree = _tree(function)
        given = [_value(each, scope) for each in call.args[1:]]
        names = [each.arg for each in tree.args.args]
        inner = _Scope(
            scope.module, {names[0]: done}, dict(zip(names[1:], given, strict=False)), {}
        )
        for statement in tree.body:
            if isinstance(statement, ast.If) and not _is_taken(statement.test, inner):
                continue
            last = statement.body[0] if isinstance(statement, ast.If) else statement
            if isinstance(last, ast.Return) and last.value is not None:
                return self._chain(last.value, inner)
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                break
        raise OwnWayError

    def _take(self, args: list[ast.expr], scope: _Scope) -> None:
        """Take note of what hidden states go through before the output layer.

        Raises OwnWayError: it is more than modules of the model, one after the other.
        """
        given = args[0] if len(args) == 1 else None
        path = next(name for name, module in self._model.named_modules() if module is scope.module)
        found, names = list[str | LogitStep](), set[str]()
        while given is not None:
            if isinstance(given, ast.Name) and given.id in names:
                break  # what is made of itself is made of what the module is given
            names |= {given.id} if isinstance(given, ast.Name) else set()
            taken, given = _before(given, scope)
            found += [f"{path}.{t}" if path and _is_module(t) else t for t in taken]
        self.before = found[::-1]


def _is_module(step: str | LogitStep) -> bool:
    return isinstance(step, str) and step != _CAST


def _before(node: ast.expr, scope: _Scope) -> tuple[list[str | LogitStep], ast.expr | None]:
    """Return what an expression does to hidden states, and to which; None: to a body's output."""
    if isinstance(node, ast.Name):
        return [], scope.made.get(node.id)
    if isinstance(node, ast.Attribute):
        return [], None
    if isinstance(node, ast.Subscript):
        if isinstance(node.slice, ast.Constant) and node.slice.value != 0:
            raise OwnWayError
        return [], node.value
    if isinstance(node, ast.BinOp):
        return [_step(node, scope)], node.left
    if isinstance(node, ast.Call):
        return _before_call(node, scope)
    raise OwnWayError


def _before_call(node: ast.Call, scope: _Scope) -> tuple[list[str | LogitStep], ast.expr | None]:
    """Return the same of a call; see ``_before``."""
    path = _path(node.func) or []
    called = _follow(scope.module, path) if path else None
    if isinstance(called, PreTrainedModel):
        return [], None
    if isinstance(node.func, ast.Attribute) and node.func.attr == _CAST:
        return [_CAST], node.func.value
    if isinstance(node.func, ast.Name) and node.func.id == _SLICED:
        return [], node.args[0]
    if len(path) == len(node.args) == 1 and isinstance(called, nn.Module):
        return [path[0]], node.args[0]
    raise OwnWayError


def _unnamed(value: ast.expr, name: str, made: dict[str, ast.expr]) -> ast.expr:
    """Return an expression with what a name stood for in the name's place."""

    class Put(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return made[name] if node.id == name and name in made else node

    put: ast.expr = Put().visit(value)
    return put


def _called(call: ast.Call, module: Any) -> Any:
    """Return what of a module is called; None where it is something else."""
    path = _path(call.func)
    return None if path is None else _follow(module, path)


def _function(module_class: type[nn.Module]) -> ast.FunctionDef:
    return _tree(module_class.forward)


def _tree(made: Any) -> ast.FunctionDef:
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(made)))
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)  # a method's source is one
    return function


def _step(node: ast.expr, scope: _Scope) -> LogitStep:
    """Read a scale, or how much of the vocabulary is kept."""
    operator, by = "", None
    if isinstance(node, ast.BinOp):
        operator = _OPERATORS.get(type(node.op), "")
        by = _value(node.right, scope)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        *others, last = node.slice.elts
        is_rest = [isinstance(e, ast.Constant) and e.value is Ellipsis for e in others] == [True]
        if is_rest and isinstance(last, ast.Slice) and last.lower is None and last.step is None:
            operator, by = _FIRST, last.upper and _value(last.upper, scope)
    if not operator or isinstance(by, bool) or not isinstance(by, float | int):
        raise OwnWayError
    return LogitStep(operator, float(by))


def _asks_training(test: ast.expr) -> bool:
    asked = (each for each in ast.walk(test) if isinstance(each, ast.Attribute))
    return any(_path(each) == [_TRAINING] for each in asked)


def _is_taken(test: ast.expr, scope: _Scope) -> bool:
    """Whether a branch is taken that asks whether a field is there, or whether a model trains."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return all(_is_taken(each, scope) for each in test.values)  # the first that is not ends it
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return not _is_taken(test.operand, scope)
    if _path(test) == [_TRAINING]:
        return True
    if (
        not isinstance(test, ast.Compare)
        or not isinstance(test.ops[0], ast.IsNot | ast.Is)
        or not isinstance(test.comparators[0], ast.Constant)
        or test.comparators[0].value is not None
    ):
        raise OwnWayError
    asked = test.left
    if isinstance(asked, ast.NamedExpr):
        scope.values[asked.target.id] = _value(asked.value, scope)
        asked = asked.target
    if isinstance(asked, ast.Name) and asked.id not in scope.values:
        raise OwnWayError
    return (_value(asked, scope) is not None) == isinstance(test.ops[0], ast.IsNot)


def _value(node: ast.expr, scope: _Scope) -> Any:
    """Return what an expression over fields of a module is; None where it is something else."""
    if isinstance(node, ast.Name):
        return scope.module if node.id == "self" else scope.values.get(node.id)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, scope), node.attr, None)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, scope), _value(node.right, scope)
        if isinstance(left, float | int) and isinstance(right, float | int):
            return left * right if isinstance(node.op, ast.Mult) else left / right
    if isinstance(node, ast.Call) and not node.args and not node.keywords:
        called = _path(node.func)
        if called and called[-1] in _ASKED:
            return getattr(_follow(scope.module, called[:-1]), called[-1])()
    return None


def _path(node: ast.expr) -> list[str] | None:
    """Return the names by which something is reached from ``self``; None where it is not."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    is_own = isinstance(node, ast.Name) and node.id == "self"
    return names[::-1] if is_own and names else None


def _follow(module: Any, path: list[str]) -> Any:
    for part in path:
        module = getattr(module, part, None)
    return module


def mark_head(model: Any, way: LogitWay) -> None:
    """Note on a model what is before its output layer, and on that what is done to its logits."""
    if way.steps:
        setattr(model.get_output_embeddings(), _STEPS, way.steps)
    if way.before:
        setattr(model, _BEFORE, way.before)


def steps_of(head: Any) -> tuple[LogitStep, ...]:
    """Return what was noted; nothing where nothing was."""
    steps: tuple[LogitStep, ...] = getattr(head, _STEPS, ())
    return steps


def before_head(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Take hidden states through what stands before the output layer, as the class does.

    ``model``: on which that was noted, if there is something.
    """
    before: tuple[str | LogitStep, ...] = getattr(model, _BEFORE, ())
    for name in before:
        if isinstance(name, LogitStep):
            hidden = finish(hidden, (name,))
        elif name == _CAST:
            hidden = hidden.to(model.get_output_embeddings().weight.dtype)
        else:
            hidden = model.get_submodule(name)(hidden)
    return hidden


def finish(logits: torch.Tensor, steps: tuple[LogitStep, ...]) -> torch.Tensor:
    """Scale and cap logits, in their own type, as the class does.

    ``logits``: [tokens, vocab]. ``steps``: in order; none returns the logits as they are.
    """
    for step in steps:
        if step.operator == _CAPPED:
            logits = logits.tanh()
        elif step.operator == _WIDENED:
            logits = logits.float()
        elif step.operator == _FIRST:
            logits = logits[..., : int(step.value)]
        else:
            logits = logits * step.value if step.operator == "*" else logits / step.value
    return logits
