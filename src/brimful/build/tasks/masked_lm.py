"""Encoders that tell which tokens were hidden, from those on both sides: BERT, RoBERTa, ESM-2.

A class of ``transformers`` has layers of its own between its body and its logits, and calls them as
it likes. They are run by its own ``forward``, which is handed hidden states in the place of what
its body returns: so it is for a chunk of the tokens as for all.

Shapes: N tokens, D width, V vocabulary.
"""

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForMaskedLM
from transformers.modeling_outputs import BaseModelOutput

from brimful.build.attention.own import attends_by_itself
from brimful.build.batch import Batch
from brimful.build.blocks import body_of
from brimful.build.loss import TokenLoss
from brimful.build.program import Program
from brimful.build.tasks.base import TaskParts
from brimful.build.tasks.encoders import encoder_masks, encoder_skeleton
from brimful.errors import UnsupportedError
from brimful.values.job import Job
from brimful.values.strategy import Strategy


def skeleton(job: Job, strategy: Strategy) -> nn.Module:
    """Build the encoder with its head on ``meta``."""
    model: nn.Module = encoder_skeleton(AutoModelForMaskedLM, job, strategy)
    if _place_of_body(model) is None:
        raise UnsupportedError(
            f"{job.model.name} is of type {job.model.model_type}, whose masked-token head is not "
            f"apart from its body; use an encoder like bert"
        )
    return model


def _place_of_body(model: nn.Module) -> str | None:
    """Return what a model calls its body; None where that is not a part of it by itself."""
    body = body_of(model)
    return next((name for name, child in model.named_children() if child is body), None)


class _Given:
    """Stands for a body that returns hidden states which are there already."""

    def __init__(self, body: nn.Module, hidden: torch.Tensor) -> None:
        self._body = body
        self._returned = BaseModelOutput(last_hidden_state=hidden)

    def __call__(self, *_args: Any, **_kwargs: Any) -> BaseModelOutput:
        return self._returned

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)  # as of a head that reads its table of words


class _Head(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """What a class does behind its body, and the layers that it does it with."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(m for m in model.children() if m is not body_of(model))
        self._whole = (model,)  # which is no part of its head

    def forward(self, hidden_ND: torch.Tensor) -> torch.Tensor:  # noqa: N803
        (model,), place = self._whole, _place_of_body(self._whole[0])
        assert place is not None  # ``skeleton`` looked
        attributes = vars(model)  # which are looked at before the modules
        attributes[place] = _Given(body_of(model), hidden_ND[None])
        try:
            logits_NV: torch.Tensor = model.forward().logits[0]  # noqa: N806
        finally:
            del attributes[place]
        return logits_NV


def loss(model: nn.Module, _job: Job, strategy: Strategy) -> TokenLoss:
    """Make the loss over the model's own head, whole or in chunks.

    Logits are made of all tokens, as ``transformers`` makes them.
    """
    return TokenLoss(_Head(model), num_chunks=strategy.loss_chunks)


def share(program: Program, batch: Batch, num_targets: int) -> torch.Tensor:
    """Return this micro-batch's share of the step's loss."""
    model = program.model
    mask = None if attends_by_itself(model) else encoder_masks(program, batch)
    hidden = body_of(model)(input_ids=batch.inputs, attention_mask=mask)[0]
    total: torch.Tensor = program.loss(hidden.flatten(0, 1), batch.labels.flatten(), num_targets)
    return total


def sample(job: Job, strategy: Strategy) -> Batch:
    """Make a micro-batch of whole rows; which tokens are hidden decides no size."""
    shape = (strategy.micro_batch, job.seq_len)
    ids = torch.zeros((), dtype=torch.int64, device="cpu").expand(shape)
    return Batch(ids, ids)


PARTS = TaskParts(skeleton=skeleton, loss=loss, share=share, sample=sample)
"""``packing`` is ``wrapped``: whole rows, without padding."""
