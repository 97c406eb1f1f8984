"""AdamW, the rule that several optimizers here are kernels and formats of.

    m <- beta1 m + (1 - beta1) g
    v <- beta2 v + (1 - beta2) g^2
    w <- w - rate (decay w + m' / (root(v') + epsilon)),    m' and v' corrected for their start

Source: Loshchilov and Hutter 2019, arXiv:1711.05101.
"""

from typing import Any

from brimful.techniques.optimizers.base import Kept, Optimizer, Updated


def moments_of(parameter: Updated) -> tuple[Kept, Kept]:
    """Return both moments in the type of the parameter."""
    return Kept("exp_avg", parameter.shape), Kept("exp_avg_sq", parameter.shape)


def two_moments(name: str, **fields: Any) -> Optimizer:
    """Return the record of one of them.

    ``fields``: others of ``Optimizer``.
    """
    return Optimizer(name=name, words="AdamW", **fields)
