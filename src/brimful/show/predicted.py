"""Whether a predicted strategy fits, with its memory: by the replay of its allocator."""

import re

from brimful.cost.host import saving_bytes
from brimful.hardware.cluster import Cluster, Device
from brimful.hardware.datasheets import datasheets
from brimful.hardware.usable import usable_memory
from brimful.show.summary import VERDICTS, Fact, Meter, Verdict
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.units import format_bytes
from brimful.values.job import Job
from brimful.values.plan import Estimate, HostMemory, Plan, PredictedReserved
from brimful.values.results import (
    GRADIENTS,
    OPTIMIZER_STATE,
    PAGED_STATE,
    PARAMETERS,
    SAVED_ACTIVATIONS,
    Reserved,
)

METHODS = {"full": "full training", "lora": "LoRA", "dora": "DoRA", "qlora": "QLoRA", "qat": "QAT"}
_TASKS = {"dpo": "DPO", "sequence-classification": "classification", "masked-lm": "masked tokens"}
TENSORS_ALONE = " (tensors only)"
"""Said of a peak that fits, where what the allocator adds was not counted."""
HOST = "host"
"""Whose memory is too little, where that of the GPUs may not be."""
_OFFLOADED = frozenset({PARAMETERS, GRADIENTS, OPTIMIZER_STATE, SAVED_ACTIVATIONS, PAGED_STATE})
"""Items of a host that are there because they are offloaded, or have no room on a GPU."""
_SIZE = re.compile(r" \d+GB\b")
_MAKERS = ("NVIDIA ", "GeForce ", "AMD ")


def subject_words(job: Job, cluster: Cluster) -> str:
    """Say what is asked about: ``LoRA of llama-3.1-8b at 4,096 tokens on 1 x RTX 4090 24GB``."""
    length = "" if job.task == "module" else f" at {job.seq_len:,} tokens"
    return f"{job_words(job)}{length} on {gpu_words(cluster)}"


def job_words(job: Job) -> str:
    """Say what is trained and how: ``LoRA of llama-3.1-8b``."""
    method, task = METHODS[job.method], _TASKS.get(job.task, "")
    return f"{f'{task}, {method},' if task else method} of {job.model.name}"


def gpu_words(cluster: Cluster) -> str:
    """Say how many GPUs of which kind: ``8 x H100 SXM 80GB``."""
    return f"{cluster.num_devices} x {sized_gpu(cluster.device)}"


def sized_gpu(device: Device) -> str:
    """Say which GPU; where somebody gave it another size than it has, with that size."""
    name, sheet = short_gpu(device.description), datasheets().get(device.name)
    if sheet is None or device.usable_bytes == usable_memory(sheet).num_bytes:
        return name
    return f"{_SIZE.sub('', name)} with {format_bytes(device.usable_bytes)}"


def short_gpu(description: str) -> str:
    """Leave the maker out of what a GPU is called."""
    for maker in _MAKERS:
        description = description.removeprefix(maker)
    return description


def verdict_of(estimate: Estimate) -> Verdict:
    """Say whether a prediction fits: by replay where that was done, else by live bytes."""
    if not estimate.fits:
        return "NO"
    reserved = estimate.predicted_reserved
    return "FITS" if reserved is None else VERDICTS[reserved.word]


def meter_of(estimate: Estimate) -> Meter:
    """Return the peak of a prediction beside what there is for it."""
    is_alone = estimate.fits and estimate.predicted_reserved is None
    return Meter(*estimate.told_peak, f"predicted{TENSORS_ALONE if is_alone else ''}")


LEAST_ROUNDED = 0.03
"""Of what a host holds, from which rounding is told."""


def host_meter(estimate: Estimate | None) -> Meter | None:
    """Return what training takes of a host that has too little; None: it may suffice."""
    host = None if estimate is None else estimate.host
    if host is None or host.fits is not False:
        return None
    train = host.predicted_training_bytes or int(host.predicted_host_bytes.low)
    return Meter(train, host.usable_bytes, "predicted", HOST)


def host_facts(
    host: Meter | None, device: Meter, estimate: Estimate | None, *, rounded: int
) -> tuple[Fact, ...]:
    """Say what helps where a node's host has too little memory.

    ``host``: what its processes take; None: it may suffice. ``device``: what a GPU holds, which may
    be too much as well. ``estimate``: says what saving takes beside; None: that is not predicted.
    ``rounded``: of what the host holds, what its blocks are larger than what is in them.
    """
    if host is None:
        return ()
    which = "not the GPUs" if device.used_bytes <= device.usable_bytes else "and so are the GPUs"
    made = None if estimate is None else estimate.host
    words = f"the host is short, {which}: give one with more memory (--host-memory)"
    if made is None or made.num_processes > 1:
        words = f"{words}, or fewer GPUs to a node"
    facts, rounding = [Fact("instead", words)], list[Fact]()
    if rounded > LEAST_ROUNDED * host.used_bytes:
        words = f"{format_bytes(rounded)} round pinned blocks up to powers of two"
        words += f"; {format_bytes(host.used_bytes - rounded)} without"
        rounding = [Fact("of it", words)]
    most = 0 if made is None else int(made.predicted_host_bytes.low)
    if most > host.used_bytes:
        words = f"Brimful's own takes {format_bytes(most)} of the host; others save their own way"
        facts.append(Fact("saving", words))
    return (*facts, *rounding)


