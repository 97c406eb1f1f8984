"""Encoder-decoders that write one text after reading another: T5, and Switch with its experts.

Shapes: B batch, S tokens read, T tokens written, D width.
"""

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM

from brimful.build.attention import causal_mask
from brimful.build.batch import Batch
from brimful.build.loss import TokenLoss
from brimful.build.model import skeleton_of
from brimful.build.program import Program
from brimful.build.stream import query_dtype
from brimful.build.tasks.base import TaskParts
from brimful.build.tasks.padding import padded_sample, padding_mask
from brimful.errors import UnsupportedError
from brimful.models.architectures import MIXTURES
from brimful.models.config import SEQ2SEQ_TYPES
from brimful.models.kernels import check_taken
from brimful.values.job import Job
from brimful.values.strategy import Strategy


def skeleton(job: Job, strategy: Strategy) -> nn.Module:
    """Build the encoder-decoder on ``meta``.

    Raises:
        UnsupportedError: It is of another kind, or its attention takes no mask.
    """
    if job.model.model_type not in SEQ2SEQ_TYPES:
        raise UnsupportedError(
            f"task=seq2seq trains {' and '.join(sorted(SEQ2SEQ_TYPES))}, and {job.model.name} is "
            f"of type {job.model.model_type}; use another task or model"
        )
    check_taken(job, strategy.attention)
    model = skeleton_of(AutoModelForSeq2SeqLM, job, strategy)
    if getattr(model.config, "decoder_start_token_id", None) is None:
        # T5 begins what it writes with padding; a bare config leaves that out.
        model.config.decoder_start_token_id = model.config.pad_token_id
    return model


def loss(model: nn.Module, _job: Job, strategy: Strategy) -> TokenLoss:
    """Make the loss over the model's own head, whole or in chunks."""
    return TokenLoss(model.get_output_embeddings(), num_chunks=strategy.loss_chunks)


def share(program: Program, batch: Batch, num_targets: int) -> torch.Tensor:
    """Return this micro-batch's share of the step's loss."""
    model = program.model
    dtype = query_dtype(model, program.job, program.strategy, program.device)
    mask = padding_mask(batch, dtype)
    read_BSD = model.get_encoder()(  # noqa: N806
        input_ids=batch.inputs, attention_mask=_for_encoder(model, batch, mask)
    )[0]
    written_BTD = model.get_decoder()(  # noqa: N806
        input_ids=model._shift_right(batch.labels),  # noqa: SLF001 - what forward does with labels
        attention_mask=_not_ahead(batch, dtype),
        encoder_hidden_states=read_BSD,
        encoder_attention_mask=mask,
        use_cache=False,
    )[0]
    if _is_scaled(model.config):
        written_BTD = written_BTD * model.config.d_model**-0.5  # noqa: N806
    total: torch.Tensor = program.loss(
        written_BTD.flatten(0, 1), batch.labels.flatten(), num_targets
    )
    return total


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


def _is_scaled(config: Any) -> bool:
    """Whether states shrink before the head: where it is tied (Mesh TensorFlow's T5)."""
    return bool(getattr(config, "scale_decoder_outputs", config.tie_word_embeddings))


def sample(job: Job, strategy: Strategy) -> Batch:
    """Make a micro-batch of texts as long as they get, read and written."""
    return padded_sample(job, strategy)


PARTS = TaskParts(skeleton=skeleton, loss=loss, share=share, sample=sample)
