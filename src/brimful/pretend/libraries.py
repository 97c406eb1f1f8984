"""Libraries of operator implementations, which PyTorch drops as soon as nobody holds them."""

import torch

_OPEN: list[torch.library.Library] = []


def library(dispatch_key: str, namespace: str = "aten") -> torch.library.Library:
    """Open an implementation library that lives as long as the process."""
    _OPEN.append(torch.library.Library(namespace, "IMPL", dispatch_key))
    return _OPEN[-1]
