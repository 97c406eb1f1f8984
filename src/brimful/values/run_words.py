"""What happened to a run besides its steps, each in a sentence."""

from brimful.units import format_bytes
from brimful.values.run_files import DamagedRow, Event, RestartRow, TakeoverRow
from brimful.values.strategy import Strategy

_SWITCHES = (
    "micro_batch", "activation_checkpointing", "loss_chunks", "attention", "zero", "dp_replicate",
    "dp_shard", "accumulate", "optimizer_in_backward", "offload",
    "compile", "fused_kernels", "allocator",
)  # fmt: skip


def describe_event(row: Event) -> str:
    """Say in one sentence what happened, and how the run went on."""
    if isinstance(row, TakeoverRow):
        return describe_takeover(row)
    return describe_restart(row) if isinstance(row, RestartRow) else describe_damaged(row)


def describe_restart(row: RestartRow) -> str:
    """Say in one sentence after which step a process was lost, and how many go on."""
    when = f"after step {row.step}" if row.step else "before the first step"
    what = "a process was lost" if row.restart else "a machine came or left"
    why = f" ({row.reason})" if row.reason else ""
    times = f", restart {row.restart}" if row.restart else ""
    noun = "process goes" if row.num_processes == 1 else "processes go"
    return f"{what} {when}{why}: {row.num_processes} {noun} on from the newest checkpoint{times}"


def describe_damaged(row: DamagedRow) -> str:
    """Say in one sentence which checkpoint is damaged, where it is, and what is used instead."""
    return (
        f"the checkpoint of step {row.step} is damaged ({row.reason}) and kept as {row.folder}; "
        f"the run goes on from step {row.taken}"
    )


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
