"""Flags of other programs, taken for ours: the Trainer, PEFT, TRL, Unsloth, LLaMA-Factory and more.

What means the same is taken and said. What a program writes, logs or reads takes nothing of a GPU
and is left out, and said, as is what has no place here; what is left is refused by the parser.
"""

import re
from collections.abc import Container, Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, get_args

from brimful.cli.elsewhere import SAME, TASKS
from brimful.errors import InputError
from brimful.hardware.names import split_counts
from brimful.values.job import Method, Task

_FLAGS = {
    "--micro-batch": (
        "--batch-size", "--mbs", "--micro-batch-size", "--per-device-batch-size",
        "--per-device-train-batch-size", "--train-micro-batch-size-per-gpu",
    ),
    "--global-batch": (
        "--gbs", "--global-batch-size", "--total-batch-size", "--train-batch-size",
    ),
    "--seq-len": (
        "--block-size", "--context-length", "--cutoff-len", "--max-length", "--max-model-len",
        "--max-seq-len", "--max-seq-length", "--model-max-length", "--seq-length",
        "--sequence-len", "--sequence-length",
    ),
    "--steps": ("--max-steps", "--num-steps", "--train-iters"),
    "--epochs": ("--max-epochs", "--num-epochs", "--num-train-epochs"),
    "--rows": (
        "--dataset-size", "--examples", "--max-samples", "--max-train-samples", "--num-examples",
        "--num-rows", "--num-samples", "--num-train-samples", "--samples", "--train-samples",
    ),
    "--learning-rate": ("--lr",),
    "--clip": ("--clip-grad", "--max-grad-norm"),
    "--optimizer": ("--optim",),
    "--method": ("--finetuning-type", "--train-type", "--tuner-type"),
    "--lora-rank": ("--lora-dim", "--lora-r", "--peft-lora-r", "--r", "--rank"),
    "--lora-alpha": ("--alpha", "--peft-lora-alpha"),
    "--seed": ("--random-seed", "--random-state"),
    "--lora-targets": ("--lora-target", "--lora-target-modules", "--target-modules"),
    "--trained-modules": ("--lora-modules-to-save", "--modules-to-save"),
    "--task": ("--stage",),
    "--zero": ("--zero-stage",),
    "--from": ("--deepspeed",),
    "--tp": ("--tensor-model-parallel-size", "--tensor-parallel", "--tensor-parallel-size"),
    "--pp": ("--pipeline-model-parallel-size", "--pipeline-parallel"),
    "--ep": ("--expert-model-parallel-size", "--expert-parallel"),
    "--cp": ("--context-parallel", "--context-parallel-size"),
    "--gpus": ("--gpu", "--hardware"),
    "--prices": ("--price-file", "--price-list"),
    "--money-budget": ("--budget", "--max-cost", "--max-price"),
    "--deadline": ("--max-time", "--time-limit"),
    "--attention": ("--attn-implementation",),
}  # fmt: skip
_OURS = {other: flag for flag, others in _FLAGS.items() for other in others}
_SWITCHES = {
    "--use-dora": ("--method", "dora"),
    "--load-in-4bit": ("--method", "qlora"),
    "--load-in-8bit": ("--base", "llm-int8"),
    "--bnb-4bit-use-double-quant": ("--base", "nf4-double"),
    "--use-bnb-nested-quant": ("--base", "nf4-double"),
    "--use-qlora": ("--method", "qlora"),
    "--use-peft": ("--method", "lora"),
    "--use-lora": ("--method", "lora"),
    "--full-finetuning": ("--method", "full"),
    "--gradient-checkpointing": ("--ac", "full"),
    "--use-gradient-checkpointing": ("--ac", "full"),
    "--activation-checkpoint": ("--ac", "full"),
    "--fp8": ("--precision", "fp8"),
    "--bf16": ("--precision", "bf16-mixed"),
    "--fp16": ("--precision", "fp16-mixed"),
    "--use-distributed-optimizer": ("--zero", "1"),
    "--use-flash-attention-2": ("--attention", "sdpa"),
}
"""What a switch of theirs says here; of two that say the same flag the first of this table."""
_KINDS = {"--packing": ("wrapped", "none")}
"""Flags of ours that are switches elsewhere: what they say on, and off."""
_LEARNT, _TRAINED = "--task", "--method"
_ALSO = {"--load-in-8bit": ("--method", "qlora")}
"""What a switch says beside that."""
_MODELS = ("--base-model", "--model-id", "--model-name", "--model-name-or-path", "--model")
_ACCUMULATED = (
    "--accumulate-grad-batches", "--gradient-accumulation-steps", "--grad-accum",
    "--gradient-accumulation",
)  # fmt: skip
_WRITTEN = {"--max-prompt-length": 512, "--max-completion-length": 256}
"""Tokens of a text that a model is given and writes, as TRL names them, with its defaults
(``GRPOConfig`` of 0.24)."""
_OF_NO_WEIGHT = frozenset({
    "--bnb-4bit-compute-dtype", "--dataloader-num-workers", "--dataset", "--dataset-dir",
    "--dataset-name", "--dataset-text-field", "--dataset-train-split", "--ddp-timeout",
    "--do-train", "--eval-strategy", "--logging-dir", "--logging-steps", "--logging-strategy",
    "--lora-bias", "--lora-task-type", "--lr-scheduler-type", "--num-generations",
    "--num-workers", "--output-dir", "--overwrite-cache", "--overwrite-output-dir", "--plot-loss",
    "--preprocessing-num-workers", "--push-to-hub", "--report-to", "--run-name",
    "--save-only-model", "--save-steps", "--save-strategy", "--save-total-limit", "--template",
    "--warmup-ratio",
})  # fmt: skip
"""What takes no memory of a GPU, whatever its value."""
EPOCHS_NEED = "epochs need the size of your data: --tokens says those of all of them"
"""Why epochs alone say nothing."""
_LEFT_OUT = {
    **dict.fromkeys(_FLAGS["--epochs"], EPOCHS_NEED),
    **dict.fromkeys(
        ("--attention-dropout", "--hidden-dropout"),
        "--dropout model counts what the model's configuration drops",
    ),
    "--lora-dropout": "dropout of adapters is off in this version, and takes a little memory",
}
"""What has no place here, with why; an answer does not hang on it, or not by much."""
_SHARDING = frozenset({"--fsdp-sharding-strategy", "--sharding-strategy"})
"""Strategies of FSDP1 by their names, hybrid ones among them, which shard within a node."""
OF_WEIGHTS = frozenset({"--dtype", "--model-dtype", "--torch-dtype"})
"""Types in which weights are loaded: those of 16 bits train so, whatever autocast does."""
HALVES = {"bf16": "bf16", "bfloat16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16"}
_WHOLE = frozenset({"float", "float32", "fp32"})
_MONEY, _AMOUNT = (
    "--money-budget",
    re.compile(r"[$€£][\d.,]+|[\d.,]+ ?([$€£]|usd|eur|gbp)", re.IGNORECASE),
)
"""A sum of money, which is no budget of seconds."""
_ZERO, _SHARDS, _PRECISION = "--zero", "--dp-shard", "--precision"
_OF_JOBS, _BATCH = "--seq-len", "--global-batch"
_SENDING, _SENDS = "unsloth", "--offload activations"
"""A value of a switch of checkpoints, those of Unsloth, whose inputs lie on the host; and ours."""
_YES, _NO = frozenset({"1", "true", _SENDING, "yes"}), frozenset({"0", "false", "no"})
NO_FLAG = {
    **dict.fromkeys(
        ("--weights-format", "--prompt-len"),
        "that is of serving: brimful estimate MODEL --task inference --gpus ... answers it",
    ),
    "--bnb-4bit-quant-type": "how the base is held is said by --base, as in --base nf4",
}
"""What other programs ask for, and what says the same here."""


