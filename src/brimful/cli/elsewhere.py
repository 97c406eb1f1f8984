"""Words of the field that are no choice of ours; their flags: ``other_flags``.

What means the same is taken for ours, and said; what no part of this version runs is refused in a
sentence, with the nearest that it does.
"""

import argparse
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from brimful.cli.other_optimizers import OTHER_OPTIMIZERS, refusal
from brimful.errors import LESS, MORE, UnsupportedError
from brimful.hardware.names import split_counts
from brimful.techniques.optimizers import DEFAULT, OPTIMIZERS

ROLLOUTS, SCORED_ROLLOUTS, CRITIC = "rollouts", "scored rollouts", "critic"
"""What comes on top of an update that learns from texts which the model writes itself: what writes
them; a model that scores them too; and one more that learns to foresee the score."""


class Elsewhere(NamedTuple):
    """A choice of other programs that is not run.

    Attributes:
        what: What it is.
        like: What is like it.
        name: That choice's name.
        on_top: What comes on top of that; see ``BrimfulError.on_top``.
        flag: Of the choice that is like it; empty: the same flag.
        takes: Whether that takes ``MORE`` or ``LESS``; empty: as much.
        rows: Of that, what one row takes.
    """

    what: str
    like: str
    name: str
    on_top: str = ""
    flag: str = ""
    takes: str = ""
    rows: Fraction = Fraction(1)


