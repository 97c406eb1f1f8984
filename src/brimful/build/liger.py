"""Liger's fused kernels in a model that is there: norms, gated activations, rotary positions, loss.

Liger's own function for a type of model says what is replaced. It also changes the module of
``transformers`` that the model's class stands in, for every model to come; that is undone here, and
what of it the model needs is given to this model alone: a ``forward`` that calls a replaced
function gets globals of its own. So two programs of one process may differ in their kernels.
"""

import contextlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from brimful.build.adapters import NAME
from brimful.build.batch import IGNORE_INDEX
from brimful.build.logits import LogitStep, steps_of
from brimful.errors import UnsupportedError
from brimful.techniques.fused_kernels import LIGER_VERSION, PACKAGES

_PLAIN_LOSS: dict[str, Any] = {
    "ce_weight": None,
    "ignore_index": IGNORE_INDEX,
    "lse_square_scale": 0.0,
    "label_smoothing": 0.0,
    "reduction": "sum",
    "softcap": None,
    "return_z_loss": False,
    "accum_dtype": None,
    "use_token_scaling": False,
    "return_token_accuracy": False,
    "return_predicted_tokens": False,
    "ce_impl": None,
    "ce_mode": None,
    "chunk_mem_const": 1,
}
"""What Liger's loss is told behind the head's bias, in its order: all as it is by default, but that
losses of tokens are summed."""
_MODELS = "transformers.models."
_ALL_BUT_LOSS = {"cross_entropy": False, "fused_linear_cross_entropy": False}
"""The loss is not part of the model here: ``FusedLoss``."""


def check_installed() -> None:
    """Refuse a machine without Liger, or without what its kernels are written in."""
    missing = [name for module, name in PACKAGES.items() if not importlib.util.find_spec(module)]
    if missing:
        raise UnsupportedError(
            f"fused_kernels=liger needs {' and '.join(missing)}, which is not installed; pip "
            f"install 'brimful[liger]', or use fused_kernels=none",
            nearest={"fused_kernels": "none"},
        )


def fuse_kernels(model: Any) -> None:
    """Let a model run Liger's kernels, in place.

    ``model``: a ``transformers`` decoder, with its adapters where it has some.
    """
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    model_type = model.config.model_type
    apply = MODEL_TYPE_TO_APPLY_LIGER_FN.get(model_type)
    if apply is None:
        raise UnsupportedError(
            f"the installed liger-kernel patches no models of type {model_type}; install "
            f"liger-kernel>={LIGER_VERSION}, or use fused_kernels=none",
            nearest={"fused_kernels": "none"},
        )
    # Which of its other backends are not installed is nobody's question.
    logging.getLogger("liger_kernel.backends.registry").setLevel(logging.ERROR)
    home = sys.modules[_class_of(model).__module__]
    known = inspect.signature(apply).parameters
    with _restored(home) as replaced:
        apply(model=model, **{k: v for k, v in _ALL_BUT_LOSS.items() if k in known})
        changed = replaced()
    for module in model.modules():
        _rebind(module, home, changed)


def _class_of(model: nn.Module) -> type:
    """Return the class that ``transformers`` defines, whatever a wrapper derived from it."""
    of_library = (c for c in type(model).__mro__ if c.__module__.startswith(_MODELS))
    return next(of_library)


@contextlib.contextmanager
def _restored(home: ModuleType) -> Iterator[Any]:
    """Undo inside of a module what the block changes; what is yielded tells the functions of it."""
    before = dict(vars(home))

    def functions() -> dict[str, Any]:
        now = vars(home)
        changed = {name: now[name] for name, old in before.items() if now[name] is not old}
        return {name: new for name, new in changed.items() if not isinstance(new, type)}

    try:
        yield functions
    finally:
        vars(home).update(before)


def _rebind(module: nn.Module, home: ModuleType, changed: dict[str, Any]) -> None:
    """Let a module's own forward call what was changed, if it names any of that."""
    forward = module.forward
    plain = getattr(forward, "__func__", None)
    if not isinstance(plain, FunctionType) or plain.__globals__ is not vars(home):
        return
    if not changed.keys() & set(plain.__code__.co_names):
        return
    own = FunctionType(
        plain.__code__, {**vars(home), **changed}, plain.__name__, plain.__defaults__,
        plain.__closure__,
    )  # fmt: skip
    own.__kwdefaults__ = plain.__kwdefaults__
    own.__annotations__ = plain.__annotations__
    module.forward = MethodType(own, module)


def cap_of(steps: tuple[LogitStep, ...]) -> float | None:
    """Return the cap that Liger's loss puts on logits; 0: none; None: it cannot do the steps."""
    if not steps:
        return 0.0
    values = [step.value for step in steps]
    is_cap = [step.operator for step in steps] == ["/", "tanh", "*"] and values[0] == values[2]
    return values[0] if is_cap else None


def fuses_loss(head: Any) -> bool:
    """Whether Liger's loss computes what the class does: scaled logits it leaves to PyTorch."""
    return cap_of(steps_of(head)) is not None


def _trained(head: nn.Module) -> nn.Module:
    """Return the copy that trains, where PEFT wraps an output layer that adapters stand beside.

    Source: ``lce_maybe_trainable_lm_head`` in ``liger_kernel/transformers/model/llama.py``.
    """
    copies = getattr(head, "modules_to_save", None)
    return head if copies is None else copies[NAME]


class FusedLoss(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """The output layer and cross-entropy in one: logits exist for a chunk of tokens at a time.

    Gradients are computed in the forward pass, chunk by chunk, and scaled in the backward pass.

    Attributes:
        head: The output layer.
        cap: What logits are capped at; None: at nothing.
        budget: How many times as large as the hidden states a chunk of logits may be: Liger's own
            is 1, and a trace that wants another number of chunks sets another.
    """

    def __init__(self, head: nn.Linear) -> None:
        """Keep the output layer.

        ``head``: Maps [tokens, hidden] to [tokens, vocab]; what is done to logits is noted on it.
        """
        plain = _trained(head)
        if type(plain) is not nn.Linear:
            raise UnsupportedError(
                f"fused_kernels=liger needs an output layer that is a plain matrix, and this is a "
                f"{type(plain).__name__}; use fused_kernels=none",
                nearest={"fused_kernels": "none"},
            )
        super().__init__()
        self.head = plain
        self.cap = cap_of(steps_of(head)) or None
        self.budget = 1

    def forward(
        self,
        hidden_ND: torch.Tensor,  # noqa: N803
        labels_N: torch.Tensor,  # noqa: N803
        num_targets: int,
    ) -> torch.Tensor:
        """Return the sum of the unmasked tokens' losses divided by ``num_targets``.

        ``hidden_ND``: [tokens, hidden]. ``labels_N``: [tokens], the next token of each, or
        ``IGNORE_INDEX``.
        """
        from liger_kernel.ops import LigerFusedLinearCrossEntropyFunction as Fused

        head = self.head
        told = {**_PLAIN_LOSS, "softcap": self.cap, "chunk_mem_const": self.budget}
        total: torch.Tensor = Fused.apply(
            hidden_ND, head.weight, labels_N, head.bias, *told.values()
        )[0]
        return total / num_targets
