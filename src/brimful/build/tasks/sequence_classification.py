"""Encoders, and decoders with a score, that put one of several labels on a text."""

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModelForSequenceClassification
from transformers.modeling_layers import GenericForSequenceClassification

from brimful.build.attention import model_inputs
from brimful.build.attention.own import attends_by_itself
from brimful.build.batch import IGNORE_INDEX, Batch
from brimful.build.blocks import body_of
from brimful.build.program import Program
from brimful.build.tasks.base import TaskParts
from brimful.build.tasks.encoders import encoder_masks, encoder_skeleton
from brimful.build.tasks.padding import padded_sample
from brimful.values.job import Job
from brimful.values.strategy import Strategy

_MASK = "attention_mask"
"""What every class calls the mask that it is given."""


class LabelLoss(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """Cross-entropy of one label for each text."""

    def forward(
        self,
        logits_BL: torch.Tensor,  # noqa: N803
        labels_B: torch.Tensor,  # noqa: N803
        num_targets: int,
    ) -> torch.Tensor:
        """Return the sum of the unmasked texts' losses divided by ``num_targets``.

        ``logits_BL``: [batch, labels]. ``labels_B``: [batch], or ``IGNORE_INDEX``.
        """
        total = functional.cross_entropy(
            logits_BL.float(), labels_B, reduction="sum", ignore_index=IGNORE_INDEX
        )
        return total / num_targets


def skeleton(job: Job, strategy: Strategy) -> nn.Module:
    """Build the classifier on ``meta``."""
    return encoder_skeleton(AutoModelForSequenceClassification, job, strategy)


def _is_scored(model: nn.Module) -> bool:
    """Whether it is a decoder whose last token is scored."""
    return isinstance(model, GenericForSequenceClassification) or hasattr(model, "score")


def loss(_model: nn.Module, _job: Job, _strategy: Strategy) -> LabelLoss:
    """Make the loss."""
    return LabelLoss()


def share(program: Program, batch: Batch, num_targets: int) -> torch.Tensor:
    """Return this micro-batch's share of the step's loss."""
    logits = _scores(program, batch) if _is_scored(program.model) else _classes(program, batch)
    total: torch.Tensor = program.loss(logits, batch.labels, num_targets)
    return total


def _classes(program: Program, batch: Batch) -> torch.Tensor:
    mask: Any
    if attends_by_itself(program.model):  # which makes of it what its own attention needs
        mask = None if batch.segments is None else (batch.segments != 0).long()
    else:
        mask = encoder_masks(program, batch)
    model: Any = program.model
    own_class: Any = type(model)
    told: Any = mask
    giving: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if batch.segments is not None and mask is not None and _heeds_padding(own_class):
        told, giving = (batch.segments != 0).long(), _given(body_of(model), mask)
    with giving:
        logits: torch.Tensor = model(input_ids=batch.inputs, attention_mask=told).logits
    return logits


@cache
def _heeds_padding(model_class: type[nn.Module]) -> bool:
    """Whether a class reads the mask of padding itself, as for a mean, and not its body alone."""
    source = inspect.getsource(inspect.unwrap(model_class.forward))
    nodes = list(ast.walk(ast.parse(textwrap.dedent(source))))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    given = [each for call in calls for each in (*call.args, *(k.value for k in call.keywords))]
    read = {id(node) for node in nodes if isinstance(node, ast.Name) and node.id == _MASK}
    return bool(read - {*map(id, given)})


@contextlib.contextmanager
def _given(body: nn.Module, mask: Any) -> Iterator[None]:
    """Give a body another mask than its head inside the block."""

    def swap(_body: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, {**kwargs, _MASK: mask}

    handle = body.register_forward_pre_hook(swap, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _scores(program: Program, batch: Batch) -> torch.Tensor:
    """Score the last token of each text; padding comes last and is seen by none before it."""
    hidden_BSD = body_of(program.model)(  # noqa: N806
        input_ids=batch.inputs, **model_inputs(program, batch), use_cache=False
    )[0]
    if batch.segments is None:
        last_BD = hidden_BSD[:, -1]  # noqa: N806
    else:
        last_B = (batch.segments != 0).sum(1).clamp(min=1) - 1  # noqa: N806
        where = last_B[:, None, None].expand(-1, 1, hidden_BSD.shape[2])
        last_BD = hidden_BSD.gather(1, where)[:, 0]  # noqa: N806
    logits: torch.Tensor = program.model.score(last_BD)
    return logits


def sample(job: Job, strategy: Strategy) -> Batch:
    """Make a micro-batch of texts as long as they get."""
    batch = padded_sample(job, strategy)
    return batch._replace(labels=torch.zeros(strategy.micro_batch, dtype=torch.int64, device="cpu"))


PARTS = TaskParts(skeleton=skeleton, loss=loss, share=share, sample=sample)
"""``packing`` is ``none``: one text a row."""
