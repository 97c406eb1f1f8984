"""FSDP's offload in a file, which moves shards of parameters too, planned as what there is.

Of adapters the frozen base of all layers is on the host, of which each device has a copy of its own
there; on one device all parameters are. Of several that train everything this version keeps the
optimizer and gradients on the host, and what the shards would spare beside that is said.
"""

import argparse
from typing import TYPE_CHECKING, Any, NamedTuple

from brimful.cli import defaults, resolved
from brimful.errors import BrimfulError, InputError, UnsupportedError
from brimful.techniques.offload import OPTIMIZER, PARAMETERS, Devices, check_offload
from brimful.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brimful.export.leaves import Taken
    from brimful.values.job import Job

_DOCUMENTS, _WHOLE = "documents", "none"
_SHARDS_STATE = 1
"""The stage of ZeRO beside which each device has a whole base."""


class Away(NamedTuple):
    """What is planned for it.

    Attributes:
        flags: With their values, in place of what the file says.
        words: That are said beside the verdict, each a sentence.
    """

    flags: dict[str, Any]
    words: tuple[str, ...]


def plan_away(args: argparse.Namespace, key: str, kept: "list[Taken]") -> Away:
    """Set the flags of a file to what is run of FSDP's offload.

    ``key``: that asks for it; empty: none does.
    """
    said = {each.flag for each in kept}
    if not key or "offload" not in said:
        return Away({}, ())
    job, num = resolved.job_from(args), _num_devices(args)
    flags: dict[str, Any] = {"offload": PARAMETERS}
    if num > 1:
        flags |= {"zero": _SHARDS_STATE} if "zero" in said and job.adapter is not None else {}
    if not _runs(args, job, num, flags):
        return Away({}, tuple(_spared(args, key, job, num)))
    for flag, value in flags.items():
        setattr(args, flag, value)
    words: tuple[str, ...] = ()
    if num > 1:
        args.fsdp = None
        words = (f"{_short(key)}: frozen layers on the host, whole for each GPU",)
    if "packing" in said and (whole := _without_documents(args)):
        flags |= {"packing": _WHOLE}
        words += (whole,)
    return Away(flags, words)


def _num_devices(args: argparse.Namespace) -> int:
    from brimful.hardware.gpus import count_devices

    return count_devices(args.gpus or defaults.GPUS)


def _runs(args: argparse.Namespace, job: "Job", num: int, flags: dict[str, Any]) -> bool:
    """Whether parameters on the host go with what else is asked for."""
    pp, tp, zero = (getattr(args, name, None) for name in ("pp", "tp", "zero"))
    zero = flags.get("zero", zero)
    counts = [each if isinstance(each, int) else 1 for each in (pp, tp)]
    stage = zero if isinstance(zero, int) else 0
    try:
        check_offload(job, flags["offload"], Devices(num, counts[0], stage, counts[1]))
    except (InputError, UnsupportedError):
        return False
    return True


def _spared(args: argparse.Namespace, key: str, job: "Job", num: int) -> "Iterator[str]":
    """Say how many bytes the shards of parameters take that are planned on the devices."""
    from brimful.cli.least import least_of

    try:
        least = least_of(job)
    except UnsupportedError:  # which is refused later, in its own words
        least = None
    words = f"{_short(key)} moves parameters too, and is planned as {OPTIMIZER} alone"
    if least is not None:
        shards = num if args.zero == 3 else 1  # noqa: PLR2004 - which shards parameters
        words += f": up to {format_bytes(-(-least.parameters // shards))} less on each GPU"
    yield words


def _without_documents(args: argparse.Namespace) -> str:
    """Plan whole rows where packed documents have no formula beside it; empty: they have."""
    from brimful.cli.searching import why_untold

    whole = argparse.Namespace(**{**vars(args), "packing": _WHOLE})
    if args.packing != _DOCUMENTS or not hasattr(args, "objective"):
        return ""
    try:
        if not why_untold(args) or why_untold(whole):
            return ""
    except BrimfulError:  # which is said later, in its own words
        return ""
    args.packing = _WHOLE
    return "documents: whole rows of as many tokens, for want of a formula"


def _short(key: str) -> str:
    return key.rpartition(".")[2]
