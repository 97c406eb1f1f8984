"""litgpt's fine-tuning scripts as they were: the model, its precision, its loop and its loss.

Knows nothing of published figures. What a script keeps alive between iterations is kept here under
the same names: the last ``logits`` and ``loss`` hold on to the last graph.

Source: ``finetune/*.py``, ``lit_gpt/utils.py`` (``chunked_cross_entropy``) of Lightning-AI/litgpt;
``lightning/fabric/plugins/precision/half.py`` (what a model returns is cast to fp32).
"""

from typing import Literal

import litgpt_traced
import msgspec
import torch
from bitsandbytes_parts import PagedAdamW, Quantized
from litgpt_linear import Linears, Lora, MethodName, freeze
from litgpt_model import GPT, Dims
from torch import Tensor

HEAD_CHUNK = 128
"""Tokens per chunk of logits, in every fine-tuning script but the full one."""
OTHER_LENGTH = 256
"""A later batch of the tables' runs, of ordinary samples; far from the longest."""
Era = Literal["2023-10", "2024"]


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was run.

    Attributes:
        model: Name in the table of models.
        method: Which script.
        micro_batch: Sequences per forward.
        seq_len: Tokens of the longest sample.
        lora: Its settings.
        quantized: How frozen linear weights are kept.
        era: Which state of the scripts.
        task: Which loop: pre-training has no chunks of logits and drops them at once.
        traced: Whether Lightning Thunder compiles it; pre-training only.
        longest_comes: ``first``: once, before there are gradients; ``ever``: after them too, and
            after another of that length, whose graph is still held by its logits.
        gpu: The card that is pretended.
    """

    model: str
    method: MethodName
    micro_batch: int
    seq_len: int
    lora: Lora = Lora()
    quantized: Quantized = "none"
    era: Era = "2023-10"
    task: Literal["finetune", "pretrain"] = "finetune"
    traced: bool = False
    longest_comes: Literal["first", "ever"] = "first"
    gpu: str = "a100-40gb"


def build(config: Config, dims: Dims) -> GPT:
    """Make the model on the default device, with its weights in bf16 or 4 bits."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = GPT(
            dims,
            Linears(dims, config.method, config.lora, config.quantized),
            prompts=config.method.startswith("adapter"),
            casts_product=config.era == "2023-10",
        )
    finally:
        torch.set_default_dtype(before)
    model.set_length(min(config.seq_len, dims.block_size), torch.float32)
    return model


def train(config: Config, dims: Dims) -> None:
    """Load, and take two optimizer steps.

    Args:
        config: What is run.
        dims: Size of the model.
    """
    model = build(config, dims)
    parameters = freeze(model, config.method)
    optimizer = _optimizer(config, parameters)
    if config.task == "pretrain":
        _pretrain(config, model, optimizer)
        return
    for lengths in _lengths(config):
        for length in lengths:
            ids = torch.zeros((config.micro_batch, length), dtype=torch.int64)
            targets = torch.zeros_like(ids)
            logits = _forward(model, ids, HEAD_CHUNK if config.method != "full" else 0)
            if isinstance(logits, list):
                logits[-1] = logits[-1][..., :-1, :]
                loss = loss_of_chunks(logits, targets[..., 1:])
            else:
                chunked = config.era == "2024"
                loss = loss_of_whole(logits[..., :-1, :], targets[..., 1:], chunked=chunked)
            (loss / len(lengths)).backward()
            if config.era == "2024":
                loss = torch.zeros(())  # the running mean's value, for the log
        optimizer.step()
        optimizer.zero_grad()


def _pretrain(config: Config, model: GPT, optimizer: torch.optim.Optimizer) -> None:
    if config.traced:
        litgpt_traced.trace(model)
    for _ in range(2):
        for _ in range(2):
            ids = torch.zeros((config.micro_batch, config.seq_len), dtype=torch.int64)
            loss = _loss_of_batch(config, model, ids)
            (loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()


def _loss_of_batch(config: Config, model: GPT, ids: Tensor) -> Tensor:
    """Return the mean loss of a batch, whose logits nobody holds afterwards."""
    targets = torch.zeros_like(ids)
    if config.traced:
        return litgpt_traced.loss_of(model(ids), targets)
    logits = _forward(model, ids, 0)
    assert isinstance(logits, Tensor)
    return loss_of_whole(logits, targets, chunked=False)


def _lengths(config: Config) -> tuple[tuple[int, ...], ...]:
    """Return the length of the longest sample of every batch, step by step."""
    longest, other = config.seq_len, min(OTHER_LENGTH, config.seq_len)
    if config.longest_comes == "first":
        return (longest, other), (other, other)
    return (longest, longest), (longest, longest)


def _optimizer(config: Config, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    if config.quantized != "none":
        return PagedAdamW(parameters)
    fused = config.task == "pretrain"
    return torch.optim.AdamW(parameters, lr=3e-4, weight_decay=0.01, fused=fused, foreach=not fused)


def _forward(model: GPT, ids: Tensor, head_chunk: int) -> Tensor | list[Tensor]:
    """Call the model as Fabric's wrapper does: what it returns comes out in fp32."""
    output = model(ids, head_chunk)
    return [x.float() for x in output] if isinstance(output, list) else output.float()


def loss_of_chunks(logits: list[Tensor], targets: Tensor) -> Tensor:
    """Return the mean loss, chunk by chunk, so that the backward pass frees chunk by chunk."""
    flat = [chunk.reshape(-1, chunk.size(-1)) for chunk in logits]
    parts = [chunk.reshape(-1) for chunk in targets.split(logits[0].size(1), dim=1)]
    losses = [
        torch.nn.functional.cross_entropy(x, y, ignore_index=-1, reduction="none")
        for x, y in zip(flat, parts, strict=True)
    ]
    return torch.cat(losses).mean()


def loss_of_whole(logits: Tensor, targets: Tensor, *, chunked: bool) -> Tensor:
    """Return the mean loss of logits that came in one piece, computed in one or in chunks."""
    logits, targets = logits.reshape(-1, logits.size(-1)), targets.reshape(-1)
    if not chunked:
        return torch.nn.functional.cross_entropy(logits, targets, ignore_index=-1)
    losses = [
        torch.nn.functional.cross_entropy(x, y, ignore_index=-1, reduction="none")
        for x, y in zip(logits.split(HEAD_CHUNK), targets.split(HEAD_CHUNK), strict=True)
    ]
    return torch.cat(losses).mean()
