"""What torchtitan and PyTorch did at the dates of published runs, and the settings of one run.

Owns the "as it was" switches, by date. Knows nothing of how they are carried out.

Sources, all public. torchtitan at the commits that the rows name, ``run_train.sh``, and its pull
requests 165 (FSDP2, March 2024), 181 and 297 (fused norm, default until May 2024), 391 (logits
dropped before the backward pass, June 2024), 737 (what ``record_stream`` costs), 985 (the norm of
early 2025), 1094 (embedding and head as units, June 2025). pytorch/pytorch pull requests 129721
(gradients copied in on the default stream, July 2024) and 154704 (a root that may reshard, June
2025).
"""

from typing import Literal

import msgspec
from torchtitan_model import COMPLEX, COMPOSED, FUSED, HALVES, Program
from torchtitan_parallel import Engine

MARCH_2024_ROTARY_TOKENS = 65536
"""Twice the longest sequence that the model of early 2024 allowed for."""
LAUNCH_QUEUE = 1024
"""Kernels that a host can be ahead of the device: the depth of a CUDA launch queue."""


class Era(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The code of one date.

    Attributes:
        engine: How FSDP2, checkpointing and tensor parallelism worked.
        norm: How the norm was written: ``composed`` or ``fused``.
        folded: Whether batch and tokens were one dimension inside the model.
        rotary_tokens: Rows of the rotary table; None: as many as tokens.
        float_logits: Whether the model widened its logits; if not, the loss does.
        keeps_logits: Whether the loop still holds the logits in the backward pass.
        optimizer: AdamW's implementation.
        records_streams: Whether collectives of tensor parallelism call ``record_stream`` on their
            inputs and outputs, as ``ProcessGroupNCCL`` did by default until 2025.
    """

    engine: Engine
    norm: Literal["composed", "fused"]
    folded: bool
    rotary_tokens: int | None
    float_logits: bool
    keeps_logits: bool
    optimizer: Literal["foreach", "fused"]
    records_streams: bool


class Setup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of one run.

    Attributes:
        model: A model of ``torchtitan_model.MODELS``.
        era: A date of ``ERAS``.
        dp: Data-parallel degree, fully sharded.
        tp: Tensor-parallel degree, with sequence parallelism and a parallel loss.
        checkpointing: ``none``, ``full``, ``selective-op`` or ``selective-layer:N``.
        micro_batch: Sequences a GPU (or tensor-parallel group) works on at once.
        tokens: Tokens of a sequence.
        expandable: Whether the launcher set ``expandable_segments:True``.
        usable_gib: What the card can give, in GiB.
        sharding: ``fsdp2``, or ``fsdp1`` for the flat-parameter engine before it.
    """

    model: str
    era: str
    dp: int
    tp: int
    checkpointing: str
    micro_batch: int
    tokens: int
    expandable: bool
    usable_gib: float
    sharding: Literal["fsdp2", "fsdp1"] = "fsdp2"


def program(era: Era, setup: Setup) -> Program:
    """Return how the model of ``setup`` was written in ``era``."""
    return Program(
        norm=era.norm,
        rotary=HALVES if setup.model.startswith("qwen3") else COMPLEX,
        folded=era.folded,
        rotary_tokens=era.rotary_tokens or setup.tokens,
        float_logits=era.float_logits,
    )


_MARCH_2024 = Era(
    engine=Engine(
        separate_ends=False,
        root_resharded=False,
        copy_in_aside=True,
        keeps_reduce_scatter=False,
    ),
    norm=COMPOSED,
    folded=True,
    rotary_tokens=MARCH_2024_ROTARY_TOKENS,
    float_logits=True,
    keeps_logits=True,
    optimizer="foreach",
    records_streams=True,
)
_DECEMBER_2024 = msgspec.structs.replace(
    _MARCH_2024,
    engine=Engine(
        separate_ends=False,
        root_resharded=False,
        copy_in_aside=False,
        keeps_reduce_scatter=True,
    ),
    folded=False,
    rotary_tokens=None,
    float_logits=False,
    keeps_logits=False,
)
_JULY_2024 = msgspec.structs.replace(_DECEMBER_2024, float_logits=True, norm=FUSED)
_MAY_2025 = msgspec.structs.replace(_DECEMBER_2024, optimizer="fused", records_streams=False)
_SEPTEMBER_2025 = msgspec.structs.replace(
    _MAY_2025,
    engine=Engine(
        separate_ends=True,
        root_resharded=True,
        copy_in_aside=False,
        keeps_reduce_scatter=True,
    ),
    norm=FUSED,
)
ERAS = {
    "2024-03": _MARCH_2024,
    "2024-07": _JULY_2024,
    "2024-12": _DECEMBER_2024,
    "2025-05": _MAY_2025,
    "2025-09": _SEPTEMBER_2025,
}
"""By the month from which on the code was like that, as far as the rows need it."""
