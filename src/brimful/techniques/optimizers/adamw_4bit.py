"""AdamW whose moments are held in four bits: torchao's, compiled.

State: half a byte for each moment and an fp32 scale for 128 of them; see ``low_bit``.
"""

from brimful.techniques.optimizers.low_bit import Format, in_few_bits

FOUR_BITS = Format(block=128, is_packed=True, widened_bytes={"cpu": 26, "cuda": 24})

ADAMW_4BIT = in_few_bits(
    "adamw-4bit",
    "two moments of half a byte, scales per 128",
    "Li et al. 2023, arXiv:2309.01507; ``torchao/optim`` (0.18)",
    FOUR_BITS,
    also=("adamw4bit", "adamw-torch-4bit"),
)
