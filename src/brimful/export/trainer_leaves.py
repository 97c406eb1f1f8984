"""What files of programs around Hugging Face's Trainer share: rates, adapters, DeepSpeed.

Source: ``transformers/training_args.py`` of 5.23, whose names these programs hand on.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from brimful.errors import FileFormatError, InputError, UnsupportedError
from brimful.export.deepspeed import COSINE_ENDS_AT
from brimful.export.leaves import Leaves, Read, find_file, named_file
from brimful.export.read_deepspeed import read_deepspeed, read_settings
from brimful.export.shipped_settings import shipped
from brimful.techniques.deepspeed import AS_DEEPSPEED
from brimful.techniques.optimizers import DEFAULT, OPTIMIZERS, OTHERS, SQUEEZED, squeezed
from brimful.values.job import ALL_LINEAR

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
_NOT_RUN = {word.replace("-", "_"): word for other in OTHERS for word in other.words}
"""Of optimizers that are not run: who plans refuses them as if typed, and answers the nearest."""
_SQUEEZED = {**SQUEEZED, **{squeezed(word): rule for word, rule in _OPTIMIZERS.items()}}
"""Both, by their names without what parts words."""
_SCHEDULES = {
    "constant": "constant", "constant_with_warmup": "constant", "cosine": "cosine",
    "cosine_with_min_lr": "cosine", "linear": "linear",
}  # fmt: skip
_FLOORED, _FLOOR = "cosine_with_min_lr", "lr_scheduler_kwargs.min_lr_rate"
_NUMBERS = {
    "learning_rate": "learning_rate",
    "weight_decay": "weight_decay",
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "adam_epsilon": "epsilon",
    "max_grad_norm": "clip",
}
DEEPSPEED = "deepspeed"
_ENABLED = ".enabled"
"""How the key ends by which DeepSpeed's JSON says a recipe."""


_SWITCHED = ("galore", "apollo", "badam", "adam_mini")
"""Optimizers of LLaMA-Factory and ms-swift, whose switch names them."""
_WITHOUT_MOMENTUM = frozenset(
    rule.transformers.name
    for rule in OPTIMIZERS.values()
    if rule.is_momentum and rule.transformers is not None
)
"""Names of rules whose momentum the Trainer leaves at 0."""
_OF_GRADIENTS = 2
"""The stage that shards gradients, and no parameters."""
_NO_DORA = 8
"""Bits of a base whose weights PEFT does not copy, and so does not measure, in DoRA."""


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


def rule_named(name: str) -> str | None:
    """Return the optimizer that the name of a class means; None: it is none that is known.

    An Adam keeps what an AdamW does.

    ``name``: ``AdamW8bit``, ``PagedLion``; also as the Trainer spells it.
    """
    plain = squeezed(name)
    as_decoupled = plain if DEFAULT in plain else plain.replace("adam", DEFAULT)
    return _SQUEEZED.get(plain) or _SQUEEZED.get(as_decoupled)


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) else 0.0


def take_rates(leaves: Leaves, *, optimizer: str, schedule: str) -> None:
    """Take what the update is made of.

    Raises FileFormatError: a value is of another type.
    """
    name = leaves.take(optimizer, str)
    if name is not None and name not in _OPTIMIZERS.keys() | _NOT_RUN:
        raise UnsupportedError(
            f"{leaves.path}: {optimizer}={name} is none of this version's; use "
            f"{', '.join(sorted(_OPTIMIZERS))}, or leave it out and give --optimizer"
        )
    leaves.say("optimizer", {**_OPTIMIZERS, **_NOT_RUN}.get(name or ""), optimizer)
    for key, flag in _NUMBERS.items():
        leaves.rest |= {key: numbered(leaves.rest[key])} if key in leaves.rest else {}
        value = leaves.take(key, float)
        if flag == "beta1" and name in _WITHOUT_MOMENTUM:
            value = 0.0
        leaves.say(flag, value, key)
    kind = leaves.take(schedule, str)
    if kind is not None and kind not in _SCHEDULES:
        leaves.notes.append(f"{schedule}={kind} is planned as --schedule says")
    leaves.say("schedule", _SCHEDULES.get(kind or ""), schedule)
    if kind == _FLOORED:
        _take_floor(leaves)
    if not 0 < _number(leaves.rest.get("warmup_steps")) < 1:  # else a share of all steps
        leaves.say("warmup_steps", leaves.take("warmup_steps", int), "warmup_steps")
    steps = leaves.take("max_steps", int)
    leaves.say("steps", steps if steps is None or steps > 0 else None, "max_steps")
    seed = leaves.take("seed", int)
    leaves.say("seed", seed, "seed")
    if seed is not None and leaves.rest.get("data_seed") in (seed, None):
        leaves.rest.pop("data_seed", None)


