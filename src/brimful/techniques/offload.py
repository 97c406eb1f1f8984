"""What is in host memory between its uses, and how that is spelled.

``optimizer``: the optimizer's state, its update, and the gradients that it reads. ``parameters:K``:
the parameters of the first K blocks too, and so all that ``optimizer`` says; but where parameters
are updated inside the backward pass they are alone on the host, and a block's update runs while the
block is on the device; with ``optimizer`` beside it their state is on the host too, and travels
with its block. Of adapters it is the frozen base of these blocks alone: what trains stays on the
device, and so does its update, unless ``optimizer`` is named beside it. ``activations:K``: what the
first K blocks keep for their backward pass.
Without a K: all blocks. Several go together, separated by commas. Knows no torch; ``build.offload``
moves.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from brimful.errors import InputError, UnsupportedError
from brimful.techniques.optimizers import OPTIMIZERS
from brimful.values.job import FP8, MODULE, Base, Job

NONE = "none"
OPTIMIZER = "optimizer"
PARAMETERS = "parameters"
ACTIVATIONS = "activations"
SHARDS = 2
"""The first stage of ZeRO that shards parameters."""
HOLDS_ITS_OWN: Base = "llm-int8"
"""The base whose layers keep what they compute with beside their weight."""
KINDS = (OPTIMIZER, PARAMETERS, ACTIVATIONS)
"""In the order in which they are spelled."""
_PART = re.compile(r"(optimizer|parameters|activations)(?::(\d{1,9}))?")


class Away(NamedTuple):
    """What is in host memory.

    Attributes:
        optimizer: Whether the optimizer's state and its update, and the gradients, are.
        parameters: Of how many blocks the parameters are, from the first block on; where a base is
            frozen those of the base.
        activations: Of how many blocks what they keep for backward is, from the first block on.
        states: Whether the state of parameters that are there is there too, and updates are on the
            device all the same.
        frozen: Whether none of the parameters that are there train.
    """

    optimizer: bool
    parameters: int
    activations: int
    states: bool = False
    frozen: bool = False


NOTHING = Away(optimizer=False, parameters=0, activations=0)


class Devices(NamedTuple):
    """What something runs on, as far as it matters here.

    Attributes:
        num: Of all that run it.
        pp: Stages of a pipeline.
        zero: Stage of ZeRO: the host of several devices updates what each has a shard of.
        tp: Devices that share every matrix.
    """

    num: int
    pp: int
    zero: int
    tp: int = 1


def num_sent(away: Away, num_layers: int) -> int:
    """Count the blocks that send what they keep: what the last block keeps is needed first."""
    return min(away.activations, max(0, num_layers - 1))


def away_of(
    text: str, *, num_layers: int, updates_early: bool = False, is_frozen: bool = False
) -> Away:
    """Read what is offloaded.

    ``text``: as people type it: ``none``, or kinds separated by commas. ``updates_early``: whether
    parameters are updated inside the backward pass, on the device. ``is_frozen``: whether the base
    is frozen and adapters train. Raises InputError: it cannot be read, names a kind twice, or more
    blocks than there are.
    """
    counts = dict(_parts(text, num_layers)) if text != NONE else {}
    parameters, is_named = counts.get("parameters", 0), bool(counts.get("optimizer", 0))
    trains_away = parameters > 0 and not is_frozen
    travels = is_named and trains_away and updates_early
    return Away(
        optimizer=(is_named and not travels) or (trains_away and not updates_early),
        parameters=parameters,
        activations=counts.get("activations", 0),
        states=travels,
        frozen=parameters > 0 and is_frozen,
    )


def away_in(job: Job, text: str, *, updates_early: bool) -> Away:
    """Read what our own engine keeps on the host of a job.

    ``job``: what is trained; beside adapters its base is frozen. ``updates_early``: whether
    parameters are updated inside the backward pass. Raises InputError: it cannot be read; see
    ``away_of``.
    """
    return away_of(
        text,
        num_layers=job.model.num_layers,
        updates_early=updates_early,
        is_frozen=job.adapter is not None,
    )


def _parts(text: str, num_layers: int) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None or (match[2] is not None and match[1] == "optimizer"):
            raise InputError(
                f"offload={text!r} is not known; use none, or some of optimizer, parameters:K and "
                f"activations:K with K from 1 to {num_layers}, separated by commas"
            )
        count = num_layers if match[2] is None else int(match[2])
        if match[1] != "optimizer" and not 1 <= count <= num_layers:
            raise InputError(
                f"offload={text} asks for {count} blocks and the model has {num_layers}; use "
                f"{match[1]}:K with K from 1 to {num_layers}"
            )
        if match[1] in dict(found):
            raise InputError(f"offload={text} names {match[1]} twice; name it once")
        found.append((match[1], count if match[1] != "optimizer" else 1))
    return found


def spell_offload(away: Away, *, num_layers: int) -> str:
    """Write what is offloaded the way people type it."""
    parts = []
    if away.states or (away.optimizer and (not away.parameters or away.frozen)):
        parts.append("optimizer")
    for kind, count in (("parameters", away.parameters), ("activations", away.activations)):
        if count:
            parts.append(kind if count == num_layers else f"{kind}:{count}")
    return ",".join(parts) or NONE


def check_offload(job: Job, text: str, devices: Devices, *, updates_early: bool = False) -> None:
    """Refuse to keep on the host what our own engine does not.

    ``text``: what is to be kept there, as people type it. ``updates_early``: whether parameters are
    updated inside the backward pass. Raises InputError: the text cannot be read.
    """
    away = away_in(job, text, updates_early=updates_early)
    for what, fix, nearest in _refused(job, away, devices):
        raise UnsupportedError(
            f"offload={text} with {what} is not run by engine=torch in this version; use {fix}, or "
            f"offload=none",
            nearest=nearest,
        )


def _refused(
    job: Job, away: Away, devices: Devices
) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    """Yield what does not go with something on the host, what does, and the nearest that runs."""
    num, pp, zero, _ = devices
    if away == NOTHING:
        return
    if pp > 1:
        yield f"pp={pp}", "pp=1", {"pp": 1}
    if away.frozen:
        yield from _refused_base(job, devices)
    elif num > 1 and away.parameters:
        yield f"{num} devices", "offload=optimizer, or one device", {"offload": OPTIMIZER}
    if num > 1 and away.optimizer and zero < SHARDS:
        fix = "zero=2 or zero=3, whose shards it updates"
        yield f"zero={zero} on {num} devices", fix, {"zero": 3}
    rules = [rule.name for rule in OPTIMIZERS.values() if rule.on_host]
    if away.optimizer and job.optimizer not in rules:
        yield f"optimizer={job.optimizer}", f"{' or '.join(rules)}", {"offload": NONE}
    if away.parameters and job.precision == FP8:
        yield f"precision={FP8}", "another precision", {"offload": NONE}
    if away.parameters + away.activations and job.task == MODULE:
        yield f"task={MODULE}", "another task", {"offload": NONE}


def _refused_base(job: Job, devices: Devices) -> Iterator[tuple[str, str, Mapping[str, object]]]:
    """Yield the same of a frozen base of blocks on the host."""
    num, _, zero, tp = devices
    base = job.adapter.base if job.adapter is not None else "same"
    if tp > 1:
        yield f"tp={tp}", "tp=1", {"tp": 1}
    if num > 1 and zero >= SHARDS:
        fix = "zero=0 or zero=1, of which each brings the base from its own host memory"
        yield f"zero={zero} on {num} devices", fix, {"zero": 1}
    if base == HOLDS_ITS_OWN:
        yield f"base={base}", "base=nf4-double, nf4 or int8", {"offload": NONE}


def check_early(job: Job, away: Away, text: str, *, num_devices: int) -> None:
    """Refuse an update inside the backward pass beside what keeps gradients for later."""
    has_masters = job.precision.endswith("-master")
    travels = OPTIMIZERS[job.optimizer].travels
    refused = (
        (f"{num_devices} devices", num_devices > 1),
        (f"offload={text}", away.optimizer),
        (f"offload={text} and optimizer={job.optimizer}", away.states and not travels),
        (f"offload={text} and precision={job.precision}", away.parameters > 0 and has_masters),
    )
    for what, is_refused in refused:
        if is_refused:
            raise UnsupportedError(
                f"optimizer_in_backward with {what} is not run by this version; use it on one "
                f"device, with no offloaded optimizer, and of recipes without fp32 masters where "
                f"parameters are offloaded",
                nearest={"optimizer_in_backward": None},
            )