_OF_FILES = frozenset({
    "--attn-implementation", "--deepspeed", "--gpu", "--hardware", "--stage",
    *_FLAGS["--deadline"], *_FLAGS["--epochs"], *_FLAGS["--money-budget"], *_FLAGS["--prices"],
    *_FLAGS["--rows"],
})  # fmt: skip
"""Flags of these tables whose words mean something else among a call's arguments."""


def is_of_jobs(flag: str) -> bool:
    """Whether a flag of another program says something of a job here, beside its model."""
    return flag in {*_OURS, *_SWITCHES, *_ACCUMULATED, "--learning-rate"} - _OF_FILES


def names_of(flag: str) -> frozenset[str]:
    """Return a flag of ours with what it is called elsewhere."""
    return frozenset({flag, *_FLAGS[flag]})


def is_of_models(flag: str) -> bool:
    """Whether a flag of another program names a model."""
    return flag in _MODELS


def is_elsewhere(flag: str) -> bool:
    """Whether a flag stands in these tables, in our manner of writing."""
    return flag in _SWITCHES or flag in _VALUED or flag in NO_FLAG


def flags_meant(known: Container[str]) -> dict[str, str]:
    """Return what is typed for a job, by flags of any program: ours where one means the same.

    ``known``: the flags that the verb has; one that is asked for no job has no others.
    """
    if _OF_JOBS not in known:
        return {}
    named = {other: flag for other, flag in _OURS.items() if flag in known}
    return {**{flag: flag for flag in (*_SWITCHES, *_VALUED)}, **named}