_REINFORCED = Elsewhere(
    "reinforcement learning",
    "its update takes what causal-lm does, and the text that it writes comes on top",
    "causal-lm",
    ROLLOUTS,
    takes=LESS,
)
_SCORED_TEXTS = _REINFORCED._replace(
    like="its update takes what causal-lm does; the text that it writes and the model that scores "
    "it come on top",
    on_top=SCORED_ROLLOUTS,
)
_WITH_CRITIC = _REINFORCED._replace(
    like="the policy's update takes what causal-lm does; its critic, the reward model and the text "
    "that it writes come on top",
    on_top=CRITIC,
)
_PAIRED = Elsewhere(
    "pairs without a reference",
    "with a reference it is --task dpo, which takes no less: what the reference holds and its "
    "forward pass come on top there",
    "dpo",
    takes=MORE,
)
_CONTRASTIVE = Elsewhere(
    "a contrastive loss over the whole batch",
    "a classifier has the same blocks and no logits of the vocabulary; queries and passages are "
    "rows each, and batch x batch scores come on top",
    "sequence-classification",
    takes=LESS,
)
_SCORED = Elsewhere(
    "a score for each text", "a classifier differs by its head alone", "sequence-classification"
)
_BY_TOKEN = Elsewhere(
    "a label for each token", "a classifier differs by its head alone", "sequence-classification"
)
TASKS = {
    **dict.fromkeys(("dapo", "gspo", "grpo"), _REINFORCED),
    **dict.fromkeys(("online-dpo", "reinforce", "rloo"), _SCORED_TEXTS),
    **dict.fromkeys(("ppo", "rlhf"), _WITH_CRITIC),
    "kto": Elsewhere(
        "single answers that are liked or not",
        "two answers take what a pair does, and its KL term runs two forward passes more (TRL's "
        "_compute_kl_logps): a step takes 1.4 to 1.7 x as long, by its matrix products",
        "dpo",
        rows=Fraction(1, 2),
    ),
    **dict.fromkeys(("cpo", "orpo", "simpo"), _PAIRED),
    **dict.fromkeys(
        ("contrastive", "embedding", "embeddings", "retrieval", "sentence-embedding"), _CONTRASTIVE
    ),
    **dict.fromkeys(("cross-encoder", "rerank", "reranker", "reranking"), _SCORED),
    **dict.fromkeys(("reward", "reward-model", "reward-modeling", "rm"), Elsewhere(
        "a score of each of two answers",
        "a classifier differs by its head alone, and both answers are rows",
        "sequence-classification",
        rows=Fraction(2),
    )),
    **dict.fromkeys(("ner", "question-answering", "token-classification"), _BY_TOKEN),
    **dict.fromkeys(("distillation", "gkd", "knowledge-distillation"), Elsewhere(
        "a loss on a teacher's logits",
        "the student alone takes what causal-lm does, and the teacher's weights come on top",
        "causal-lm",
        takes=LESS,
    )),
}  # fmt: skip
"""Tasks that are not run."""
_FEW_NUMBERS = Elsewhere(
    "a few numbers beside frozen weights", "LoRA trains a little more of them", "lora", takes=MORE
)
_LIKE_LORA = Elsewhere(
    "LoRA by other scales, starts or rates", "plain LoRA takes as much memory", "lora"
)
_SOME_LAYERS = Elsewhere(
    "some layers in full, the rest frozen",
    "LoRA has the frozen weights and activations of every layer, which is the most that these need "
    "there; instead of its adapters count 16 bytes for each parameter that trains",
    "lora",
)
_OPTIMIZERS = {
    word: Elsewhere(other.keeps, "", DEFAULT, flag="optimizer")
    for word, other in OTHER_OPTIMIZERS.items()
}
"""Optimizers that are not run; which are like them hangs on a job (``other_optimizers``)."""
_ROWS = ("micro_batch", "global_batch", "rows")
"""Flags of which each is a number of rows."""
_UPDATES = ("apollo", "galore", "q-galore")
"""Of these, words that people take for a method."""
METHODS = {
    **dict.fromkeys(("freeze", "freezing", "frozen", "last-layers", "lisa"), _SOME_LAYERS),
    **dict.fromkeys(
        ("bitfit", "ia3", "p-tuning", "prefix", "prefix-tuning", "prompt-tuning", "ptuning"),
        _FEW_NUMBERS,
    ),
    "vera": _FEW_NUMBERS,
    **dict.fromkeys(
        ("adalora", "eva", "lora+", "loraplus", "olora", "pissa", "rslora"), _LIKE_LORA
    ),
    **dict.fromkeys(("adapter", "adapters", "boft", "loha", "lokr", "oft"), Elsewhere(
        "other adapters beside frozen weights", "LoRA's are about as large", "lora"
    )),
    **dict.fromkeys(("loftq", "qdora"), Elsewhere(
        "other adapters beside weights in 4 bits", "QLoRA's are about as large", "qlora"
    )),
    **{word: _OPTIMIZERS[word] for word in _UPDATES},
    "qat-lora": Elsewhere(
        "adapters beside weights that are rounded in each forward pass",
        "LoRA holds the same weights, adapters and states; a rounded copy of what computes comes "
        "on top",
        "lora",
        takes=LESS,
    ),
}  # fmt: skip
"""Methods that are not run."""
_PACKED = Elsewhere(
    "weights in 8 bits or fewer, which do not train",
    "adapters beside them do: --method qlora (--base says which)",
    "qlora",
    flag="method",
)
PRECISIONS = {
    **dict.fromkeys(("4bit", "8bit", "int4", "int8", "nf4"), _PACKED),
    **dict.fromkeys(("fp4", "fp8-delayed", "mxfp4", "mxfp8", "nvfp4"), Elsewhere(
        "another recipe of 8 bits or fewer",
        "fp8 holds the same weights, gradients and state",
        "fp8",
    )),
    **dict.fromkeys(("float64", "fp64"), Elsewhere(
        "twice fp32", "fp32 is the widest: every byte counts twice", "fp32", takes=LESS
    )),
}  # fmt: skip
"""Recipes that are not run."""
NOT_RUN: Mapping[str, Mapping[str, Elsewhere]] = {
    "task": TASKS,
    "method": METHODS,
    "optimizer": _OPTIMIZERS,
    "precision": PRECISIONS,
}
"""By flag: choices that are not run."""
SAME: Mapping[str, Mapping[str, str]] = {
    "task": {
        "classification": "sequence-classification",
        "clm": "causal-lm",
        "continued-pretraining": "causal-lm",
        "cpt": "causal-lm",
        "ipo": "dpo",
        "mlm": "masked-lm",
        "pretrain": "causal-lm",
        "pretraining": "causal-lm",
        "pt": "causal-lm",
        "sft": "causal-lm",
        "summarization": "seq2seq",
        "text-classification": "sequence-classification",
        "text-generation": "causal-lm",
        "translation": "seq2seq",
    },
    "method": {
        **dict.fromkeys((
            "fft", "finetune", "finetuning", "full-finetune", "full-finetuning", "full-parameter",
            "full-weight", "pretrain",
        ), "full"),
        "peft": "lora",
    },
    "optimizer": {
        **{
            name: rule.name
            for rule in OPTIMIZERS.values()
            if rule.transformers is not None
            for name in (rule.transformers.name, *rule.transformers.reads)
            if name not in OPTIMIZERS
        },
        **{name: rule.name for rule in OPTIMIZERS.values() for name in rule.also},
    },
    "precision": {
        "16-mixed": "fp16-mixed",
        "16-true": "fp16",
        "32-true": "fp32",
        "amp": "bf16-mixed",
        "bf16-true": "bf16",
        "bfloat16": "bf16",
        "float16": "fp16",
        "float32": "fp32",
        "float8": "fp8",
        "half": "fp16",
        "mixed": "bf16-mixed",
    },
}  # fmt: skip
"""By flag: other names of choices; of optimizers those of Hugging Face's Trainer."""


