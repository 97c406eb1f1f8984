"""The answer where no GPU was named and there is none: a line for each method."""

from collections.abc import Sequence

from brimful.hardware.cluster import Device
from brimful.search.beside import Fix
from brimful.show.beside import held_bytes
from brimful.show.predicted import METHODS
from brimful.show.summary import Fact, Summary
from brimful.units import format_bytes
from brimful.values.job import Job, Method
from brimful.values.strategy import world_size


def no_gpu_summary(model: str, job: Job | None, facts: Sequence[Fact], here: Device) -> Summary:
    """Say what was asked, the lines of the methods, and that this machine was not meant.

    ``job``: one of what was looked at; None: nothing was predicted.
    """
    what = model
    if job is not None:
        what = job.model.name
        what += "" if job.task == "module" else f" at {job.seq_len:,} tokens"
    own = f"--gpus local is its CPU, with {format_bytes(here.usable_bytes)}"
    words = f"none was named, and this machine has none ({own})"
    return Summary(None, f"GPU memory to train {what}", None, (*facts, Fact("GPU", words)))


def held_fact(method: Method, fix: Fix, words: str) -> Fact:
    """Say what a method takes on the smallest card that holds it.

    ``words``: the flags with which the same command says so.
    """
    both = f"{format_bytes(held_bytes(fix.made))} of {format_bytes(fix.made.usable_bytes)}"
    each = " on each" if world_size(fix.strategy) > 1 else ""
    return Fact(_label(method), f"{both}{each} fits with {words}")


def not_held_fact(method: Method, most: str) -> Fact:
    """Say that nothing which was looked at holds a method."""
    return Fact(_label(method), f"does not fit even on {most} with the settings that were tried")


def least_fact(method: Method, least_bytes: int, larger: str) -> Fact:
    """Say what a method holds at least, where no formula covers the model.

    ``larger``: the smallest card that leaves room beside that, in words; empty: none does.
    """
    words = f"{format_bytes(least_bytes)} at least, before activations"
    return Fact(_label(method), f"{words}; {larger}" if larger else words)


def _label(method: Method) -> str:
    return method if method == "full" else METHODS[method]
