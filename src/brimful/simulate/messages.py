"""What a device and the others tell each other in one optimizer step of a simulation."""

from collections import Counter

from brimful.pretend.recording import OpCost, Recording
from brimful.pretend.tape import COLLECTIVES
from brimful.values.results import Collective

ALL_TO_ALL = "all-to-all"
_KINDS = {
    "c10d._allgather_base_": "all-gather",
    "c10d._reduce_scatter_base_": "reduce-scatter",
    "c10d.allreduce_": "all-reduce",
    "c10d.alltoall_base_": ALL_TO_ALL,
    "c10d.broadcast_": "broadcast",
    "c10d.send": "send",
    "c10d.recv_": "receive",
    "_c10d_functional.all_gather_into_tensor": "all-gather",
    "_c10d_functional.reduce_scatter_tensor": "reduce-scatter",
    "_c10d_functional.all_reduce": "all-reduce",
    "_c10d_functional.all_reduce_": "all-reduce",
}
"""By operators: those of programs, and those that a compiler writes for them."""


def collectives_of_step(
    recording: Recording, *, step: int, num_micro_batches: int
) -> tuple[Collective, ...]:
    """Add up the collectives of one step, by kind.

    ``recording``: with its messages, of as many micro-batches as differ: what is missing of
    ``num_micro_batches`` is like the second where three were recorded (gradients are held, the last
    reduces them), and like the last of two. Of a pipeline all are there. ``step``: which one, from
    1.
    """
    phases, prefix = recording.phases, f"step {step} "
    starts = [i for i, name in enumerate(phases) if name == f"{prefix}forward"]
    missing = max(0, num_micro_batches - len(starts))
    repeated = 1 if len(starts) > 1 else 0
    found: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    for cost in recording.costs:
        kind = _kind(cost)
        if kind is None or not phases[cost.phase].startswith(prefix):
            continue
        batch = sum(start <= cost.phase for start in starts) - 1
        is_update = phases[cost.phase] == f"{prefix}optimizer"
        times = 1 + missing * (batch == repeated and not is_update)
        found[kind] += times
        # The bytes of the whole tensor; of an all-to-all, which gets others, of what it sends. Its
        # operator names the output before the input.
        num_bytes[kind] += times * (
            cost.moved_bytes[-1] if kind == ALL_TO_ALL else max(cost.moved_bytes)
        )
    return tuple(
        Collective(kind=kind, num_calls=found[kind], num_bytes=num_bytes[kind])
        for kind in sorted(found)
    )


def _kind(cost: OpCost) -> str | None:
    """Name the kind of a collective, any other by its operator; None for what sends nothing."""
    name, _, _ = cost.op.rpartition(".")
    is_message = name.partition(".")[0] in COLLECTIVES and cost.moved_bytes
    return _KINDS.get(name, name) if is_message else None
