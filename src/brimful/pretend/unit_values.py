"""What is said of units of sharding, and of gradients that they leave whole, as values."""

import msgspec

from brimful.values.plan import Word

SET_SYNC, NO_SYNC, EACH_BATCH = "set_requires_gradient_sync", "no_sync", "sync_each_batch"
"""By what gradients are left whole: FSDP2's call, FSDP1's, and what decides it in Accelerate."""


class ByBlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program does whose blocks are units of their own.

    Attributes:
        simulated_peak_reserved_bytes: What the allocator holds at most.
        word: Whether it fits.
    """

    simulated_peak_reserved_bytes: int
    word: Word


class WholeUnit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A unit of FSDP that is most of a model, though blocks repeat in it.

    Attributes:
        call: What sharded it.
        num_parameters: Of it.
        all_parameters: Of all units.
        gathered_bytes: Of parameters that were whole at once, at most.
        reduced_bytes: Of buffers of gradients that were reduced at once, at most.
        block: The class of the blocks.
        path: Where they are, with a star for their numbers.
        num_blocks: How many.
        most_saved_bytes: Of the peak, where each of them is a unit of its own.
        by_block: What was simulated so; None: it was not.
    """

    call: str
    num_parameters: int
    all_parameters: int
    gathered_bytes: int
    reduced_bytes: int
    block: str
    path: str
    num_blocks: int
    most_saved_bytes: int
    by_block: ByBlock | None = None


class WholeGradients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Gradients of sharded parameters that are whole until a later backward pass reduces them.

    Attributes:
        num_bytes: Of those at the peak.
        num_backwards: Backward passes of a step.
        by: The call of the program that leaves them so; empty: not seen.
        reduced_each_bytes: What the allocator would come to hold were each reduced at once; None:
            not replayed.
        reduced_each_fits: Whether the program would complete then; None: not replayed.
    """

    num_bytes: int
    num_backwards: int
    by: str = ""
    reduced_each_bytes: int | None = None
    reduced_each_fits: bool | None = None
