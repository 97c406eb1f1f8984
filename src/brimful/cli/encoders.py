"""A model of speech or images, of which its states are known: at least what they take."""

import argparse
from typing import TYPE_CHECKING

import msgspec

from brimful.cli.output import BAD_INPUT, DOES_NOT_FIT, show_facts, show_summary
from brimful.show.summary import Fact
from brimful.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brimful.show.bound import Bounded

_SCRIPT = "brimful pretend --gpu {} -- your_script.py runs it as it is, its rows and buffers too"


def _smaller() -> "Iterator[dict[str, str]]":
    """Yield flags with which fewer bytes of a parameter are there."""
    from brimful.cli import defaults
    from brimful.techniques.optimizers import OPTIMIZERS, rounded_of

    rounded = {"optimizer": rounded_of(OPTIMIZERS[defaults.OPTIMIZER])}
    pure = {"precision": "bf16"}
    yield from (rounded, pure, {**pure, **rounded})


def tell(args: argparse.Namespace) -> int | None:
    """Say what a model of speech or images needs at least, and how it is answered whole.

    Returns the exit code; None: the model is none of these.
    """
    from brimful.models.encoders import find_encoder

    name = getattr(args, "model", None)
    if not isinstance(name, str) or args.json or getattr(args, "gpus", None) is None:
        return None
    found = find_encoder(name)
    if found is None:
        return None
    from brimful.cli.bound import bounded_of, with_all_flags
    from brimful.models.encoders import stand_in
    from brimful.show.bound import bound_summary

    key, encoder = found
    args = with_all_flags(args)
    known = bounded_of(args, stand_in(key), encoder.parameters)
    if known is None:
        return None
    summary = bound_summary(known, ())
    show_summary(summary)
    is_no = summary.verdict == "NO"
    ways = _ways(known) if is_no else ()
    words = f"a model of {encoder.of}, of which no formula is here: {_SCRIPT.format(args.gpus)}"
    show_facts(*ways, Fact("next", words))
    return DOES_NOT_FIT if is_no else BAD_INPUT


def _ways(known: "Bounded") -> "tuple[Fact, ...]":
    """Say what would leave the states room, each with its bytes; adapters always would."""
    from brimful.cost.least import least_bytes, least_on_device

    has_bf16 = known.job.precision.partition("-")[0] != "fp16"
    ways = []
    for changes in _smaller():
        flags = " ".join(f"--{name} {value}" for name, value in changes.items())
        if "precision" in changes and not has_bf16:
            continue
        job = msgspec.structs.replace(known.job, **changes)
        held = least_on_device(least_bytes(job, known.num_parameters), known.spread).total
        if held <= known.usable_bytes:
            ways.append(f"{flags} {format_bytes(held)}")
    frozen = format_bytes(2 * known.num_parameters)
    ways.append(f"LoRA on weights in 16 bits, {frozen}")
    return (Fact("or with", f"{', '.join(ways)} at least, before activations"),)