class Taken(NamedTuple):
    """A command line as we write it.

    Attributes:
        arguments: Ours.
        notes: What was taken for what, and what was left out.
    """

    arguments: list[str]
    notes: list[str]


class _Typed(NamedTuple):
    """A flag and its value; a flag alone, or a value alone.

    Attributes:
        words: As they were typed.
        flag: In our manner of writing; empty where it is a value.
        value: Of the flag, where it has one.
    """

    words: list[str]
    flag: str
    value: str | None


def taken_for_ours(arguments: Sequence[str], known: Container[str]) -> Taken:
    """Return a command line with the flags of other programs as ours.

    ``known``: the flags that the verb has; one that is asked for no job is left as it is. Raises
    InputError: micro-batches are to be accumulated whose size nobody says.
    """
    if _OF_JOBS not in known:
        return Taken(list(arguments), [])
    reader = _Reader(known)
    for typed in _typed(arguments):
        reader.take(typed)
    return reader.taken()


class _Reader:
    """Reads a command line from left to right."""

    def __init__(self, known: Container[str]) -> None:
        self._known = known
        self._ours: list[str] = []
        self._models: list[str] = []
        self._switches: dict[str, str] = {}
        self._accumulated: _Typed | None = None
        self._sharding: _Typed | None = None
        self._weights: _Typed | None = None
        self._written: dict[str, int] = {}
        self._notes: list[str] = []

    def take(self, typed: _Typed) -> None:
        """Take a flag with its value, or what belongs to none."""
        flag, word = typed.flag, typed.words[0].partition("=")[0]
        name = _OURS.get(flag, flag)
        is_money = flag in _FLAGS[_MONEY] and _AMOUNT.fullmatch(typed.value or "") is not None
        is_ours = not flag or (word in self._known and not (is_money and _MONEY in self._known))
        if flag in _KINDS and word in self._known and _switched(typed.value) in {"", *_YES, *_NO}:
            self._ours += [word, _KINDS[flag][_switched(typed.value) in _NO]]
            self._notes.append(f"{' '.join(self._ours[-2:])} is taken for {' '.join(typed.words)}")
        elif name == _TRAINED and _is_task(typed.value) and _LEARNT in self._known:
            self._ours += [_LEARNT, typed.value or ""]
            self._notes.append(f"{_LEARNT} {typed.value} is taken for {' '.join(typed.words)}")
        elif not is_ours and name in self._known:
            self._ours += [name] if typed.value is None else [name, typed.value]
            self._notes.append(f"{name} is taken for {word}")
        elif is_ours or not self._takes_other(typed, word):
            self._ours += typed.words
        elif typed.value == _SENDING:
            sends = f"sends what checkpoints keep to the host, as {_SENDS} does"
            self._notes.append(f"{word} {_SENDING} {sends}")

    def _takes_other(self, typed: _Typed, word: str) -> bool:
        """Take a flag that is none of ours, and say whether it was one of the tables."""
        flag, value = typed.flag, typed.value
        if flag in _OF_NO_WEIGHT or (flag in _SWITCHES and _switched(value) in _NO):
            self._notes.append(f"{' '.join(typed.words)} is left out")
        elif flag in _LEFT_OUT:
            self._notes.append(f"{' '.join(typed.words)} is left out: {_LEFT_OUT[flag]}")
        elif flag in OF_WEIGHTS and _type_of(value) == "auto":
            self._notes.append(f"{' '.join(typed.words)} is left out")
        elif flag in OF_WEIGHTS and _type_of(value) in {*HALVES, *_WHOLE}:
            self._weights = typed
        elif flag in _SHARDING and value is not None and _SHARDS in self._known:
            self._sharding = typed
        elif flag in _SWITCHES and _SWITCHES[flag][0] in self._known:
            self._switches[flag] = word
        elif flag in _MODELS and value is not None:
            self._models.append(value)
        elif flag in _ACCUMULATED and _BATCH in self._known:
            self._accumulated = typed
        elif flag in _WRITTEN and (value or "").isdecimal():
            self._written[flag] = int(value or "")
        else:
            return False
        return True

    def _by_weights(self, said: Container[str]) -> list[str]:
        """Return the recipe that the type of the weights says, where nothing else does.

        Those of 16 bits train so, whatever a switch says of autocast.
        """
        if self._weights is None:
            return []
        recipe = HALVES.get(_type_of(self._weights.value), "fp32")
        words = " ".join(self._weights.words)
        if recipe == "fp32" and _PRECISION in said:
            self._notes.append(f"{words} is left out")
            return []
        self._notes.append(f"{_PRECISION} {recipe} is taken for {words}")
        return [_PRECISION, recipe]

    def taken(self) -> Taken:
        """Return all that was taken: what switches say before what is typed as ours, which wins."""
        ours, notes = self._ours, self._notes
        said: dict[str, tuple[str, str]] = {}
        for switch, says in _SWITCHES.items():
            if switch in self._switches:
                for flag, value in (says, *([_ALSO[switch]] if switch in _ALSO else [])):
                    said.setdefault(flag, (value, self._switches[switch]))
        ours = [*self._by_weights({*said, *ours}), *ours]
        for flag, (value, word) in said.items():
            ours = [flag, value, *ours]
            notes.append(f"{flag} {value} is taken for {word}")
        for switch, word in self._switches.items():
            flag, value = _SWITCHES[switch]
            if said[flag][0] != value:
                notes.append(f"{word} is left out beside {said[flag][1]}")
        if self._written and _OF_JOBS not in ours:
            parts = _WRITTEN | self._written
            tokens = str(sum(parts.values()))
            ours = [*ours, _OF_JOBS, tokens]
            both = " and ".join(f"{flag} {num}" for flag, num in parts.items())
            notes.append(f"{_OF_JOBS} {tokens} is taken for {both}")
        if self._sharding is not None:
            shards = _shards(self._sharding, ours)
            ours = [*shards, *ours]
            notes.append(f"{' '.join(shards)} is taken for {' '.join(self._sharding.words)}")
        if self._accumulated is not None:
            batch = _global_batch(self._accumulated, ours)
            ours = [*ours, _BATCH, batch]
            notes.append(f"{_BATCH} {batch} is taken for {' '.join(self._accumulated.words)}")
        return Taken([*self._models, *ours], notes)


