"""What ``shop --gpus`` names: kinds, of which it finds how many, or machines with their number."""

import argparse
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from brimful.cli import defaults
from brimful.cli.named_gpus import gpu_from, noted_cluster
from brimful.errors import InputError, UnknownMemoryError, UnsupportedError
from brimful.hardware.gpus import check_gpu
from brimful.hardware.names import machine_of, split_counts

if TYPE_CHECKING:
    from brimful.cost.money import Prices
    from brimful.hardware.cluster import Cluster


def kinds_from(text: str | None, prices: "Prices") -> tuple[str, ...]:
    """Return the GPUs that are compared: those named, or those that could stand in for another.

    What somebody has a price of is named, whoever made it.
    """
    from brimful.hardware.devices import cards, gpus

    if text is None:
        own = {name for name, price in prices.gpus.items() if not price.whose}
        priced = {card.name for card in cards()} & set(prices.gpus) | own & set(gpus())
        return tuple(name for name in gpus() if name in priced)
    names = tuple(dict.fromkeys(_known(_parts(text))))
    if not names:
        raise InputError(f"--gpus {text!r} names no GPU; write --gpus rtx-4090,h100-80gb")
    return names


def machines_from(args: argparse.Namespace) -> "tuple[Cluster, ...]":
    """Return what was named with a number, which is compared as it is.

    Raises InputError: of the same kind a number is to be found too, or ``--max-gpus`` is less.
    """
    parts = _parts(args.kinds or "")
    named = [part for part in parts if is_counted(part)]
    found = clusters_of([_usual(part) for part in named], args.network)
    is_open = set(_known([part for part in parts if not is_counted(part)]))
    for typed, cluster in zip(named, found, strict=True):
        if cluster.name in is_open:
            raise InputError(
                f"--gpus {args.kinds}: {typed} says how many, and of {cluster.name} they are to be "
                "found; give one of the two"
            )
        if args.max_gpus is not None and cluster.num_devices > args.max_gpus:
            raise InputError(
                f"--gpus {typed} is {cluster.num_devices} GPUs, and --max-gpus {args.max_gpus}; "
                "leave one of the two out"
            )
    return tuple(dict.fromkeys(found))


def batch_for(args: argparse.Namespace) -> int:
    """Return the batch of a question that gives none: what all that is compared can share."""
    shared = math.lcm(*(each.num_devices for each in machines_from(args)))
    return -(-defaults.SHOP_GLOBAL_BATCH // shared) * shared


def prices_of(text: str | None, prices: "Prices") -> "Prices":
    """Return prices with those of the clouds' machines that are named.

    Raises InputError: a kind of GPU is named at two prices.
    """
    from brimful.cost.money import on_machine

    rented: dict[str, str] = {}
    for part in filter(is_counted, _parts(text or "")):
        kind, machine = check_gpu(split_counts(part).gpu), machine_of(part)
        other = rented.setdefault(kind, machine)
        if other != machine:
            raise InputError(
                f"--gpus {text}: {machine or other} and {other if machine else 'others'} both have "
                f"{kind}, of which one price is compared; ask for each by itself"
            )
        prices = on_machine(prices, machine) if machine else prices
    return prices


def clusters_of(names: Sequence[str], network: str | None) -> "tuple[Cluster, ...]":
    """Resolve machines, and say of each that was typed in another way which was taken."""
    from brimful.hardware.gpus import load_cluster

    return tuple(
        noted_cluster(name, load_cluster(name, memory_limit_bytes=None, network_name=network or ""))
        for name in names
    )


def is_counted(part: str) -> bool:
    """Whether GPUs are named with their number, which may be one, or a machine that is rented."""
    nodes, each, name = split_counts(part)
    is_one = part.lower().replace(" ", "").startswith("1x") and not name.startswith("1x")
    return nodes * each > 1 or is_one or bool(machine_of(part))


def _usual(part: str) -> str:
    """Return a machine as it is typed; more GPUs than fill one are several of those."""
    from brimful.hardware.datasheets import datasheets

    nodes, number, name = split_counts(part)
    kind = check_gpu(name)
    each = datasheets()[kind].per_node
    is_several = nodes == 1 and 1 < each < number and number % each == 0
    return f"{number // each}x{each}x{kind}" if is_several else part


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _known(parts: Sequence[str]) -> list[str]:
    """Resolve the names of GPUs."""
    known, unknown = list[str](), list[UnknownMemoryError]()
    for part in parts:
        try:
            with_number = is_counted(part)  # which is told with it
            name = split_counts(part).gpu
            known.append(check_gpu(name) if with_number else gpu_from(part))
        except UnknownMemoryError as error:
            unknown.append(error)
    if unknown:
        nearest = {"kinds": ",".join(known)} if known else {}
        raise UnsupportedError("; ".join(map(str, unknown)), nearest=nearest)
    return known
