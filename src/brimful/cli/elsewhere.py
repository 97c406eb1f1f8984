"""Tasks and optimizers as people know them from other programs; their flags: ``other_flags``.

What means the same is taken for ours, and said; what no part of this version runs is refused in a
sentence, with the nearest that it does.
"""

import argparse
from typing import NamedTuple

from brimful.errors import UnsupportedError
from brimful.techniques.optimizers import OPTIMIZERS

TASK_NAMES = {
    "classification": "sequence-classification",
    "pretrain": "causal-lm",
    "pretraining": "causal-lm",
    "pt": "causal-lm",
    "sft": "causal-lm",
    "summarization": "seq2seq",
    "translation": "seq2seq",
}
"""Other names of ours."""
OPTIMIZER_NAMES = {
    name: rule.name
    for rule in OPTIMIZERS.values()
    if rule.transformers is not None
    for name in (rule.transformers.name, *rule.transformers.reads)
    if name not in OPTIMIZERS
}
"""Names of Hugging Face's Trainer."""
ROLLOUTS = "rollouts"
"""What comes on top of an update that learns from texts which the model writes itself."""


class Elsewhere(NamedTuple):
    """A task that is not run.

    Attributes:
        what: What it is.
        like: What is like it.
        name: That task's name.
        on_top: What comes on top of that; see ``BrimfulError.on_top``.
    """

    what: str
    like: str
    name: str
    on_top: str = ""


_REINFORCED = Elsewhere(
    "reinforcement learning",
    "its update takes what causal-lm does, and the text that it writes comes on top",
    "causal-lm",
    ROLLOUTS,
)
TASKS = {
    "grpo": _REINFORCED,
    "ppo": _REINFORCED,
    "rlhf": _REINFORCED,
    "masked-lm": Elsewhere(
        "a loss on masked tokens",
        "a classifier's blocks are the same, and its loss takes less",
        "sequence-classification",
    ),
    "kto": Elsewhere(
        "single answers that are liked or not", "pairs of answers take as much", "dpo"
    ),
    "orpo": Elsewhere("pairs without a reference", "with a reference it is --task dpo", "dpo"),
}
"""Tasks that are not run."""


def refuse_elsewhere(args: argparse.Namespace) -> None:
    """Refuse what no part of this version runs, and name what is nearest.

    Raises:
        UnsupportedError: It was asked for.
    """
    cp = getattr(args, "cp", None) or 1
    if cp > 1:
        raise UnsupportedError(
            f"--cp {cp} (context parallel) is not run by this version; --tp shares the activations "
            f"of a long sequence among devices",
            nearest={"cp": None},
        )
    if args.task in TASKS:
        told = TASKS[args.task]
        raise UnsupportedError(
            f"--task {args.task} ({told.what}) is not run by this version; {told.like}",
            nearest={"task": told.name},
            on_top=told.on_top,
        )
