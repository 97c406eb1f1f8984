"""AdamW whose moments are held in fp8 (e4m3): torchao's, compiled.

State: a byte for each moment and an fp32 scale for 256 of them; see ``low_bit``.
"""

from brimful.techniques.optimizers.low_bit import Format, in_few_bits

EIGHT_BITS = Format(block=256, is_packed=False, widened_bytes={"cpu": 0, "cuda": 0})

ADAMW_FP8 = in_few_bits(
    "adamw-fp8",
    "two moments of a byte (fp8), scales per 256",
    "``torchao/optim`` (0.18)",
    EIGHT_BITS,
    also=("adamw-torch-fp8",),
)