def offloaded_bytes(estimate: Estimate | None) -> int:
    """Return what a node's host has because something is offloaded; 0: nothing is."""
    if estimate is None or estimate.host is None:
        return 0
    items = estimate.host.items
    return sum(item.num_bytes for item in items if item.name in _OFFLOADED)


def saving_facts(estimate: Estimate | None) -> tuple[Fact, ...]:
    """Say that a host has enough to train and too little for Brimful's own saving, and what helps.

    Other programs save their own way.
    """
    host = None if estimate is None else estimate.host
    needs = 0 if host is None or host.fits is False else saving_bytes(host)
    if host is None or not needs:
        return ()
    has, train = format_bytes(host.usable_bytes), format_bytes(host.predicted_training_bytes)
    words = f"Brimful's own needs {format_bytes(needs)} of the host's {has}, training {train}"
    return (Fact("saving", f"{words}: add swap, or brimful export to what saves its own way"),)


def host_needs(estimate: Estimate | None) -> tuple[Fact, ...]:
    """Say what an offloaded optimizer needs of a host of which nobody knows what it has."""
    host = None if estimate is None else estimate.host
    if host is None or not offloaded_bytes(estimate) or host.usable_bytes:
        return ()
    words = f"has to have {host_words(host)}; say what it has: --host-memory"
    return (Fact("host", words, f"has to have {host_words(host)}"),)


def host_share(estimate: Estimate | None) -> tuple[Fact, ...]:
    """Say what a node's host takes of what it has; what it has to have where nobody knows that."""
    host = None if estimate is None else estimate.host
    if host is None or host.fits is False:  # which its own meter says
        return ()
    if not host.usable_bytes:
        return host_needs(estimate)
    words, has = host_words(host), format_bytes(host.usable_bytes)
    return (Fact("host", f"takes {words}; it has {has}"),)


def host_words(host: HostMemory) -> str:
    """Say what a host has to have while it trains, and what more Brimful's own saving takes."""
    most, train = int(host.predicted_host_bytes.low), host.predicted_training_bytes
    if not 0 < train < most:
        return format_bytes(most)
    return f"{format_bytes(train)} to train, {format_bytes(most)} to save and hand over too"


def offloaded_facts(plan: Plan, host_bytes: int = 0) -> tuple[Fact, ...]:
    """Say what a strategy lacks that offloads and does not fit; nothing of any other.

    ``host_bytes``: what the host has that is too little for it; 0: that is not known.
    """
    made = plan.estimate
    if made is None or not offloaded_bytes(made) or plan.strategy.offload == NO_OFFLOAD:
        return ()
    if host_bytes and made.fits and made.host is not None:
        on = "the GPU" if plan.cluster.num_devices == 1 else "each GPU"
        has = format_bytes(host_bytes)
        words = f"would fit {on}, but needs {host_words(made.host)} of the host, which has {has}"
        return (Fact("offload", f"--offload {plan.strategy.offload} {words}"),)
    stays = sum(item.num_bytes for item in made.items if item.name == PARAMETERS)
    alone = f"parameters alone are {format_bytes(stays)}"
    short = made.predicted_peak_allocated_bytes - made.usable_bytes
    words = f"--offload {plan.strategy.offload} does not fit either: "
    if stays > made.usable_bytes:
        words += alone
    elif short > 0:
        words += f"short by {format_bytes(short)}"
    else:
        words += "not when it is replayed"
    return (Fact("offload", words),)


def replayed_meter(reserved: Reserved | PredictedReserved) -> Meter:
    """Return what the allocator holds beside what it may.

    Where it does not fit, that is what it would hold of a card without end.
    """
    if isinstance(reserved, PredictedReserved):
        return Meter(reserved.told_bytes, most_bytes(reserved), "predicted")
    used, whole = reserved.simulated_peak_reserved_bytes, reserved.simulated_unhindered_bytes
    return Meter(whole if reserved.word == "no" else used, most_bytes(reserved), "simulated")


def most_bytes(reserved: Reserved | PredictedReserved) -> int:
    """Return what an allocator may hold: all that there is, or a limit of the plan's own."""
    return reserved.capacity_bytes if reserved.limit_bytes is None else reserved.limit_bytes


def tight_facts(reserved: Reserved | PredictedReserved | None) -> tuple[Fact, ...]:
    """Say why what an allocator holds is tight; nothing where it is not."""
    if reserved is None or reserved.word != "tight":
        return ()
    if reserved.num_retries:
        times = "once" if reserved.num_retries == 1 else f"{reserved.num_retries} times"
        why = f"completes only by emptying the allocator's cache {times} (slow)"
        return (Fact("tight", why),)
    firm = format_bytes(reserved.firm_bytes)
    why = f"{firm} are certain; CUDA's context and NCCL may take the rest"
    return (Fact("tight", why),)