def taken_as(flag: str) -> dict[str, str]:
    """Return what else a flag lets pass, and as what: other names, and what is refused later.

    ``flag``: ``task``, ``method``, ``optimizer`` or ``precision``.
    """
    return {**{word: word for word in NOT_RUN[flag]}, **SAME[flag]}


def refuse_elsewhere(args: argparse.Namespace) -> None:
    """Refuse what no part of this version runs, and name what is nearest."""
    cp = getattr(args, "cp", None) or 1
    if cp > 1:
        raise UnsupportedError(
            f"--cp {cp} (context parallel) is not run by this version; --tp shares the activations "
            f"of a long sequence among devices, and plan --for megatron plans it",
            nearest={"cp": None},
        )
    for flag, words in NOT_RUN.items():
        word = str(getattr(args, flag, None))
        if word in words:
            if word in OTHER_OPTIMIZERS:
                raise refusal(flag, word, args)
            told = words[word]
            rows = _as_rows(args, told.rows)
            raise UnsupportedError(
                f"--{flag} {word} ({told.what}) is not run by this version; {told.like}",
                nearest={flag: None, told.flag or flag: told.name, **rows},
                on_top=told.on_top,
                takes=told.takes or (MORE if _is_rounded(args, rows, told.rows) else ""),
            )


def _as_rows(args: argparse.Namespace, each: Fraction) -> dict[str, object]:
    """Return the flags that count rows, as rows of what is like it; none are lost of an odd one.

    A step keeps its micro-batches: a micro-batch is rounded up, and the batch grows with it. Where
    nobody said how large one is, devices that share a batch share it still.
    """
    given = {name: getattr(args, name, None) for name in _ROWS} if each != 1 else {}
    found = {name: value for name, value in given.items() if value is not None}
    if "rows" in found:
        found["rows"] = math.ceil(found["rows"] * each)
    micro, batch = (found.get(name) for name in _ROWS[:2])
    if micro is not None:
        sizes = micro if isinstance(micro, list) else [micro]
        rounded = [math.ceil(one * each) for one in sizes]
        found["micro_batch"] = rounded if isinstance(micro, list) else rounded[0]
        times = max(Fraction(new, old) for new, old in zip(rounded, sizes, strict=True))
        if batch is not None:
            found["global_batch"] = math.ceil(batch * times)
    elif batch is not None:
        counted = split_counts(getattr(args, "gpus", None) or "")
        shared = math.gcd(batch, counted.num_nodes * counted.per_node)
        found["global_batch"] = shared * math.ceil(batch * each / shared)
    return found


def _is_rounded(args: argparse.Namespace, rows: Mapping[str, object], each: Fraction) -> bool:
    """Whether a batch is more rows of what is like it than it would be.

    ``rows``: as ``_as_rows`` returns them.
    """
    given = [(getattr(args, name, None), rows.get(name)) for name in _ROWS[:2]]
    pairs = [
        (old if isinstance(old, list) else [old], new if isinstance(new, list) else [new])
        for old, new in given if new is not None
    ]  # fmt: skip
    return any(
        new != old * each for olds, news in pairs for old, new in zip(olds, news, strict=True)
    )
