"""Encoder-decoders that write one text after reading another: T5, BART, Marian, NLLB and others.

Shapes: B batch, S tokens read, T tokens written, D width.
"""

import contextlib
import inspect
import sys
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from brimful.build.attention import causal_mask
from brimful.build.batch import Batch
from brimful.build.blocks import body_of
from brimful.build.logits import (
    LogitWay,
    OwnWayError,
    before_head,
    mark_head,
    read_steps,
    read_way,
)
from brimful.build.loss import TokenLoss
from brimful.build.model import skeleton_of
from brimful.build.program import Program
from brimful.build.stream import query_dtype
from brimful.build.tasks.base import TaskParts
from brimful.build.tasks.padding import padded_sample, padding_mask
from brimful.errors import UnsupportedError
from brimful.models.architectures import MIXTURES
from brimful.models.class_source import is_causal_by_itself, lets_attend
from brimful.models.config import SEQ2SEQ_TYPES
from brimful.models.kernels import check_taken
from brimful.models.own_task import is_encoder_decoder
from brimful.values.job import Job
from brimful.values.strategy import Strategy

_MAKES_MASKS = "create_bidirectional_mask("
"""What a class calls that takes a mask of numbers, [B, 1, 1 or S, S], as it is."""
_SEVERAL_MASKS = "sliding_window"
"""What is in the source of a class whose blocks want masks of more than one kind."""
_ACROSS = "encoder_attention_mask"
"""What a decoder takes that is told which tokens of what was read are padding."""
_BETWEEN = "enc_to_dec_proj"
"""What takes states that were read to the width of what writes, in a pair of two widths."""
_SCALES = "model_dim**-0.5"
"""What T5 and its kin multiply states by before the head, where it is tied."""
_ADDED = "final_logits_bias"
"""What BART and its kin call numbers that are added to logits and not trained, one a word."""


def skeleton(job: Job, strategy: Strategy) -> nn.Module:
    """Build the encoder-decoder on ``meta``."""
    if not is_encoder_decoder(job.model.model_type):
        raise UnsupportedError(
            f"task=seq2seq trains models that read one text and write another, as T5 and BART, and "
            f"{job.model.name} is of type {job.model.model_type}; use another task or model"
        )
    check_taken(job, strategy.attention)
    model = skeleton_of(AutoModelForSeq2SeqLM, job, strategy)
    is_ours = job.model.model_type in SEQ2SEQ_TYPES or _takes_masks(model)
    if not is_ours and not _masks_by_itself(model):
        raise UnsupportedError(
            f"{job.model.name} is of type {job.model.model_type}, whose decoder neither takes "
            f"masks from outside nor hides by itself what is written later and what is padding; "
            f"use T5, BART, Pegasus, Marian, M2M-100 or their kin"
        )
    if _makes_several(model) and strategy.attention != "eager":
        raise UnsupportedError(
            f"{job.model.name} is of type {job.model.model_type}, which makes masks of several "
            f"kinds by itself; use attention=eager",
            nearest={"attention": "eager"},
        )
    _mark_heads(model, job)
    if model.config.pad_token_id is None:  # a pair's writer has it
        model.config.pad_token_id = model.config.get_text_config(decoder=True).pad_token_id
    if getattr(model.config, "decoder_start_token_id", None) is None:
        # T5 begins what it writes with padding; a bare config leaves that out.
        model.config.decoder_start_token_id = model.config.pad_token_id
    return model


def _mark_heads(model: Any, job: Job) -> None:
    """Note how logits are made: of a writer with a head of its own, as of any decoder."""
    writer = model.get_decoder()
    if not _has_head(writer):
        with contextlib.suppress(OwnWayError):
            mark_head(model, LogitWay((), read_steps(model)))
        return
    try:
        mark_head(writer, read_way(writer))
    except OwnWayError as error:
        raise UnsupportedError(
            f"{job.model.name} writes with a model of type {writer.config.model_type}, which "
            f"changes its logits after the output layer by more than a scale or a cap; use T5, "
            f"BART, Pegasus, Marian, M2M-100 or their kin"
        ) from error


def _has_head(writer: Any) -> bool:
    """Whether what writes is a model with a head, as in a pair of two that were made apart."""
    return writer.get_output_embeddings() is not None


def loss(model: nn.Module, _job: Job, strategy: Strategy) -> TokenLoss:
    """Make the loss over the model's own head, whole or in chunks."""
    added = partial(getattr, model, _ADDED) if hasattr(model, _ADDED) else None
    head = model.get_output_embeddings()
    return TokenLoss(head, num_chunks=strategy.loss_chunks, added=added)


