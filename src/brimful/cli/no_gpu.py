"""How much GPU memory a model takes, where no GPU was named and this machine has none.

A line for each method: the smallest usual card that holds it, and the flags with which the same
command says that it fits.
"""

import argparse
from typing import TYPE_CHECKING, NamedTuple

from brimful.cli import defaults, flags, resolved
from brimful.cli.output import DOES_NOT_FIT, FITS
from brimful.errors import BrimfulError, InputError, UnsupportedError
from brimful.search.typed import flag_words
from brimful.show.summary import Fact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from brimful.hardware.cluster import Device
    from brimful.search.beside import Fix
    from brimful.show.answer import Answer
    from brimful.values.job import Job, Method

METHODS: "tuple[Method, ...]" = ("full", "lora", "qlora")
"""That are told where none was asked for, in the order of what they take."""
SEVERAL = tuple(
    f"{counts}x{gpu}"
    for counts in ("2", "4", "8", "2x8", "4x8", "8x8")
    for gpu in ("a100-80gb", "h200")
)
"""GPUs in one or several nodes that are looked at where no single card holds it."""
_CLUSTER = ("gpus", "network", "memory_limit", "card_memory", "host_memory", "engine")


class Held(NamedTuple):
    """A job that fits.

    Attributes:
        job: What is trained.
        gpus: The flag that names what holds it.
        words: The flags of the settings with which it does; empty: as it was asked.
        fix: The strategy that holds, and what is predicted of it.
    """

    job: "Job"
    gpus: str
    words: str
    fix: "Fix"


def is_asked(args: argparse.Namespace) -> bool:
    """Whether no GPU was named and this machine has none, nothing else of it being given."""
    if args.json or args.model is None or resolved.is_plan(args.model):
        return False
    if any(getattr(args, name) is not None for name in _CLUSTER):
        return False
    return _here().kernels == "cpu"


def _here() -> "Device":
    from brimful.hardware.gpus import load_cluster

    return load_cluster(defaults.GPUS, memory_limit_bytes=None).device


def answer(args: argparse.Namespace) -> "tuple[int, Answer]":
    """Say for each method what holds it.

    ``args``: the flags of an estimate, without ``--gpus``. Returns the exit code, and the answer.
    Raises InputError: the job cannot run. Raises UnsupportedError: Likewise.
    """
    from brimful.show.answer import Answer
    from brimful.show.no_gpu import held_fact, no_gpu_summary, not_held_fact

    resolved.model_from(args)  # refused at once where there is none
    facts, refused = list[Fact](), list[BrimfulError]()
    jobs: list[Job] = []
    methods = METHODS if args.method is None else (args.method,)
    for method in methods:
        asked_by_name = _with(args, method=method)
        try:
            held = smallest(asked_by_name)
        except (InputError, UnsupportedError) as error:
            least = tuple(_least_facts(asked_by_name))
            refused += [] if least else [error]
            facts += least
            continue
        added = "" if args.method is not None or method == defaults.METHOD else f"--method {method}"
        if held is not None:
            jobs.append(held.job)
        facts.append(
            not_held_fact(method, SEVERAL[-1])
            if held is None
            else held_fact(method, held.fix, " ".join(filter(None, (held.gpus, added, held.words))))
        )
    if not facts:
        raise refused[0]
    summary = no_gpu_summary(args.model, jobs[0] if jobs else None, facts, _here())
    below = _below(args, jobs[0]) if jobs else ()
    return (FITS if jobs else DOES_NOT_FIT), Answer(summary, below, ())


def smallest(args: argparse.Namespace) -> Held | None:
    """Find the smallest usual card, or node of them, that surely holds a job; None: none does.

    Settings that were typed stay; else a few are looked at, and the fastest that holds counts.

    Raises InputError: the job cannot run. Raises UnsupportedError: no formula covers it.
    """
    from brimful.cost.estimate import tensor_limit_bytes

    least_bytes, refused, num_asked = 0, None, 0
    for gpus in _candidates(args):
        try:
            asked = resolved.asked(_with(args, gpus=gpus))
            room = tensor_limit_bytes(asked.cluster) * asked.cluster.num_devices
            if room < least_bytes:
                continue
            fix, peak_bytes = _held(args, asked)
        except (InputError, UnsupportedError) as error:
            refused = refused or error
            continue
        num_asked += 1
        if fix is not None:
            words = flag_words(asked.strategy, fix.strategy)
            return Held(asked.job, f"--gpus {gpus}", words, fix)
        if asked.cluster.num_devices == 1:
            least_bytes = peak_bytes  # no smaller card holds it, and no node with less in all
    if refused is not None and not num_asked:
        raise refused
    return None


def _candidates(args: argparse.Namespace) -> "Iterator[str]":
    """Yield the cards that somebody rents out and that have the recipe's type, then nodes."""
    from brimful.cost.money import shipped_prices
    from brimful.hardware.devices import cards

    rented = shipped_prices().gpus
    precision = args.precision or defaults.PRECISION
    for device in cards():
        if device.name in rented and (
            device.matrix_flops_per_s.bf16 or not precision.startswith("bf16")
        ):
            yield device.name
    yield from SEVERAL


def _held(args: argparse.Namespace, asked: resolved.Asked) -> "tuple[Fix | None, int]":
    """Return what holds of a job on a cluster, and the peak of the leanest that was looked at."""
    from brimful.search.beside import held_fix
    from brimful.search.lean import lean_fix
    from brimful.search.ledger import Point, predict
    from brimful.values.plan import Estimate

    job, cluster, strategy = asked
    made = predict(Point(job, strategy), cluster)
    if not isinstance(made, Estimate):
        raise UnsupportedError(f"{job.model.name} has no formula to predict from")
    peak_bytes = made.predicted_peak_allocated_bytes
    fix = held_fix(job, cluster, strategy, made) if made.fits else None
    if fix is not None or any(getattr(args, name) is not None for name in flags.STRATEGY):
        return fix, peak_bytes
    looked = lean_fix(job, cluster, strategy)
    return looked.fix, looked.made.predicted_peak_allocated_bytes


def _least_facts(args: argparse.Namespace) -> "Iterator[Fact]":
    """Say what a method holds at least, of a model that no formula covers yet."""
    from brimful.cli.least import least_as_held, roomier, spread_whole
    from brimful.show.no_gpu import least_fact

    try:
        named = _with(args, gpus=next(_candidates(args)))
        job = resolved.asked(named).job
        least = least_as_held(named, job)
    except BrimfulError:
        return
    if least is not None:
        larger = next(roomier(job, least, spread_whole(1)), None)
        yield least_fact(job.method, least.total, "" if larger is None else larger.text)


def _with(args: argparse.Namespace, **changed: object) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(args), **changed})


def _below(args: argparse.Namespace, job: "Job") -> "tuple[Fact, ...]":
    from brimful.cli.assumed import assumed_facts
    from brimful.show.left_out import left_out_facts

    words = f"brimful estimate {args.model} with a line's flags says what it takes and how fast"
    facts = (*left_out_facts(job), *assumed_facts(args, job))
    return *facts, Fact("next", f"{words}; brimful plan finds the fastest")
