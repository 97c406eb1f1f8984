"""A model that several GPUs hold together to write text, as engines of inference do: bounds.

Nothing here runs it, so that nothing is exact: weights and cache are shared out evenly at best, and
beside its share no GPU needs more for a forward than one GPU would that had it all.
"""

from typing import NamedTuple

import msgspec

from brimful.cost.estimate import tensor_limit_bytes
from brimful.cost.held import held_bytes, packed_bytes
from brimful.cost.inference import InferenceJob, cache_bytes, estimate_inference
from brimful.cost.inference_limits import CHUNK_TOKENS, in_every_format, largest
from brimful.cost.kv_cache import cache_layers, num_shared_heads
from brimful.hardware.cluster import Cluster
from brimful.values.job import MAX_COUNT

COUNTS = (2, 4, 8, 16, 32, 64)
"""Of GPUs that hold a model together, which are looked at."""


class SharedInference(NamedTuple):
    """What a model takes that several GPUs hold.

    Attributes:
        num_devices: That share it.
        num_heads: Of keys and values, by which the cache is shared out; 1: not at all, as where it
            is one latent of all heads.
        weights_bytes: Of all together, experts as this version's formats leave them.
        packed_bytes: The same with experts packed as other weights are; equal where there are none.
        cache_bytes: Keys and values of all the text.
        beside_bytes: What one GPU's forward takes at most beside weights and cache; None: unknown.
        usable_bytes: Of each.
        prompt_len: Tokens that one forward reads.
        simulated_forward_bytes: What a forward of one GPU that had it all takes beside weights and
            cache, simulated where no formula says it; None: not simulated.
    """

    num_devices: int
    num_heads: int
    weights_bytes: int
    packed_bytes: int
    cache_bytes: int
    beside_bytes: int | None
    usable_bytes: int
    prompt_len: int
    simulated_forward_bytes: int | None = None

    @property
    def forward_bytes(self) -> int | None:
        """What one GPU's forward takes at most, predicted or simulated; None: unknown."""
        return self.simulated_forward_bytes if self.beside_bytes is None else self.beside_bytes

    @property
    def num_parts(self) -> int:
        """How many parts there are of the cache."""
        return min(self.num_devices, self.num_heads)

    @property
    def least_bytes(self) -> int:
        """What each GPU holds at least, whoever packs the weights."""
        return self._share(self.num_devices)

    @property
    def most_bytes(self) -> int | None:
        """What each takes at most, if its share is even; None: unknown."""
        beside = self.forward_bytes
        return None if beside is None else self.least_bytes + beside

    @property
    def fits(self) -> bool | None:
        """Whether it fits; None: between both bounds."""
        if self.least_bytes > self.usable_bytes:
            return False
        most = self.most_bytes
        return True if most is not None and most <= self.usable_bytes else None

    @property
    def needed(self) -> int | None:
        """How many such GPUs hold it; None: no number of those that are looked at does."""
        room = self.usable_bytes - (self.forward_bytes or 0)
        return next((n for n in COUNTS if self._share(n) <= room), None)

    def _share(self, num_devices: int) -> int:
        cache = -(-self.cache_bytes // min(num_devices, self.num_heads))
        return -(-self.packed_bytes // num_devices) + cache


def share_inference(job: InferenceJob, cluster: Cluster) -> SharedInference:
    """Bound what a model takes that all devices of a cluster hold.

    ``job``: what is loaded, and how much text it holds. Raises UnsupportedError: the architecture
    has no layout or no cache that is known.
    """
    held = held_bytes(job.model, job.weights_format, job.compute)
    layers = cache_layers(job.model)
    cache = max(cache_bytes(msgspec.structs.replace(job, prompt_len=job.seq_len)))
    alone = estimate_inference(job, cluster)
    peak = alone.predicted_peak_allocated_bytes
    return SharedInference(
        num_devices=cluster.num_devices,
        num_heads=num_shared_heads(layers),
        weights_bytes=held.total,
        packed_bytes=packed_bytes(job.model, job.weights_format, job.compute),
        cache_bytes=cache,
        beside_bytes=None if peak is None else max(0, peak - held.total - cache),
        usable_bytes=tensor_limit_bytes(cluster),
        prompt_len=job.prompt_len,
    )


class SharedMost(NamedTuple):
    """The most text that several GPUs hold together, its prompts read in chunks.

    Attributes:
        prompt_len: Tokens of a chunk.
        seq_len: Tokens of each of as many texts as were asked for; 0: none, however short.
        short_len: Tokens of a text of which several fit: as asked, or half of the longest or less.
        num_sequences: How many do.
        counts_forward: Whether what a forward takes beside weights and cache is counted.
    """

    prompt_len: int
    seq_len: int
    short_len: int
    num_sequences: int
    counts_forward: bool


def most_shared(job: InferenceJob, cluster: Cluster, forward_bytes: int | None) -> SharedMost:
    """Find the longest texts that fit, and how many of a shorter length.

    ``forward_bytes``: what a forward takes where no formula says it; None: unknown. Raises
    UnsupportedError: the architecture has no layout or no cache that is known.
    """
    counts_forward = share_inference(job, cluster).beside_bytes is not None or bool(forward_bytes)

    def fits(seq_len: int, num_sequences: int) -> bool:
        other = msgspec.structs.replace(
            job,
            seq_len=seq_len,
            prompt_len=min(CHUNK_TOKENS, seq_len),
            num_sequences=num_sequences,
        )
        shared = share_inference(other, cluster)._replace(simulated_forward_bytes=forward_bytes)
        return shared.fits is True or (not counts_forward and shared.fits is None)

    longest = largest(lambda each: fits(each, job.num_sequences), job.model.max_seq_len)
    short = job.seq_len if job.num_sequences > 1 else 1 << max(0, longest.bit_length() - 2)
    num = largest(lambda count: fits(short, count), MAX_COUNT) if longest else 0
    return SharedMost(CHUNK_TOKENS, longest, short, num, counts_forward)


def other_shared_formats(
    job: InferenceJob, cluster: Cluster, forward_bytes: int | None = None
) -> tuple[str, ...]:
    """List the other formats in which a model fits on all devices of a cluster, smallest last.

    ``job``: what is loaded, and how much text it holds. ``forward_bytes``: what a forward takes
    where no formula says it, which no format changes; None: unknown. Raises UnsupportedError:
    the architecture has no layout or no cache that is known.
    """
    others = [each for each in in_every_format(job) if each.weights_format != job.weights_format]
    shares = {
        each.weights_format: share_inference(each, cluster)._replace(
            simulated_forward_bytes=forward_bytes
        )
        for each in others
    }
    fitting = [name for name, each in shares.items() if each.fits]
    return tuple(sorted(fitting, key=lambda name: -shares[name].least_bytes))
