"""That memory ran out and another strategy took over, in a sentence."""

from brimful.run_files import TakeoverRow
from brimful.strategy import Strategy
from brimful.units import format_bytes

_SWITCHES = (
    "micro_batch", "activation_checkpointing", "loss_chunks", "attention", "zero", "dp_replicate",
    "dp_shard", "accumulate", "optimizer_in_backward", "offload",
)  # fmt: skip


def describe_takeover(row: TakeoverRow) -> str:
    """Say in one sentence what failed, at what limit, and what took over."""
    how = "the step is taken again" if row.in_place else "from the newest checkpoint"
    return (
        f"out of memory in {place_of(row.step, row.phase)} at a limit of "
        f"{format_bytes(row.limit_bytes)}: {_differences(row.failed, row.taken)}; {how}"
    )


def place_of(step: int, phase: str) -> str:
    """Say in which step, and in which part of it."""
    return "loading" if phase == "load" else f"step {step}, {phase}"


def _differences(failed: Strategy, taken: Strategy) -> str:
    pairs = [(name, getattr(failed, name), getattr(taken, name)) for name in _SWITCHES]
    return ", ".join(f"{name} {old} -> {new}" for name, old, new in pairs if old != new)
