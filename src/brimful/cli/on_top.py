"""Room for what comes on top of a job that is answered in place of another: images, rollouts.

What can be counted is: a copy of the weights that writes, its cache, a reference model, a reward
model and a critic. Of an encoder of images nothing is known here, so that a share of each GPU is
left to it, and said.
"""

import argparse
import math
from typing import TYPE_CHECKING, NamedTuple

from brimful.errors import BrimfulError
from brimful.models.names import IMAGES
from brimful.units import Share, format_bytes

if TYPE_CHECKING:
    from brimful.export.read_grpo import Rollouts

SHARE_FOR_IMAGES = 0.15
"""Of a GPU, left to an encoder and its images; assumed, as nothing is counted."""
_PER_MILLE = 1000
"""Parts of a GPU in which room is left."""


class Room(NamedTuple):
    """What is left of each GPU for what comes on top.

    Attributes:
        left: Of a GPU, what the rest may take.
        words: Which it is, and how much.
        counted_bytes: Of each GPU; 0: that is assumed.
        card_bytes: What a GPU has for both.
    """

    left: Share
    words: str
    counted_bytes: int
    card_bytes: int


def room_for(on_top: str, args: argparse.Namespace) -> Room | None:
    """Return what is left on each GPU; None where nothing comes on top or it cannot be counted.

    ``on_top``: ``images``, one of ``elsewhere``'s rollouts, or empty.
    """
    if not on_top:
        return None
    try:
        return _room(on_top, args)
    except BrimfulError:
        return None  # what it is about is refused as well


def _room(on_top: str, args: argparse.Namespace) -> Room:
    from brimful.cli import resolved

    cluster = resolved.cluster_from(args)
    usable = cluster.device.usable_bytes  # whatever limit of it somebody set
    # A limit that somebody set says how much is left for the rest.
    are = "are left for" if args.memory_limit is None else "are for"
    if on_top == IMAGES:
        size = SHARE_FOR_IMAGES * usable
        words = (
            f"{format_bytes(size)} of each GPU {are} the encoder and its images, which "
            f"nothing counts here ({SHARE_FOR_IMAGES:.0%}, assumed); count the images' tokens in "
            f"--seq-len"
        )
    elif (found := _of_source(args)) is not None:
        size, words = _of_file(args, found, usable, are)
    else:
        # Flags with what a file says of the job; it is read again where it is planned.
        from brimful.cli.sources import take_gpus, take_source

        said = argparse.Namespace(**vars(args))
        take_gpus(said)
        take_source(said)
        size, words = _rollouts(said, resolved.cluster_from(said).num_devices, on_top, are)
    left = math.floor((1 - size / usable) * _PER_MILLE) / _PER_MILLE
    counted = 0 if on_top == IMAGES else math.ceil(size)
    return Room(Share(max(left, 1 / _PER_MILLE)), words, counted, usable)


def _of_source(args: argparse.Namespace) -> "Rollouts | None":
    """Return what a file of TRL's GRPO has beside the update; None: there is no such file."""
    if getattr(args, "source", None) is None:
        return None
    from brimful.export.read_source import rollouts_of

    return rollouts_of(args.source)


def _of_file(
    args: argparse.Namespace, found: "Rollouts", usable: float, are: str
) -> tuple[float, str]:
    """Count what a file of GRPO has beside the update: vLLM's share, and a reference.

    A model that the file's own loader shards has its reference sharded too. ``are``: whether what
    is counted was left, in words.
    """
    from brimful.cli import resolved
    from brimful.cost.held import held_bytes

    weights = held_bytes(resolved.model_from(args), "bf16", "bf16").total
    size = found.share * usable + found.has_reference * weights
    parts = [f"{found.why}, its copy of the weights {format_bytes(weights)} and its cache in it"]
    if not found.share:
        parts = [found.why]
    reference = f"reference model {format_bytes(weights)} (beta)"
    parts.append(reference if found.has_reference else "no reference model (beta 0, or adapters)")
    return size, f"{format_bytes(size)} of each GPU {are} {'; '.join(parts)}"


def _rollouts(
    args: argparse.Namespace, num_devices: int, on_top: str, are: str
) -> tuple[float, str]:
    """Count a copy of the weights that writes, its cache of keys and values, and a reference.

    A reward model and a critic are counted as large as the policy, which is usual; the critic
    trains as the policy does, so that it has the same states, and its own activations are there
    while the policy's are not. ``are``: whether what is counted was left, in words.
    """
    from brimful.cli import resolved
    from brimful.cli.elsewhere import CRITIC, ROLLOUTS
    from brimful.cli.least import least_of
    from brimful.cost.formats import COMPUTE_BYTES
    from brimful.cost.held import held_bytes
    from brimful.cost.kv_cache import cache_layers, prefilled_bytes

    job = resolved.job_from(args)
    weights = held_bytes(job.model, "bf16", "bf16").total
    texts = -(-job.global_batch // num_devices)
    cache = prefilled_bytes(
        cache_layers(job.model),
        num_tokens=job.seq_len,
        num_sequences=texts,
        element_bytes=COMPUTE_BYTES["bf16"],
    )
    reference = 0 if job.adapter is not None else -(-weights // num_devices)
    least = least_of(job) if on_top == CRITIC else None
    critic = 0 if least is None else -(-least.total // num_devices)
    reward = 0 if on_top == ROLLOUTS else -(-weights // num_devices)
    parts = [
        *([f"critic with its optimizer {format_bytes(critic)}"] if critic else []),
        *([f"reward model {format_bytes(reward)}"] if reward else []),
        f"weights that write the texts {format_bytes(weights)}",
        f"KV cache of {texts} x {job.seq_len:,} tokens {format_bytes(cache)}",
        *([f"reference model {format_bytes(reference)}"] if reference else []),
    ]
    total = weights + cache + reference + reward + critic
    each = "each GPU" if num_devices > 1 else "the GPU"
    words = f"{format_bytes(total)} of {each} {are} {', '.join(parts)}"
    alike = ", all as large as the policy" if reward else ""
    return total, f"{words} (bf16{alike}); times: its update alone"
