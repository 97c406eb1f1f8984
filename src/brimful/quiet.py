"""Keeping libraries from talking over our own output."""

import logging
import os


def quiet_libraries() -> None:
    """Silence progress bars and notices of torch's profiler, transformers and torchao.

    To be called before they are imported; what the user has set in the environment stays.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    # torchao registers an enum where torch expects none, and torch says so at every import.
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
