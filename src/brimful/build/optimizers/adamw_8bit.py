"""AdamW whose moments are held in 8 bits: bitsandbytes; see ``blockwise``."""

from brimful.build.optimizers.blockwise import build

__all__ = ["build"]
