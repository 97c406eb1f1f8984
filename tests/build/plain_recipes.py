"""Slow and obvious training loops, one per recipe and rule, that the build path must equal.

Everything stands written out: autocast and GradScaler by hand, masters in a dictionary, a clip in
one line. Nothing is shared with the package.
"""

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from .plain import MASKED, ragged_batch

HELD = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "bf16-mixed": torch.float32,
    "fp16-mixed": torch.float32,
    "bf16-master": torch.bfloat16,
    "fp16-master": torch.float16,
}
AUTOCAST = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}


def plain_recipe_run(job, weights, *, num_steps, is_flipped=False):
    """Train; returns the model and (loss, gradient norm, scale, skipped) of every step.

    ``is_flipped``: with the rows of every batch in the other order, which changes nothing but the
    order of sums.
    """
    model = _model(job, weights)
    trained = dict(model.named_parameters())
    if job.precision.endswith("-master"):
        trained = {name: p.detach().float() for name, p in trained.items()}
    optimizer = _optimizer(job, list(trained.values()))
    scaler = _scaler(job)
    rows = []
    for step in range(num_steps):
        scale = scaler.get_scale()
        loss = _loss(job, model, step, is_flipped=is_flipped)
        scaler.scale(loss).backward()
        for parameter, master in zip(model.parameters(), trained.values(), strict=True):
            master.grad = parameter.grad.to(master.dtype)
        scaler.unscale_(optimizer)
        norm = torch.stack([p.grad.double().pow(2).sum() for p in trained.values()]).sum().sqrt()
        if job.clip and norm > job.clip:
            for parameter in trained.values():
                parameter.grad *= (job.clip / norm).float()
        scaler.step(optimizer)
        scaler.update()
        for parameter, master in zip(model.parameters(), trained.values(), strict=True):
            parameter.data.copy_(master)
        model.zero_grad()
        optimizer.zero_grad()
        rows.append((float(loss.detach()), float(norm), scale, not torch.isfinite(norm)))
    return model, rows


def _model(job, weights):
    fields = {**job.model.hf_config, "use_cache": False}
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(job.model.model_type, **fields),
        dtype=HELD[job.precision],
        attn_implementation="eager",
    )
    model.load_state_dict(weights)
    return model.train()


def _scaler(job):
    if job.loss_scale is None:
        return _NoScaler()
    s = job.loss_scale
    return torch.amp.GradScaler(
        "cpu",
        init_scale=s.initial_scale,
        growth_factor=s.growth_factor,
        backoff_factor=s.backoff_factor,
        growth_interval=s.growth_interval,
    )


class _NoScaler:
    def get_scale(self):
        return None

    def scale(self, loss):
        return loss

    def unscale_(self, optimizer):
        pass

    def step(self, optimizer):
        optimizer.step()

    def update(self):
        pass


BITSANDBYTES = {
    "adamw-8bit": "AdamW8bit",
    "paged-adamw-8bit": "AdamW8bit",
    "paged-adamw-32bit": "AdamW32bit",
}
"""What paged ones are on a CPU too, where they warn that they do not page."""


def _optimizer(job, parameters):
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": job.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    lr, betas, eps = job.learning_rate, (job.beta1, job.beta2), job.epsilon
    if job.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=job.beta1, foreach=False)
    if job.optimizer == "adafactor":
        return torch.optim.Adafactor(groups, lr=lr)
    if job.optimizer in BITSANDBYTES:
        import bitsandbytes

        rule = getattr(bitsandbytes.optim, BITSANDBYTES[job.optimizer])
        return rule(groups, lr=lr, betas=betas, eps=eps)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, foreach=False, fused=False)


def _loss(job, model, step, *, is_flipped):
    input_ids, labels = ragged_batch(job, step=step)
    if is_flipped:
        input_ids, labels = input_ids.flip(0), labels.flip(0)
    dtype = AUTOCAST.get(job.precision)
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        logits = model(input_ids=input_ids).logits.flatten(0, 1)
    chosen = labels.flatten() != MASKED
    log_probabilities = logits.float().log_softmax(-1)[chosen]
    return -log_probabilities.gather(1, labels.flatten()[chosen, None]).sum() / chosen.sum()
