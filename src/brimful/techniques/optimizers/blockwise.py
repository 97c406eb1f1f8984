"""What bitsandbytes' AdamW share: moments in blocks of 8 bits or whole, on a GPU or paged.

The update is AdamW's on moments that are widened block by block and rounded again.

State in 8 bits: 2 bytes per parameter and 8 per block of 256; of tensors below 4096 elements two
fp32 moments. The two tables of 256 values, which all parameters share, are left out. Of what is
paged, moments of tensors from 100,000 elements on are in CUDA's managed memory, their scales not.

Source: ``get_state_buffer`` and ``init_state`` of ``bitsandbytes/optim/optimizer.py`` (0.50).
"""

from brimful.techniques.optimizers.base import (
    FP32_BYTES,
    Kept,
    Settings,
    State,
    StateType,
    Updated,
    counted,
)

BLOCK, LEAST = 256, 4096
"""Values that share a scale, and the smallest tensor that is quantised."""
LEAST_PAGED = 100_000
"""The smallest tensor whose moments are paged."""


def rounded_state(parameter: Updated, _settings: Settings) -> tuple[Kept, ...]:
    """Return moments in 8 bits with their scales."""
    if parameter.num < LEAST:
        return whole_state(parameter, _settings)
    blocks = (-(-parameter.num // BLOCK),)
    scales = (Kept("absmax", blocks, "fp32"), Kept("absmax_sq", blocks, "fp32"))
    return counted(on_host=True), *_moments(parameter, "uint8"), *scales


def whole_state(parameter: Updated, _settings: Settings) -> tuple[Kept, ...]:
    """Return moments in fp32, whatever the parameter's type is."""
    return counted(on_host=True), *_moments(parameter, "fp32")


def _moments(parameter: Updated, kind: StateType) -> tuple[Kept, Kept]:
    return Kept("exp_avg", parameter.shape, kind), Kept("exp_avg_sq", parameter.shape, kind)


def paged(state: State) -> State:
    """Return what is kept where moments of large tensors are paged; on a CPU they are not."""

    def kept_of(parameter: Updated, settings: Settings) -> tuple[Kept, ...]:
        every = state(parameter, settings)
        if settings.kernels != "cuda" or parameter.num < LEAST_PAGED:
            return every
        return tuple(kept._replace(is_paged=kept.shape == parameter.shape) for kept in every)

    return kept_of


def beside_rounded(parameter: Updated, settings: Settings) -> tuple[int, ...]:
    """Both moments, the gradient and a 16-bit parameter widened, and two roots, on a CPU.

    CUDA's kernel works in registers. Source: ``bitsandbytes/backends/cpu/ops.py``.
    """
    return _widened(5, parameter, settings)


def beside_whole(parameter: Updated, settings: Settings) -> tuple[int, ...]:
    """The gradient and a 16-bit parameter widened, and two roots, on a CPU; see above."""
    return _widened(3, parameter, settings)


def _widened(num_copies: int, parameter: Updated, settings: Settings) -> tuple[int, ...]:
    if settings.kernels == "cuda" or parameter.num < LEAST:
        return ()
    copies = num_copies + (settings.num_bytes < FP32_BYTES)
    return (copies * parameter.num * FP32_BYTES,)
