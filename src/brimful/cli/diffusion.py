"""A model that makes images or videos, asked about by its name: what it is, and whether it fits."""

import argparse

from brimful.errors import UnsupportedError


def refuse(args: argparse.Namespace) -> None:
    """Refuse a model that makes images or videos, and say what its weights take of the GPU."""
    from brimful.models.by_name import find_named
    from brimful.models.diffusion import Diffusion, refusal

    name = getattr(args, "model", None)
    found = find_named(name) if isinstance(name, str) else None
    if not isinstance(found, Diffusion):
        return
    if getattr(args, "gpus", None) is None:
        raise UnsupportedError(refusal(found))
    from brimful.cli import resolved
    from brimful.cli.bound import with_all_flags
    from brimful.hardware.cluster import offered_bytes
    from brimful.show.predicted import sized_gpu
    from brimful.units import format_bytes

    cluster = resolved.cluster_from(with_all_flags(args))
    offered = offered_bytes(cluster)
    room = f"the {format_bytes(offered)} of {sized_gpu(cluster.device)}"
    if found.all_bytes <= offered:
        fits = f"which fits {room} before anything is trained"
    elif found.weight_bytes <= offered:
        fits = f"which fits {room} without text encoders, before anything is trained"
    else:
        fits = f"which is more than {room}"
    raise UnsupportedError(refusal(found, fits=fits, gpu=cluster.device.name))