def _typed(arguments: Sequence[str]) -> Iterator[_Typed]:
    """Yield flags with their values; what follows a switch may be its value."""
    words = list(arguments)
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        if not word.startswith("--") or word == "--":
            yield _Typed([word], "", None)
            continue
        name = flag.lower().replace("_", "-")
        is_switch = name in _SWITCHES or name in _KINDS
        has_value = bool(words) and not words[0].startswith("--")
        takes = has_value and (name not in _SWITCHES or _switched(words[0]) in _YES | _NO)
        if equals:
            yield _Typed([word], name, value)
        elif takes and (is_switch or name in _VALUED):
            following = words.pop(0)
            yield _Typed([word, following], name, following)
        else:
            yield _Typed([word], name, None)


_VALUED = frozenset(
    chain(_OURS, _MODELS, _ACCUMULATED, _OF_NO_WEIGHT, _WRITTEN, _LEFT_OUT, _SHARDING, OF_WEIGHTS,
          [_TRAINED])
)  # fmt: skip


def _switched(value: str | None) -> str:
    """Return what stands behind a switch, as it is compared."""
    return (value or "").lower()


def _is_task(value: str | None) -> bool:
    """Whether what is given for a method says what is learnt, such as ``dpo``."""
    word = (value or "").lower().replace("_", "-")
    return word in {*TASKS, *SAME["task"], *get_args(Task)} - {*SAME["method"], *get_args(Method)}


def _type_of(value: str | None) -> str:
    """Return a type of weights as PyTorch names it, without that name."""
    return (value or "").lower().removeprefix("torch.")


def _shards(sharding: _Typed, ours: Sequence[str]) -> list[str]:
    """Return what one of FSDP1's strategies shards, and over how many devices if not over all."""
    from brimful.export.read_accelerate import STAGES, STRATEGIES, strategy_named

    word = strategy_named(sharding.value or "")
    if word not in STRATEGIES:
        raise InputError(f"{' '.join(sharding.words)}: give one of {', '.join(STRATEGIES)}")
    counted = split_counts(dict(pairwise(ours)).get("--gpus", "1"))
    within = word.startswith("HYBRID") and counted.num_nodes > 1
    return [_ZERO, str(STAGES[word]), *([_SHARDS, str(counted.per_node)] if within else [])]


def _global_batch(accumulated: _Typed, ours: Sequence[str]) -> str:
    """Return the sequences of a step: of a micro-batch, on every device, as often as summed."""
    words = " ".join(accumulated.words)
    given = dict(pairwise(ours))
    counted = split_counts(given.get("--gpus", "1"))
    try:
        micro_batch = int(given["--micro-batch"])
        cut = int(given.get("--tp", "1")) * int(given.get("--pp", "1"))
        times = int(accumulated.value or "")
    except (KeyError, ValueError):
        raise InputError(
            f"{words} needs the sequences of a micro-batch beside it: give --micro-batch, or "
            f"--global-batch alone, which is what a step has of all devices"
        ) from None
    num_devices = counted.num_nodes * counted.per_node
    return str(micro_batch * times * max(1, num_devices // max(1, cut)))
