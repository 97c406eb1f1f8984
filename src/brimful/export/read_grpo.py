"""TRL's files of GRPO: the update of its policy, and what writes its texts beside it.

A row is a prompt and the completion that the model wrote to it; of a forward
``per_device_train_batch_size`` of them, as of SFT. Not modelled are generation and rewards.

Source: ``trl/trainer/grpo_config.py`` and ``grpo_trainer.py`` of TRL 0.29.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from brimful.export.leaves import Leaves

TASK, RATE = "grpo", 1e-6
_KEYS = (
    "num_generations", "reward_funcs", "max_completion_length", "num_samples_per_prompt_rollout",
)  # fmt: skip
LENGTHS = {"max_prompt_length": 512, "max_completion_length": 256}
"""TRL's tokens of both, where nothing is said."""
_ALSO = {"max_prompt_length": "max_prompt_token_length", "max_completion_length": "response_length"}
"""What Open Instruct calls them."""
SHARE = 0.3
"""Of a card, which a colocated vLLM takes in TRL where nothing is said."""
_OF_TEXTS = frozenset({
    "loss_type", "beta", "use_vllm", "vllm_mode", "vllm_gpu_memory_utilization",
    "vllm_enable_sleep_mode", "sleep_level", *_KEYS,
})  # fmt: skip


class Rollouts(NamedTuple):
    """What lies beside the policy's update.

    Attributes:
        share: Of each card, which vLLM keeps while the policy is updated; 0: it keeps none.
        has_reference: Whether a second copy of the weights says how far the policy went.
        why: Where that stands, in the file's words.
    """

    share: float
    has_reference: bool
    why: str


def is_grpo(content: Mapping[str, Any]) -> bool:
    """Whether a file's keys are of GRPO."""
    return any(content.get(key) is not None for key in _KEYS)


def rollouts_of(content: Mapping[str, Any]) -> Rollouts:
    """Return what lies beside the update, by a file's keys."""
    share, why = 0.0, "generation is transformers' own, or a server's: its cache is not counted"
    if _is_on(content, "use_vllm") and str(content.get("vllm_mode", "colocate")) == "colocate":
        asleep = _is_on(content, "vllm_enable_sleep_mode") or bool(content.get("sleep_level"))
        given = content.get("vllm_gpu_memory_utilization")
        share = 0.0 if asleep else float(SHARE if given is None else given)
        key = f"vllm_gpu_memory_utilization={share:g}"
        why = "vLLM sleeps during the update" if asleep else key
    is_far = float(content.get("beta") or 0) > 0
    return Rollouts(share, is_far and not _is_on(content, "use_peft"), why)


def take_grpo(leaves: Leaves) -> None:
    """Take the rows that the policy is updated on."""
    num = leaves.rest.get("num_generations", leaves.rest.get(_KEYS[-1], 8))
    for name, other in _ALSO.items():
        if other in leaves.rest:
            leaves.rest.setdefault(name, leaves.rest.pop(other))
    read = {key: leaves.rest.pop(key, None) for key in _OF_TEXTS - {"max_completion_length"}}
    given = ", ".join(f"{key}={value}" for key, value in sorted(read.items()) if value is not None)
    if given:
        leaves.notes.append(f"read for what lies beside the update: {given}")
    leaves.say("task", TASK, "(trl grpo)")
    leaves.say("packing", "none", "(trl grpo)")
    prompt, written = (leaves.take(name, int, usual) for name, usual in LENGTHS.items())
    leaves.rest["max_length"] = prompt + written
    chunks = chunks_of(prompt, written)
    leaves.say("loss_chunks", chunks, "(trl grpo)")
    leaves.notes.append(
        f"GRPO is planned as the update on rows of {prompt} + {written} tokens, {num} to a prompt; "
        f"writing them, rewards and their time are not modelled, and that logits are of "
        f"completions alone is by the loss in {chunks} chunks"
    )


def chunks_of(prompt: int, written: int) -> int:
    """Return in how many chunks the loss of a whole row takes what logits of completions alone do.

    ``prompt``: tokens that are given; ``written``: those that the model writes, which have logits.
    """
    return max(1, round((prompt + written) / max(1, written)))


def _is_on(content: Mapping[str, Any], key: str) -> bool:
    return str(content.get(key)).lower() == "true"