def take_switched(leaves: Leaves) -> None:
    """Take an optimizer that has a switch of its own, which stands in for what ``optim`` says."""
    for name in (*OPTIMIZERS, *_SWITCHED):
        if leaves.take(f"use_{name}", bool, False):
            keys = (f"{name}_layerwise", f"{name}_optim_per_parameter")
            by_layer = sum(leaves.take(key, bool, False) for key in keys) > 0
            leaves.rest["optim"] = f"{name}_adamw_layerwise" if by_layer else name


def _take_floor(leaves: Leaves) -> None:
    """Take where a cosine ends, and say where it ends in a plan, if that is elsewhere."""
    floor = leaves.take(_FLOOR, float, 0.0)
    if floor != COSINE_ENDS_AT:
        leaves.notes.append(
            f"the cosine ends at {floor:g} of the peak and is planned to end at {COSINE_ENDS_AT:g}"
        )


def take_batches(leaves: Leaves, named: Batches, num_devices: int) -> None:
    """Take a micro-batch, and the batch of a step that it makes on so many devices.

    Raises FileFormatError: one is no whole number.
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


class Held(NamedTuple):
    """How the base beside adapters is held.

    Attributes:
        bits: 4 or 8; None: it is not quantised.
        is_double: Whether the scales of 4 bits are quantised too.
        whole: How it is held where it is not quantised.
    """

    bits: int | None
    is_double: bool = True
    whole: str = "bf16"


def say_adapter(leaves: Leaves, held: Held, *, is_dora: bool, key: str) -> None:
    """Say how adapters are trained, and how the base beside them is held."""
    bits = held.bits or None
    if bits == _NO_DORA and is_dora:
        raise UnsupportedError(
            f"{leaves.path}: DoRA on a base of {bits} bits is not run by this version; leave "
            f"one out"
        )
    leaves.say("method", "dora" if is_dora else "qlora" if bits else "lora", key)
    bases = {None: held.whole, 4: "nf4-double" if held.is_double else "nf4", 8: "llm-int8"}
    leaves.say("base", bases[bits], key)


def stand_in(leaves: Leaves, defaults: Mapping[str, Any]) -> None:
    """Have the program's own defaults stand in for what the file does not say, and say so."""
    said = {*leaves.rest} | ({"warmup_steps"} if "warmup_ratio" in leaves.rest else set())
    missing = {key: value for key, value in defaults.items() if key not in said}
    leaves.rest |= missing
    if missing:
        words = ", ".join(f"{key}={value}" for key, value in missing.items())
        leaves.notes.append(f"{leaves.program}'s defaults: {words}")


def names_of(leaves: Leaves, key: str) -> str | None:
    """Take names, as a list or by comma; ``all`` is every linear layer; None: there are none."""
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


def is_fsdp(leaves: Leaves) -> bool:
    """Whether FSDP shards, which holds what trains in fp32 beside ``bf16`` or ``fp16``.

    Keys without a value, as in Axolotl's examples, are none; neither is a version alone.

    Source: ``prepare_optim_env`` of Axolotl's ``utils/trainer.py``; ``fsdp2_prepare_model`` of
    Accelerate's ``utils/fsdp_utils.py``, and ``prepare_model`` of its ``accelerator.py`` for the
    first FSDP.
    """
    given = (key for key, value in leaves.rest.items() if value is not None)
    return bool(leaves.rest.get("fsdp")) or any(key.startswith("fsdp_config.") for key in given)


