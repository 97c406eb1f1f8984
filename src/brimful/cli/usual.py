"""What is taken where nobody says: the default, or what runs where the default cannot.

A default that cannot run is no reason to end: the next choice that runs is taken, and one line on
stderr says which and why. What the user typed is never replaced, but refused.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from brimful.cli import defaults
from brimful.cli.parsing import note_once
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster, Device
from brimful.hardware.gpus import LOCAL
from brimful.models.attention_source import missing_kernels
from brimful.models.kernels import attentions_of, check_taken, left_out
from brimful.techniques.deepspeed import AS_DEEPSPEED
from brimful.techniques.fused_kernels import FusedKernels
from brimful.techniques.kernel_support import (
    Place,
    check_attention,
    check_precision,
    first_that_runs,
    why_emulated,
    why_not,
)
from brimful.text.terminal import note
from brimful.values.job import Job, Precision
from brimful.values.strategy import Attention, Strategy, Zero


def place_of(device: Device) -> Place:
    """Return where a device's kernels run."""
    return Place(device.kernels, device.capability)


def check_runs(job: Job, attention: Attention, device: Device) -> Attention:
    """Return a kernel as it is, or say why model, recipe or device do not go with it.

    Raises UnsupportedError: with the reason and what to use instead.
    """
    check_precision(job, place_of(device))
    check_taken(job, attention)
    return check_attention(job, attention, place_of(device))


def precision_from(args: argparse.Namespace, devices: Sequence[Device]) -> Precision:
    """Resolve ``--precision``; without it the first default that any of the devices has units for.

    DeepSpeed's engine has its own recipe of as many bits. What is asked for and has no units is
    emulated, which is said. ``devices``: what may run the
    job: one kind, or all that are compared.
    """
    chosen, reason = usual_precision(devices)
    if getattr(args, "engine", None) == "deepspeed":
        chosen = AS_DEEPSPEED.get(chosen, chosen)
    if args.precision is not None:
        asked = cast("Precision", args.precision)
        if emulated := _why_emulated(asked, devices):
            note_once(
                f"precision={asked} would be emulated, slowly, at a speed that is unknown: "
                f"{emulated}; --precision {chosen} has them"
            )
        return asked
    if reason:
        say_replaced(args, f"precision={chosen}", defaults.PRECISION, reason)
    return chosen


def usual_precision(devices: Sequence[Device]) -> tuple[Precision, str]:
    """Return the first default that any device has units for, and what speaks against others."""
    return first_that_runs(defaults.PRECISIONS, partial(_why_emulated, devices=devices))


def _why_emulated(recipe: Precision, devices: Sequence[Device]) -> str | None:
    reasons = [why_emulated(recipe, place_of(device)) for device in devices]
    return reasons[0] if reasons and all(reasons) else None


def fused_from(args: argparse.Namespace, job: Job, cluster: Cluster) -> FusedKernels | None:
    """Resolve ``--fused-kernels``; None: nobody said, and what layers ask for is installed there.

    Of this machine's GPU it is known whether it is.
    """
    typed: FusedKernels | None = args.fused_kernels
    is_here = cluster.name == LOCAL and cluster.device.kernels == "cuda"
    if typed is None and is_here and missing_kernels(job.model.model_type):
        return "torch"
    return typed


def attention_from(args: argparse.Namespace, job: Job, device: Device | None) -> Attention:
    """Resolve ``--attention``; without it the first default that model and device take.

    ``device``: on what; None: on several kinds, which are asked one by one. Raises
    UnsupportedError: what the user asked for cannot run.
    """
    if args.attention is not None:
        asked: Attention = check_taken(job, _of_documents(args.attention, job, device))
        try:
            return asked if device is None else check_runs(job, asked, device)
        except UnsupportedError:
            if "attention" not in getattr(args, "said_by_file", ()):
                raise
    chosen, reason = usual_attention(job, device)
    if reason:
        say_replaced(args, f"attention={chosen}", defaults.ATTENTIONS[0], reason)
    return chosen


def attention_of_kind(args: argparse.Namespace, job: Job, device: Device) -> Attention:
    """Return the kernel that one of several kinds is compared with, whether it runs it or not."""
    if args.attention is not None:
        return _of_documents(args.attention, job, device)
    return usual_attention(job, device)[0]


def usual_attention(job: Job, device: Device | None) -> tuple[Attention, str]:
    """Return the first default that model and device take, and what speaks against the default."""
    place = None if device is None else place_of(device)

    def refusal(attention: Attention) -> str | None:
        if attention not in attentions_of(job):
            what = left_out(job.model)
            return f"it would leave out the {what} of {job.model.name}" if what else "no mask"
        return None if place is None else why_not(job, attention, place)

    return first_that_runs(defaults.ATTENTIONS, refusal)


def _of_documents(asked: Attention, job: Job, device: Device | None) -> Attention:
    """Return FlashAttention as it is called for packed documents, where it keeps them apart."""
    place = Place("cuda", float("inf")) if device is None else place_of(device)
    if asked != "flash" or job.packing != "documents" or "varlen" not in attentions_of(job):
        return asked
    if why_not(job, "varlen", place) is not None:
        return asked
    note_once(
        "--attention varlen is taken for flash: of packed documents FlashAttention is told where "
        "each begins"
    )
    return "varlen"


def strategy_that_runs(
    args: argparse.Namespace, num_devices: int, make: Callable[[Zero], Strategy]
) -> Strategy:
    """Resolve ``--zero``; without it the first default of which a checked strategy can be made.

    Raises InputError: None can run, or the one that was asked for cannot: what is said of the
    first. Raises UnsupportedError: Likewise.
    """
    usual = defaults.ZEROS if num_devices > 1 else defaults.ZEROS_ALONE
    if num_devices > 1 and args.dp_replicate == num_devices:
        usual = tuple(reversed(usual))  # whole replicas: nothing is sharded
    choices = usual if args.zero is None else (args.zero,)

    def refusal(zero: Zero) -> str | None:
        try:
            make(zero)
        except (InputError, UnsupportedError) as error:
            return str(error)
        return None

    zero, reason = first_that_runs(choices, refusal)
    if reason:
        say_replaced(args, f"zero={zero}", usual[0], reason)
    return make(zero)


def say_replaced(args: argparse.Namespace, chosen: str, default: object, reason: str) -> None:
    """Say in one line what stands in for a default, once for one command line."""
    said: set[str] = args.__dict__.setdefault("replaced_defaults", set())
    if chosen in said:
        return
    said.add(chosen)
    if os.environ.get("RANK", "0") == "0":
        cause = reason.partition(";")[0]
        note(f"brimful: {chosen} instead of the default {default}: {cause}")
