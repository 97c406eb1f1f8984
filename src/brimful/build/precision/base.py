"""What every precision technique is made of."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch


class Technique(NamedTuple):
    """How a recipe holds its parameters and computes with them.

    Attributes:
        held: The type that parameters are held in, and their gradients with them.
        forward: Makes the context of one micro-batch's forward pass on a device.
        products: Makes the context of a whole micro-batch, backward included.
        has_masters: Whether the optimizer keeps an fp32 copy of every 16-bit parameter and updates
            that (``masters.py``).
    """

    held: torch.dtype
    forward: Callable[[torch.device], AbstractContextManager[None]]
    products: Callable[[], AbstractContextManager[None]]
    has_masters: bool
