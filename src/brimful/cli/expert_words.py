"""What becomes of a mixture's experts: packed or not, with adapters or not, as published or not."""

import math
from typing import TYPE_CHECKING, cast

from brimful.show.summary import Fact
from brimful.units import format_bytes, format_count

if TYPE_CHECKING:
    from brimful.cost.formats import WeightsFormat
    from brimful.cost.least import Least
    from brimful.hardware.cluster import Cluster
    from brimful.models.layout import Kind
    from brimful.values.job import Job


def expert_facts(
    job: "Job", least: "Least | None" = None, asked: "Cluster | None" = None
) -> tuple[Fact, ...]:
    """Say that a quantised base leaves stacks of experts as they are, where it has any.

    ``least``: what there is at least, for which there is no room here; None: there is room.
    ``asked``: on what; None: nobody said.
    """
    from brimful.cost.held import pack_experts
    from brimful.models.config import has_layout
    from brimful.models.mixtures import has_stacks
    from brimful.values.job import IN_FP32, QUANTIZED

    base = "same" if job.adapter is None else job.adapter.base
    published = _published_facts(job)
    if base in QUANTIZED and (own := _elements_of(job, "own-linear")):
        words = (
            f"{format_bytes(2 * own)} of linear layers stay in 16 bits: transformers packs "
            f"plain nn.Linear alone, that no other layer shares"
        )
        return (Fact("unpacked", words), *published)
    if base not in QUANTIZED or job.precision in IN_FP32 or not has_stacks(job.model):
        return (*_unadapted_facts(job), *published)
    size, more = "", ""
    if has_layout(job.model):
        stacks = _elements_of(job, "experts")
        packed = 2 * stacks - pack_experts(job.model, cast("WeightsFormat", base), "bf16")
        size = (
            f", {format_bytes(2 * stacks)} of all together ({format_bytes(packed)} if packed too)"
        )
        whole = 0 if least is None else least.total - 2 * stacks + packed
        more = _packed_words(job, whole, asked) if whole else ""
    why = "they are stacked, where bitsandbytes and PEFT take linear layers alone"
    words = f"stay in 16 bits{size} and get no adapters: {why}"
    return (Fact("experts", words), *([Fact("if packed", more)] if more else []), *published)


def _unadapted_facts(job: "Job") -> tuple[Fact, ...]:
    """Say that stacks of experts get no adapters, whatever the targets are named."""
    from brimful.models.config import has_layout, layout_of
    from brimful.models.mixtures import has_stacks

    adapter = job.adapter
    if adapter is None or not has_stacks(job.model):
        return ()
    words = "get no adapters: PEFT's targets are linear layers, and they are stacks"
    if not has_layout(job.model):
        return (Fact("experts", words),)
    num = sum(
        run.num_blocks * adapter.rank * math.prod(p.shape[:-2]) * sum(p.shape[-2:])
        for run in layout_of(job.model).blocks
        for p in run.parameters
        if p.kind == "experts" and len(p.shape) > 2  # noqa: PLR2004 - a stack of matrices
    )
    return (Fact("experts", f"{words} ({format_count(num)} parameters more if each had some)"),)


def _elements_of(job: "Job", kind: "Kind") -> int:
    """Count the numbers of the blocks' parameters of a kind; 0 where nobody knows them."""
    from brimful.models.config import has_layout, layout_of

    if not has_layout(job.model):
        return 0
    return sum(
        run.num_blocks * sum(p.num_elements for p in run.parameters if p.kind == kind)
        for run in layout_of(job.model).blocks
    )


def _published_facts(job: "Job") -> tuple[Fact, ...]:
    """Say that weights which are published in few bits are not trained on in these."""
    from brimful.models.architectures import record_of

    name = record_of(job.model.model_type).published
    if not name:
        return ()
    stacks = _elements_of(job, "experts")
    size = f", {format_bytes(2 * stacks)} of experts" if stacks else ""
    words = f"as published is for writing; transformers trains on bf16 (dequantize=True){size}"
    return (Fact(name, words),)


def _packed_words(job: "Job", num_bytes: int, asked: "Cluster | None") -> str:
    """Say what all would be by a loader that packs experts, and which GPU has room for that.

    That is the asker's own where it has, of which one is looked at: nothing is shared out here.
    """
    from brimful.cost.estimate import allocatable_bytes, tensor_limit_bytes
    from brimful.search.larger_clusters import cards_for

    words = f"{format_bytes(num_bytes)} at least in all, by a loader that packs experts (Unsloth's)"
    here = 0 if asked is None else tensor_limit_bytes(asked) - num_bytes
    if asked is not None and asked.num_devices == 1 and here > num_bytes / 10:
        return (
            f"{words}: your {asked.device.name} would have {format_bytes(here)} left for "
            f"activations, which is not planned"
        )
    room = ((card, allocatable_bytes(card) - num_bytes) for card in cards_for(job))
    card, left = next(((card, left) for card, left in room if left > num_bytes / 10), (None, 0))
    if card is None:
        return words
    return f"{words}: --gpus {card.name} would leave {format_bytes(left)} then, and is not planned"
