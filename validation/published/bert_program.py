"""The fine-tuning run of Hugging Face's page on one GPU, as its Trainer took it in January 2022.

Knows nothing of published figures.

Source: ``docs/source/en/perf_train_gpu_one.mdx``, ``trainer.py`` and ``optimization.py``
(``AdamW``) of huggingface/transformers, 4.15; ``torch/nn/utils/clip_grad.py`` of PyTorch 1.10.
"""

import contextlib
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
import torch
from bert_model import Classifier, Dims
from bitsandbytes_parts import Adam8bit
from torch import Tensor, nn

NUM_STEPS = 3
CLIP = 1.0


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was run.

    Attributes:
        micro_batch: Sequences per forward.
        accumulation: Forwards per step.
        seq_len: Tokens per sequence.
        checkpointed: Whether every layer is recomputed.
        fp16: Whether under autocast with loss scaling.
        optimizer: The Trainer's own AdamW, or bitsandbytes' Adam with 8-bit states.
        dims: Size of the model.
        context_mib: What the process held of the GPU before the first tensor of the model.
    """

    micro_batch: int
    accumulation: int
    seq_len: int = 512
    checkpointed: bool = False
    fp16: bool = False
    optimizer: Literal["adamw", "adam-8bit"] = "adamw"
    dims: Dims = Dims()
    context_mib: int = 1343


class HuggingFaceAdamW(torch.optim.Optimizer):  # type: ignore[misc]
    """The Trainer's AdamW of the time: parameter by parameter, one temporary each."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        """Take the parameters."""
        super().__init__(parameters, {})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Update."""
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state["mean"], state["square"] = (torch.zeros_like(parameter) for _ in range(2))
            state["mean"].mul_(0.9).add_(parameter.grad, alpha=0.1)
            state["square"].mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
            denominator = state["square"].sqrt().add_(1e-8)
            parameter.addcdiv_(state["mean"], denominator, value=-1.0)


def train(config: Config) -> None:
    """Load, and take optimizer steps; gradients are zeroed in place and stay.

    Args:
        config: What is run.
    """
    probe = torch.ones((1, 1))  # the page's first tensor, which makes the context
    model = Classifier(config.dims, checkpointed=config.checkpointed)
    model.train()
    optimizer = (HuggingFaceAdamW if config.optimizer == "adamw" else Adam8bit)(model.parameters())
    for _ in range(NUM_STEPS):
        total = torch.zeros(())
        for _ in range(config.accumulation):
            total += _backward(config, model)
        _clip(list(model.parameters()))
        optimizer.step()
        model.zero_grad(set_to_none=False)
    del probe


def _backward(config: Config, model: Classifier) -> Tensor:
    ids = torch.zeros((config.micro_batch, config.seq_len), dtype=torch.int64)
    labels = torch.zeros(config.micro_batch, dtype=torch.int64)
    with torch.autocast("gpu", torch.float16) if config.fp16 else contextlib.nullcontext():
        loss = model(ids, labels)
    if config.accumulation > 1:
        loss = loss / config.accumulation
    (loss * 65536.0 if config.fp16 else loss).backward()
    return loss.detach()


@torch.no_grad()  # type: ignore[untyped-decorator]
def _clip(parameters: list[nn.Parameter]) -> None:
    norm = torch.norm(torch.stack([torch.norm(p.grad) for p in parameters]))
    scale = (CLIP / (norm + 1e-6)).clamp(max=1.0)
    for parameter in parameters:
        parameter.grad.mul_(scale)
