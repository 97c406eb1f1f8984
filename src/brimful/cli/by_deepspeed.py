"""What DeepSpeed's own engine takes of what is planned: by its formula, without a search.

A file of its that offloads parameters on several GPUs is answered so, as our own loop does not run
it, and so is one for which the engine is named. Of other files it stands beside the answer.
"""

import argparse
from collections.abc import Callable, Mapping

from brimful.cli import defaults
from brimful.cli.engine_words import ENGINE, settings_of
from brimful.cli.output import show_facts
from brimful.show.summary import Fact
from brimful.techniques.offload import NONE as NO_OFFLOAD
from brimful.text.terminal import note
from brimful.units import format_bytes

_AC = "full"


def is_meant(args: argparse.Namespace, source: Mapping[str, object]) -> bool:
    """Whether DeepSpeed's engine is asked for a file, or it says what that engine alone runs."""
    from brimful.hardware.gpus import count_devices

    if not source:
        return False
    if args.engine == ENGINE:
        return args.program is None
    num_devices = count_devices(args.gpus or defaults.GPUS)
    is_full = args.method in {None, "full"}
    return num_devices > 1 and args.offload == "parameters" and args.engine is None and is_full


def answer(args: argparse.Namespace, show_source: Callable[[], None]) -> int:
    """Predict what the flags say, as ``brimful estimate --engine deepspeed`` does."""
    from brimful.cli import estimate
    from brimful.cli.main import as_verb

    args.engine, args.engine_settings = ENGINE, settings_of(args)
    if not args.json:
        show_source()
    told = as_verb("estimate", args)
    told.source = None  # its settings are flags by now
    if told.activation_checkpointing is None:
        told.activation_checkpointing = _AC
        note(f"brimful: --ac {_AC} is assumed, which no JSON of DeepSpeed says")
    if args.output is not None:
        note(f"brimful: {args.output} is not written: nothing was searched")
    code = estimate.run(told)
    if not args.json:
        is_away = told.offload not in {None, NO_OFFLOAD}
        show_facts(*args.beside_verdict, *(_away_facts(args, told) if is_away else ()))
    return code


def _away_facts(args: argparse.Namespace, told: argparse.Namespace) -> tuple[Fact, ...]:
    """Say what is known of the host, and what is not."""
    words = "what DeepSpeed's copies and its Adam on the CPU take; the speed is at most that"
    host = _host_facts(told) if _is_all_on_host(args) else ()
    return (*host, Fact("unknown", words))


def _is_all_on_host(args: argparse.Namespace) -> bool:
    """Whether the host holds all that DeepSpeed's estimate of it is of: nothing is on NVMe.

    Of a file that offloads parameters alone the GPUs hold the states.
    """
    from brimful.cli import resolved
    from brimful.export.read_deepspeed import OFFLOADS_BOTH
    from brimful.export.read_source import read_source
    from brimful.hardware.gpus import count_devices

    num_devices = count_devices(args.gpus or defaults.GPUS)
    num_layers = resolved.model_from(args).num_layers
    read = read_source(args.source, num_devices=num_devices, num_layers=num_layers)
    return not read.on_disk and OFFLOADS_BOTH not in read.stand_ins


def _host_facts(args: argparse.Namespace) -> tuple[Fact, ...]:
    """Say what a node's host has to have, by DeepSpeed's own estimate."""
    from brimful.cli.resolved import cluster_from
    from brimful.cost.deepspeed_engine import estimated_host_bytes
    from brimful.models.config import exact_count, load_model

    count, cluster = exact_count(load_model(args.model)), cluster_from(args)
    if not count:
        return ()
    least, most = estimated_host_bytes(count, cluster.num_nodes)
    words = f"{format_bytes(least)} of each, {format_bytes(most)} with buffers"
    given = cluster.host_ram_bytes
    does = "may not fit in" if most > given else "fits in"
    does = "does not fit in" if least > given else does
    room = f"{does} {format_bytes(given)}" if given else "--host-memory says what it has"
    return (Fact("host", f"{words}, by DeepSpeed's estimate; {room}"),)