def say_precision(leaves: Leaves, keys: Mapping[str, str]) -> str | None:
    """Say the recipe of the first switch that is on, of ``keys`` to recipes, and return it.

    None: no switch is on, and nothing is said.
    """
    on = [
        key for key in keys if str(leaves.rest.pop(key, False)).lower() in {"true", "auto", "full"}
    ]
    if not on:
        return None
    leaves.say("precision", keys[on[0]], on[0])
    return keys[on[0]]


def with_deepspeed(leaves: Leaves, *, num_devices: int, num_layers: int) -> Read:
    """Return what a file says, and DeepSpeed's settings that stand in it or in a file it names.

    What they say by themselves of the recipe is what DeepSpeed runs.

    Raises InputError: there is no such file. Raises FileFormatError: it is none of DeepSpeed's.
    """
    other = _deepspeed_of(leaves, {"num_devices": num_devices, "num_layers": num_layers})
    if other is None:
        return leaves.read()
    other = _beside_frozen(leaves, other)
    away = [one.value for read in (other, leaves) for one in read.taken if one.flag == "offload"]
    if len(away) > 1:  # what backward needs, beside what the engine keeps
        leaves.say_kept(tuple(each for each in away if each != "none"), DEEPSPEED)
    as_engine_runs(leaves, other)
    return leaves.read().joined(other, DEEPSPEED)


def as_engine_runs(leaves: Leaves, other: Read | None) -> None:
    """Make a file's recipe the one that DeepSpeed runs: its own, not autocast.

    Where DeepSpeed's settings leave it open or have no section of it, who starts the engine turns
    its section on (``set_mixed_precision`` of accelerate, ``fill_match`` of transformers): 16-bit
    parameters beside masters in fp32.

    ``other``: DeepSpeed's settings; None: they stand in the file itself.
    """
    settings = () if other is None else other.taken
    if any(each.flag == "precision" and each.key.endswith(_ENABLED) for each in settings):
        leaves.taken = [each for each in leaves.taken if each.flag != "precision"]
    leaves.taken = [
        msgspec.structs.replace(each, value=AS_DEEPSPEED.get(each.value, each.value))
        if each.flag == "precision"
        else each
        for each in leaves.taken
    ]


def _beside_frozen(leaves: Leaves, other: Read) -> Read:
    """Return what DeepSpeed is told, its stage 2 as stage 1 where most weights are frozen.

    Neither shards parameters there; of ours, stage 2 shards and gathers them.
    """
    said = {each.flag: each.value for each in other.taken}
    is_adapted = any(each.flag == "method" and each.value != "full" for each in leaves.taken)
    if not is_adapted or said.get("zero") != _OF_GRADIENTS or said.get("offload") != "none":
        return other
    leaves.notes.append(
        "DeepSpeed's stage 2 shards gradients and state alone, and every GPU has the whole frozen "
        "base: planned as ZeRO-1"
    )
    taken = [
        msgspec.structs.replace(each, value=_OF_GRADIENTS - 1) if each.flag == "zero" else each
        for each in other.taken
    ]
    return msgspec.structs.replace(other, taken=tuple(taken))


def _deepspeed_of(leaves: Leaves, sizes: Mapping[str, int]) -> Read | None:
    prefix = f"{DEEPSPEED}."
    inside = {
        key.removeprefix(prefix): leaves.rest.pop(key)
        for key in [*leaves.rest]
        if key.startswith(prefix)
    }
    if inside:
        return read_settings(leaves.path, inside, **sizes)
    name = leaves.take(DEEPSPEED, str)
    if name is None:
        return None
    own = shipped(name) if find_file(leaves, name) is None else None
    if own is not None:
        leaves.notes.append(f"{name} is not here: read as it stands in {own.source}")
        return read_settings(leaves.path, own.settings, **sizes)
    found = named_file(leaves, DEEPSPEED, name, "leave it out and give --zero")
    return read_deepspeed(found, **sizes)
