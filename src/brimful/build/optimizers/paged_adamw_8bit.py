"""AdamW in 8 bits whose moments are paged: bitsandbytes; see ``blockwise``."""

from brimful.build.optimizers.blockwise import build

__all__ = ["build"]