def share(program: Program, batch: Batch, num_targets: int) -> torch.Tensor:
    """Return this micro-batch's share of the step's loss."""
    model = program.model
    dtype = query_dtype(model, program.job, program.strategy, program.device)
    masks = _told_padding(batch) if _masks_by_itself(model) else _masks(model, batch, dtype)
    read_BSD = model.get_encoder()(  # noqa: N806
        input_ids=batch.inputs, attention_mask=masks.read
    )[0]
    if (between := getattr(model, _BETWEEN, None)) is not None:
        read_BSD = between(read_BSD)  # noqa: N806
    writer = model.get_decoder()
    written_BTD = (body_of(writer) if _has_head(writer) else writer)(  # noqa: N806
        input_ids=_written_so_far(model, batch.labels),
        attention_mask=masks.written,
        encoder_hidden_states=read_BSD,
        encoder_attention_mask=masks.across,
        use_cache=False,
    )[0]
    written_BTD = before_head(writer, written_BTD)  # noqa: N806
    # Whether states shrink before the head: where it is tied (Mesh TensorFlow's T5).
    config = model.config
    is_tied = getattr(config, "tie_word_embeddings", False)
    is_tied = getattr(config, "scale_decoder_outputs", is_tied)
    of = _class_of(model)
    if bool(is_tied) and _SCALES in _forward_source(of.__module__, of.__name__):
        written_BTD = written_BTD * model.config.d_model**-0.5  # noqa: N806
    total: torch.Tensor = program.loss(
        written_BTD.flatten(0, 1), batch.labels.flatten(), num_targets
    )
    return total


class _Masks(NamedTuple):
    """What hides tokens from others; None: nothing, or what the class itself makes of nothing.

    Attributes:
        read: From what is read, padding.
        written: From what is written, what is written later.
        across: From what is written, padding of what is read.
    """

    read: torch.Tensor | None
    written: torch.Tensor | None
    across: torch.Tensor | None


def _masks(model: Any, batch: Batch, dtype: torch.dtype) -> _Masks:
    """Make the masks of a class that hands on those that it is given."""
    mask = padding_mask(batch, dtype)
    return _Masks(_for_encoder(model, batch, mask), _not_ahead(batch, dtype), mask)


def _told_padding(batch: Batch) -> _Masks:
    """Say which tokens are no padding, [B, S], to a class that makes all its masks of that."""
    seen = None if batch.segments is None else (batch.segments != 0).long()
    return _Masks(seen, None, seen)


def _for_encoder(model: Any, batch: Batch, mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return the mask as the encoder wants it: Switch's makes its own of 0 and 1, [B, S]."""
    if model.config.model_type not in MIXTURES or batch.segments is None:
        return mask
    return (batch.segments != 0).to(model.get_input_embeddings().weight.dtype)


def _not_ahead(batch: Batch, dtype: torch.dtype) -> torch.Tensor:
    """Make the mask under which a token sees those before it; padding comes last. [1, 1, T, T]."""
    mask = causal_mask(
        "eager", seq_len=batch.labels.shape[1], dtype=dtype, device=batch.labels.device
    )
    assert mask is not None  # attention written out always has one
    return mask


def _written_so_far(model: Any, labels_BT: torch.Tensor) -> torch.Tensor:  # noqa: N803
    """Shift labels as the class's own forward does, after what its texts begin with. [B, T]."""
    config = model.config
    if hasattr(model, "prepare_decoder_input_ids_from_labels"):
        shifted: torch.Tensor = model.prepare_decoder_input_ids_from_labels(labels_BT)
        return shifted
    shift = _module_of(model).shift_tokens_right
    moved: torch.Tensor = shift(labels_BT, config.pad_token_id, config.decoder_start_token_id)
    return moved


@cache
def _forward_source(module: str, name: str) -> str:
    return inspect.getsource(inspect.unwrap(getattr(sys.modules[module], name).forward))


def _takes_masks(model: nn.Module) -> bool:
    """Whether a class attends by a kernel's rules and hands on the one mask that it is given."""
    source = _source(_module_of(model).__name__)
    return _MAKES_MASKS in source and _SEVERAL_MASKS not in source and lets_attend(source)


def _masks_by_itself(model: Any) -> bool:
    """Whether a class that attends by itself makes its masks of what is padding, in both stacks."""
    if model.config.model_type in SEQ2SEQ_TYPES:
        return False
    source = _source(_module_of(model).__name__)
    of = _class_of(model.get_decoder())
    written = inspect.signature(inspect.unwrap(of.forward)).parameters
    is_alone = not lets_attend(source) or _makes_several(model)
    return is_alone and is_causal_by_itself(source) and _ACROSS in written


def _makes_several(model: nn.Module) -> bool:
    """Whether a class makes masks of several kinds, though it lets others attend."""
    source = _source(_module_of(model).__name__)
    return _MAKES_MASKS in source and _SEVERAL_MASKS in source and lets_attend(source)


@cache
def _source(module: str) -> str:
    return inspect.getsource(sys.modules[module])


def _module_of(model: nn.Module) -> Any:
    return sys.modules[_class_of(model).__module__]


def _class_of(model: nn.Module) -> type[nn.Module]:
    """Return the class of transformers under one that shards."""
    return next(each for each in type(model).__mro__ if each.__module__.startswith("transformers."))


def sample(job: Job, strategy: Strategy) -> Batch:
    """Make a micro-batch of texts as long as they get, read and written."""
    return padded_sample(job, strategy)


PARTS = TaskParts(skeleton=skeleton, loss=loss, share=share, sample=sample)
