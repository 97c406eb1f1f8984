"""The fewest of a kind on which a plain plan holds: told early, before the best is looked for.

It bounds the best from above, as what the states and the matrix products take does from below.
"""

from collections.abc import Iterator

from brimful.cost.estimate import estimate, tensor_limit_bytes
from brimful.errors import InputError, UnsupportedError
from brimful.hardware.cluster import Cluster
from brimful.search.holding import as_it_fits
from brimful.search.shop.cell import Found
from brimful.search.shop.market import clusters_of, option_of
from brimful.search.shop.shelf import Shelf
from brimful.search.shop.values import Option, Request
from brimful.search.space import plainest_strategy

WAYS = (("none", 1), ("full", 1), ("full", 16))
"""What is checkpointed, and chunks of the loss: what holds more is faster, and looked at first."""


def first_fits(request: Request) -> Iterator[Option]:
    """Yield the fewest of each kind on which some plain plan holds, of what was traced."""
    shelf = Shelf(request)
    for kind in request.kinds:
        price = request.prices.gpus.get(kind)
        usd = None if price is None else price.usd_per_gpu_hour
        for cluster in clusters_of(request, kind):
            if (found := _plain(shelf, cluster)) is not None:
                yield option_of(request, cluster, found, usd)
                break


def _plain(shelf: Shelf, cluster: Cluster) -> Found | None:
    """Return the first of few plans that holds on a cluster; None: none of them does."""
    if cluster.num_nodes > 1 and not cluster.network:
        return None
    if shelf.least_kept(cluster) > tensor_limit_bytes(cluster):
        return None
    job, attention = shelf.job(cluster.device), shelf.attention(cluster.device)
    for kind, chunks in WAYS:
        pins = shelf.pins._replace(activation_checkpointing=kind, loss_chunks=chunks)
        try:
            strategy, _ = plainest_strategy(job, pins, attention, cluster.num_devices)
            made = estimate(job, cluster, strategy)
        except (InputError, UnsupportedError):
            continue  # it cannot run, or was not traced
        fitting = as_it_fits(job, cluster, strategy) if made.fits else None
        if fitting is not None and made.predicted_step_s is not None:
            return Found(fitting, made.predicted_peak_allocated_bytes, made.predicted_step_s)
    return None
