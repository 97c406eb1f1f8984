"""AdamW whose fp32 moments are paged: bitsandbytes; see ``blockwise``."""

from brimful.build.optimizers.blockwise import build

__all__ = ["build"]
