"""The slow and obvious training loop that every switch must equal: one sample at a time, in fp32.

No padding, no packing, no micro-batches, no kernels, no checkpointing, no accumulated mean: each
sample runs alone through the model as ``transformers`` builds it, attention written out.
"""

import re
from typing import Any, NamedTuple

import torch
from plain_module import network
from ragged import Sample, samples_of
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
)

from brimful.build.batch import IGNORE_INDEX
from brimful.values.job import Job

_CLASSES = {
    "causal-lm": AutoModelForCausalLM,
    "chat": AutoModelForCausalLM,
    "sequence-classification": AutoModelForSequenceClassification,
    "seq2seq": AutoModelForSeq2SeqLM,
}
_NO_DROPOUT = (
    "attention_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "hidden_dropout_prob",
    "attention_probs_dropout_prob", "classifier_dropout", "dropout_rate", "router_jitter_noise",
)  # fmt: skip
_OF_BLOCKS = re.compile(r"\.(layers|layer|h)\.\d")
Step = tuple[float, float]
"""Mean loss per target, and the gradient norm before the clip."""
RULES = frozenset({"adamw", "adamw-foreach", "adamw-8bit", "adafactor", "muon", "sgd"})
"""Optimizers that it has."""


class Run(NamedTuple):
    """What a run was, and the model that it ended with."""

    steps: list[Step]
    model: nn.Module


def plain_run(job: Job, weights: dict[str, torch.Tensor], *, num_steps: int) -> Run:
    """Train from given weights.

    Args:
        job: What is trained; its strategy plays no part.
        weights: Of the model at the start, by the names that the build path gives.
        num_steps: How many.
    """
    model = _model(job)
    model.load_state_dict(weights)
    model.train()
    optimizer, numbers = _optimizer(job, model), range(num_steps)
    return Run([_step(job, model, optimizer, samples_of(job, step=n)) for n in numbers], model)


def _model(job: Job) -> nn.Module:
    if job.task == "module":
        return network()
    fields = {**job.model.hf_config, "use_cache": False}
    config = AutoConfig.for_model(job.model.model_type, **fields)
    for name in _NO_DROPOUT:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    model = _CLASSES[job.task].from_config(config, dtype=torch.float32, attn_implementation="eager")
    return _with_adapters(job, model)


def _with_adapters(job: Job, model: Any) -> Any:
    """Let PEFT put adapters in as its own users do; the wrapper is taken off again."""
    if job.adapter is None:
        return model
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=job.adapter.rank,
        lora_alpha=job.adapter.alpha,
        target_modules=job.adapter.targets[0]
        if job.adapter.targets == ("all-linear",)
        else list(job.adapter.targets),
        use_dora=job.method == "dora",
        fan_in_fan_out=job.model.model_type == "gpt2",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config).base_model.model


def _optimizer(job: Job, model: nn.Module) -> Any:
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": job.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    if job.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=job.learning_rate, momentum=job.beta1, foreach=False)
    if job.optimizer == "adafactor":
        return torch.optim.Adafactor(groups, lr=job.learning_rate, foreach=False)
    rates: dict[str, Any] = {
        "lr": job.learning_rate, "betas": (job.beta1, job.beta2), "eps": job.epsilon,
    }  # fmt: skip
    if job.optimizer == "adamw-8bit":
        from bitsandbytes.optim import AdamW8bit

        return AdamW8bit(groups, **rates)
    if job.optimizer == "muon":
        hidden = {
            p for name, p in model.named_parameters()
            if _OF_BLOCKS.search(name) and p.ndim > 1 and not name.endswith("bias")
        }  # fmt: skip
        decay = {"weight_decay": job.weight_decay, "adjust_lr_fn": "match_rms_adamw"}
        muon = _EachMatrix(
            [p for p in trained if p in hidden],
            lambda parts: torch.optim.Muon(parts, lr=job.learning_rate, **decay),
        )
        for group in groups:
            group["params"] = [p for p in group["params"] if p not in hidden]
        return _Both(muon, torch.optim.AdamW(groups, **rates, foreach=False))
    return torch.optim.AdamW(groups, **rates, foreach=False)


class _EachMatrix:
    """An optimizer of matrices, over those of stacks too: a parameter each, of the same memory."""

    def __init__(self, parameters: list[nn.Parameter], rule: Any) -> None:
        self._places = [
            (nn.Parameter(part), parameter, index)
            for parameter in parameters
            for index, part in enumerate(parameter.data.view(-1, *parameter.shape[-2:]))
        ]
        self._rule = rule([part for part, *_ in self._places])

    def zero_grad(self) -> None:
        for _, parameter, _ in self._places:
            parameter.grad = None

    def step(self) -> None:
        for part, parameter, index in self._places:
            part.grad = parameter.grad.reshape(-1, *part.shape)[index]
        self._rule.step()


class _Both:
    """Two optimizers, one after the other."""

    def __init__(self, *each: Any) -> None:
        self._each = each

    def zero_grad(self) -> None:
        for one in self._each:
            one.zero_grad()

    def step(self) -> None:
        for one in self._each:
            one.step()


def _step(job: Job, model: nn.Module, optimizer: Any, samples: list[Sample]) -> Step:
    num_targets = sum(int((sample.labels != IGNORE_INDEX).sum()) for sample in samples)
    loss = torch.stack([_loss(job, model, sample) for sample in samples]).sum() / num_targets
    # Zeros, not None, for an expert that no token chose: momentum and decay go on, as wherever
    # experts have fixed places or gradients are reduced.
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    norm = torch.stack([gradient.pow(2).sum() for gradient in gradients]).sum().sqrt()
    if job.clip and norm > job.clip:
        for gradient in gradients:
            gradient.mul_(job.clip / norm)
    optimizer.step()
    return float(loss.detach()), float(norm)


def _loss(job: Job, model: nn.Module, sample: Sample) -> torch.Tensor:
    """Sum the negative log-probabilities of one sample's targets."""
    logits = _logits(job, model, sample)
    labels = sample.labels.reshape(-1)
    chosen = labels != IGNORE_INDEX
    log_probabilities = logits.log_softmax(-1)[chosen]
    return -log_probabilities.gather(1, labels[chosen, None]).sum()


def _logits(job: Job, model: Any, sample: Sample) -> torch.Tensor:
    inputs = sample.inputs[None]
    if job.task == "module":
        return model(inputs)
    if job.task == "seq2seq":
        start = torch.full((1,), model.config.decoder_start_token_id)
        before = sample.labels[:-1].where(sample.labels[:-1] != IGNORE_INDEX, 0)
        written = torch.cat([start, before])[None]
        return model(input_ids=inputs, decoder_input_ids=written).logits[0]
    return model(input_ids=inputs).logits[0].reshape(-1, _width(job, model))


def _width(job: Job, model: Any) -> int:
    return (
        model.config.num_labels if job.task == "sequence-classification" else job.model.vocab_size
    )
