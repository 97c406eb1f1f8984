"""How files around Hugging Face's Trainer spread a model: FSDP, or each device has a whole one.

Source: ``_process_fsdp_args`` and ``_apply_legacy_fsdp_to_config`` in
``transformers/training_args.py`` of 5.23.
"""

from typing import Any

from brimful.errors import InputError
from brimful.export.leaves import Leaves, load_json, named_file
from brimful.export.read_accelerate import STAGES, STRATEGIES, take_hybrid
from brimful.export.trainer_leaves import DEEPSPEED
from brimful.values.strategy import FLAT_FSDP

_FSDP = "fsdp_config"
_SPELLED = {"true": True, "false": False}
_SYNCS = "accelerator_config.gradient_accumulation_kwargs.sync_each_batch"


def take_syncs(leaves: Leaves) -> None:
    """Take when gradients are reduced, where Accelerate is told.

    Raises FileFormatError: a value is of another type.
    """
    syncs = leaves.take(_SYNCS, bool)
    leaves.say("accumulate", None if syncs is None else _reduces(is_each=syncs), _SYNCS)


def take_spread(leaves: Leaves, num_devices: int) -> bool:
    """Take how devices share the work: FSDP, or each with a whole model where nothing is said.

    What DeepSpeed is told is left to ``with_deepspeed``.

    Raises InputError: FSDP is told of no strategy that there is. Raises FileFormatError: a value is
    of another type.
    """
    take_syncs(leaves)
    options = leaves.rest.pop("fsdp", None)
    if options not in (None, False, "", []):
        return _take_fsdp(leaves, options, num_devices)
    is_plain = DEEPSPEED not in leaves.rest and not leaves.has(DEEPSPEED)
    if is_plain and num_devices > 1:
        leaves.say("zero", 0, "(neither fsdp nor deepspeed)")
        leaves.notes.append(
            "each device is planned to hold a whole model; --zero says otherwise, where accelerate "
            "launch shards it"
        )
    return False


def _reduces(*, is_each: bool) -> str:
    return "reduce-each" if is_each else "hold"


def _take_fsdp(leaves: Leaves, options: Any, num_devices: int) -> bool:
    """Take FSDP's strategy; return whether it recomputes blocks."""
    open_fsdp(leaves)
    words = options.split() if isinstance(options, str) else options
    words = [str(word) for word in words] if isinstance(words, list) else []
    says = {
        f"{_FSDP}.cpu_offload": takes_switch(leaves, "cpu_offload"),
        f"{_FSDP}.offload_params": takes_switch(leaves, "offload_params"),
        "fsdp: offload": "offload" in words,
    }
    away = next((key for key, is_on in says.items() if is_on), "")
    version = str(leaves.rest.pop(f"{_FSDP}.version", ""))
    recomputes = takes_switch(leaves, "activation_checkpointing")
    key, word = _strategy_of(leaves, words)
    if word not in STAGES:
        raise InputError(
            f"{leaves.path}: {key} is {word.lower()}; give true, false or one of "
            f"{', '.join(name.lower() for name in STRATEGIES)}"
        )
    if num_devices == 1:
        leaves.notes.append("FSDP shards nothing on one device: planned without")
        if away:
            leaves.say_shards_away(away)
        return recomputes
    leaves.say("zero", STAGES[word], key)
    if version == str(FLAT_FSDP) and STAGES[word]:
        leaves.say("fsdp", FLAT_FSDP, f"{_FSDP}.version")
    if STAGES[word]:
        for degree in ("tp", "pp"):
            leaves.say(degree, 1, f"({_FSDP} has none)")
    if word.startswith("HYBRID"):
        take_hybrid(leaves, num_devices, word, key)
    elif STAGES[word]:
        leaves.say("dp_replicate", 1, key)  # all share one copy, however many there are
    take_fsdp_offload(leaves, away)
    return recomputes


def take_fsdp_offload(leaves: Leaves, key: str) -> None:
    """Take FSDP's offload; a file that does not ask for it keeps all on the GPUs."""
    if key:
        leaves.say_shards_away(key)
    else:
        leaves.say("offload", "none", f"{_FSDP}.cpu_offload")


def _strategy_of(leaves: Leaves, words: list[str]) -> tuple[str, str]:
    """Take FSDP's strategy, and which key says it; it shards all where none does."""
    key = f"{_FSDP}.reshard_after_forward"
    said = leaves.rest.pop(key, None)
    named = [word for word in words if word not in {"offload", "auto_wrap", "true"}]
    if said is None and named:
        return "fsdp", named[0].upper()
    return key, "TRUE" if said is None else str(said).upper()


def open_fsdp(leaves: Leaves) -> None:
    """Open the file that FSDP's options stand in, if they do, and drop the prefix of old names.

    Raises InputError: it names a file that is not there.
    """
    name = leaves.rest.pop(_FSDP, None)
    if isinstance(name, str):
        found = named_file(leaves, _FSDP, name, "leave it out and give --zero")
        options = load_json(found, leaves.program)
        leaves.rest |= {f"{_FSDP}.{key}": value for key, value in options.items()}
    old = f"{_FSDP}.fsdp_"
    leaves.rest = {
        f"{_FSDP}.{key.removeprefix(old)}" if key.startswith(old) else key: value
        for key, value in leaves.rest.items()
    }


def takes_switch(leaves: Leaves, name: str) -> bool:
    """Take a switch of FSDP's, which may be spelled as text.

    ``leaves``: of the file, after ``open_fsdp``. Raises FileFormatError: it is neither true nor
    false.
    """
    key = f"{_FSDP}.{name}"
    said = leaves.rest.get(key)
    if isinstance(said, str) and said.lower() in _SPELLED:
        leaves.rest[key] = _SPELLED[said.lower()]
    is_on = bool(leaves.take(key, bool, default=False))
    del leaves.known[key]  # a file may spell it with the old prefix, and then has no such key
    return is_on
