"""Host memory and checkpoints in words: for the terminal, the page and an error."""

from brimful.cost.host import NUM_KEPT
from brimful.report.words import UNKNOWN, format_band
from brimful.units import format_bytes
from brimful.values.plan import HostMemory


def host_words(host: HostMemory | None) -> list[tuple[str, str]]:
    """Say in two pairs of name and text what a node's host holds and what a checkpoint takes."""
    if host is None:
        return []
    return [("host memory", _memory_words(host)), ("checkpoint", _disk_words(host))]


def _memory_words(host: HostMemory) -> str:
    band = format_band(host.predicted_host_bytes, unit="bytes")
    has = format_bytes(host.usable_bytes) if host.usable_bytes else UNKNOWN
    processes = f", {host.num_processes} processes" if host.num_processes > 1 else ""
    added = host.predicted_async_bytes
    more = f"; {format_bytes(added)} more with --checkpoint async" if added else ""
    return f"{band} of {has} a node{processes}{more}"


def _disk_words(host: HostMemory) -> str:
    one = host.predicted_checkpoint_bytes
    most = format_bytes((NUM_KEPT + 1) * one)
    return f"{format_bytes(one)} on disk; {most} with {NUM_KEPT} kept and one being written"
