"""AdamW whose moments are held in 8 bits, each block of 256 with its own scale: bitsandbytes.

The update is AdamW's on moments that are widened block by block and rounded again.

State: 2 bytes per parameter and 8 per block of 256; of tensors below 4096 elements two fp32
moments. The two tables of 256 values, which all parameters share, are left out.
"""

from brimful.techniques.optimizers.base import (
    FP32_BYTES,
    Kept,
    Like,
    Settings,
    Spelled,
    StateType,
    Updated,
    counted,
    one_by_one,
)
from brimful.techniques.optimizers.two_moments import two_moments

BLOCK, LEAST = 256, 4096
"""Values that share a scale, and the smallest tensor that is quantised."""


def _state(parameter: Updated, _settings: Settings) -> tuple[Kept, ...]:
    shape, blocks = parameter.shape, (-(-parameter.num // BLOCK),)
    is_small = parameter.num < LEAST
    codes: StateType = "fp32" if is_small else "uint8"
    scales = () if is_small else (Kept("absmax", blocks, "fp32"), Kept("absmax_sq", blocks, "fp32"))
    return (
        counted(on_host=True),
        Kept("exp_avg", shape, codes),
        Kept("exp_avg_sq", shape, codes),
        *scales,
    )


def _beside(parameter: Updated, settings: Settings) -> tuple[int, ...]:
    """Both moments, the gradient and a 16-bit parameter widened, and two roots, on a CPU.

    CUDA's kernel works in registers. Source: ``bitsandbytes/backends/cpu/ops.py``.
    """
    if settings.kernels == "cuda" or parameter.num < LEAST:
        return ()
    widened = 5 + (settings.num_bytes < FP32_BYTES)
    return (widened * parameter.num * FP32_BYTES,)


ADAMW_8BIT = two_moments(
    "adamw-8bit",
    keeps="two moments of a byte, scales per 256",
    source="Dettmers et al. 2022, arXiv:2110.02861; ``bitsandbytes/optim/optimizer.py``",
    state=_state,
    moments=one_by_one(_beside),
    shards="local",
    rounds=True,
    transformers=Spelled(
        "adamw_bnb_8bit",
        "optimizer",
        "adamw_bnb_8bit is another implementation",
        is_same=False,
        # a GPU that is full would send pages of the paged one's state to the host
        reads=("adamw8bit", "adamw_8bit", "adamw_torch_8bit", "paged_adamw_8bit"),
    ),
    likes=(
        Like(
            (
                "ademamix-8bit",
                "lion-8bit",
                "paged-ademamix-8bit",
                "paged-lion-8bit",
                "rmsprop-bnb-8bit",
            ),
            "one number a parameter in 8 bits",
            "8-bit AdamW keeps two, a byte a parameter more",
        ),
        Like(
            (
                "apollo",
                "apollo-adamw",
                "apollo-mini",
                "galore",
                "galore-adafactor",
                "galore-adamw",
                "galore-adamw-8bit",
                "q-galore",
            ),
            "moments in a subspace of each matrix",
            "8-bit moments are about as small, and the gradients stay whole in both",
        ),
        Like(
            ("apollo-adamw-layerwise", "galore-adamw-8bit-layerwise", "galore-adamw-layerwise"),
            "moments in a subspace of each matrix, updated inside the backward pass",
            "8-bit moments are about as small, and --optimizer-in-backward --clip 0 with one "
            "micro-batch a step lets gradients go as early",
        ),
    ),
)
