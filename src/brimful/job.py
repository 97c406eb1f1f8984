"""What the user wants to train. Changing a Job changes the mathematics; nothing else may."""

from typing import Literal

import msgspec

from brimful.errors import InputError
from brimful.models.spec import ModelSpec

Task = Literal["causal-lm"]
Method = Literal["full"]
Precision = Literal["fp32", "bf16", "bf16-mixed"]
Optimizer = Literal["adamw"]


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A training job.

    Attributes:
        model: What is trained.
        task: What the loss is; ``causal-lm`` predicts each next token.
        method: Which parameters are trained; ``full`` trains all.
        precision: The recipe (see ``brimful.cost.recipes``).
        optimizer: The update rule; ``adamw`` is torch's fused AdamW.
        seq_len: Tokens per sequence.
        global_batch: Sequences per optimizer step, over all devices and micro-batches.
        num_steps: Optimizer steps of the run.
        learning_rate: Peak learning rate, reached after ``warmup_steps``, then a cosine to a tenth.
        warmup_steps: Steps of linear warm-up.
        weight_decay: Decoupled decay, on matrices only.
        clip: Largest global gradient norm; 0 leaves gradients alone.
        seed: Seed of the initial weights and of the data order.
    """

    model: ModelSpec
    task: Task
    method: Method
    precision: Precision
    optimizer: Optimizer
    seq_len: int
    global_batch: int
    num_steps: int
    learning_rate: float
    warmup_steps: int
    weight_decay: float
    clip: float
    seed: int

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step sees."""
        return self.global_batch * self.seq_len


MAX_COUNT = 10**9
"""Batches, lengths and steps beyond this are typing errors, and overflow no arithmetic below it."""
MAX_SEED = 2**63 - 1
"""The largest that torch and YAML readers of every language agree on."""


def check_job(job: Job) -> Job:
    """Return the job as it is, or say what is wrong with it.

    Raises:
        InputError: A size is absurd, or the sequence is longer than the model's positions.
    """
    for field in ("seq_len", "global_batch", "num_steps"):
        value = getattr(job, field)
        if not 1 <= value <= MAX_COUNT:
            raise InputError(f"{field}={value} is out of range; give 1 to {MAX_COUNT}")
    for field in ("learning_rate", "warmup_steps", "weight_decay", "clip"):
        value = getattr(job, field)
        if not 0 <= value <= MAX_COUNT:
            raise InputError(f"{field}={value} is out of range; give 0 to {MAX_COUNT}")
    if not 0 <= job.seed <= MAX_SEED:
        raise InputError(f"seed={job.seed} is out of range; give 0 to {MAX_SEED}")
    if job.warmup_steps > job.num_steps:
        raise InputError(
            f"warmup_steps={job.warmup_steps} is more than num_steps={job.num_steps}, so the "
            f"learning rate would never be reached; give {job.num_steps} or less"
        )
    if job.seq_len > job.model.max_seq_len:
        raise InputError(
            f"seq_len={job.seq_len} is longer than {job.model.name}'s "
            f"{job.model.max_seq_len} positions; use {job.model.max_seq_len} or less"
        )
    return job
