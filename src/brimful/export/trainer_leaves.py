"""What files of programs around Hugging Face's Trainer share: its arguments, adapters, DeepSpeed.

Source: ``transformers/training_args.py`` of 5.23, whose names these programs hand on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from brimful.errors import FileFormatError, InputError, UnsupportedError
from brimful.export.leaves import Leaves, Read
from brimful.export.read_deepspeed import read_deepspeed
from brimful.job import ALL_LINEAR
from brimful.techniques.optimizers import OPTIMIZERS

_OPTIMIZERS = {
    name: rule.name
    for rule in OPTIMIZERS.values()
    for spelled in [rule.transformers]
    for name in (
        *((spelled.name, *spelled.reads) if spelled is not None else ()),
        *(other.replace("-", "_") for other in (rule.name, *rule.also)),
    )
}
"""By the names of Hugging Face's Trainer, and ours."""
_SCHEDULES = {
    "constant": "constant", "constant_with_warmup": "constant", "cosine": "cosine",
    "linear": "linear",
}  # fmt: skip
_NUMBERS = {
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "adam_epsilon": "epsilon",
    "max_grad_norm": "clip",
}
_QUANTIZED = {4: "nf4-double", 8: "llm-int8"}


class Batches(NamedTuple):
    """How a program names its batches."""

    micro_batch: str
    accumulation: str = "gradient_accumulation_steps"


def numbered(value: Any) -> Any:
    """Return a number that YAML 1.1 leaves as text (``5e-5``); anything else as it is."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) else 0.0


def take_rates(leaves: Leaves, *, optimizer: str, schedule: str) -> None:
    """Take what the update is made of.

    Args:
        leaves: Of the file.
        optimizer: The key of its rule.
        schedule: The key of its rates.

    Raises:
        UnsupportedError: This version has no such rule or rates.
        FileFormatError: A value is of another type.
    """
    name = leaves.take(optimizer, str)
    if name is not None and name not in _OPTIMIZERS:
        raise UnsupportedError(
            f"{leaves.path}: {optimizer}={name} is none of this version's; use "
            f"{', '.join(sorted(_OPTIMIZERS))}, or leave it out and give --optimizer"
        )
    leaves.say("optimizer", _OPTIMIZERS.get(name or ""), optimizer)
    if name is not None and name.startswith("paged"):
        leaves.notes.append(f"{name} pages its state: planned without, so that it takes more")
    for key, flag in _NUMBERS.items():
        leaves.rest |= {key: numbered(leaves.rest[key])} if key in leaves.rest else {}
        leaves.say(flag, leaves.take(key, float), key)
    kind = leaves.take(schedule, str)
    if kind is not None and kind not in _SCHEDULES:
        leaves.notes.append(f"{schedule}={kind} is planned as --schedule says")
    leaves.say("schedule", _SCHEDULES.get(kind or ""), schedule)
    if not 0 < _number(leaves.rest.get("warmup_steps")) < 1:  # else a share of all steps
        leaves.say("warmup_steps", leaves.take("warmup_steps", int), "warmup_steps")
    steps = leaves.take("max_steps", int)
    leaves.say("steps", steps if steps is None or steps > 0 else None, "max_steps")


def take_batches(leaves: Leaves, named: Batches, num_devices: int) -> None:
    """Take a micro-batch, and the batch of a step that it makes on so many devices.

    Raises:
        InputError: One is under 1.
        FileFormatError: One is no whole number.
    """
    each, times = leaves.take(named.micro_batch, int), leaves.take(named.accumulation, int)
    for key, value in ((named.micro_batch, each), (named.accumulation, times)):
        if value is not None and value < 1:
            raise InputError(f"{leaves.path}: {key} is {value}; give 1 or more")
    if each is None:
        if times is not None:
            leaves.notes.append(f"{named.accumulation}={times} alone says no batch; not taken")
        return
    leaves.say("micro_batch", each, named.micro_batch)
    leaves.say("global_batch", each * (times or 1) * num_devices, named.accumulation)


def say_adapter(
    leaves: Leaves, *, bits: int | None, is_dora: bool, key: str, half: str = "bf16"
) -> None:
    """Say how adapters are trained, beside a base that is loaded in 16 bits or fewer.

    Args:
        leaves: Of the file.
        bits: Of the base, 4 or 8; None: 16.
        is_dora: Whether magnitudes train beside them.
        key: Which key said so.
        half: The type of 16 bits.

    Raises:
        UnsupportedError: DoRA on a base that is quantised.
    """
    if bits and is_dora:
        raise UnsupportedError(
            f"{leaves.path}: DoRA on a base of {bits} bits is not run by this version; leave "
            f"one out"
        )
    leaves.say("method", "qlora" if bits else "dora" if is_dora else "lora", key)
    leaves.say("base", _QUANTIZED[bits] if bits else half, key)


def names_of(leaves: Leaves, key: str) -> str | None:
    """Take names, as a list or by comma; ``all`` is every linear layer; None: there are none.

    Raises:
        FileFormatError: They are neither.
    """
    value = leaves.rest.pop(key, None)
    if value is None:
        return None
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FileFormatError(
            f"{leaves.path}: {key} is {value!r} and {leaves.program} wants names there; correct it"
        )
    stripped = [name.strip() for name in names if name.strip()]
    return ALL_LINEAR if stripped in (["all"], [ALL_LINEAR]) else ",".join(stripped) or None


def say_precision(leaves: Leaves, keys: Mapping[str, str]) -> None:
    """Say the recipe of the first switch that is on, of ``keys`` to recipes; none says nothing."""
    on = [
        key for key in keys if str(leaves.rest.pop(key, False)).lower() in {"true", "auto", "full"}
    ]
    if on:
        leaves.say("precision", keys[on[0]], on[0])


def with_deepspeed(leaves: Leaves, *, num_devices: int, num_layers: int) -> Read:
    """Return what a file says, and the DeepSpeed JSON that it names beside it or in this folder.

    Raises:
        InputError: There is no such file.
        FileFormatError: It is none of DeepSpeed's.
    """
    name = leaves.take("deepspeed", str)
    if name is None:
        return leaves.read()
    # Programs name it from where they are started, which is often the top of their checkout.
    places = [*(folder / name for folder in leaves.path.resolve().parents), Path(name)]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise InputError(
            f"{leaves.path}: deepspeed is {name}, and there is no such file beside it, above "
            f"or here; give its path, or leave it out and give --zero"
        )
    other = read_deepspeed(found, num_devices=num_devices, num_layers=num_layers)
    mine = {each.flag for each in leaves.taken}
    theirs = [each for each in other.taken if each.flag not in mine]
    own = leaves.read()
    return Read(
        taken=(*own.taken, *theirs),
        left=own.left + other.left,
        unread=own.unread + other.unread,
        notes=own.notes + other.notes,
    )
