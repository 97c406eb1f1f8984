"""Shapes of a model's parameters, for optimizers whose state hangs on more than a count."""

from collections.abc import Sequence

from brimful.models.config import layout_of
from brimful.models.layout import Shape, all_parameters
from brimful.models.spec import ModelSpec

__all__ = ["Shape", "groups_of", "parameter_shapes"]


def groups_of(shapes: Sequence[Shape]) -> tuple[list[Shape], list[Shape]]:
    """Return matrices, and the rest: the two groups of an optimizer, of which the first decays."""
    return [s for s in shapes if len(s) > 1], [s for s in shapes if len(s) <= 1]


def parameter_shapes(spec: ModelSpec) -> list[Shape]:
    """List the shape of every parameter, a tied one once.

    In the order of ``Module.parameters()``, since buckets of masters are filled in that order.

    Raises:
        UnsupportedError: The architecture has no layout.
    """
    return [parameter.shape for parameter in all_parameters(layout_of(spec))]
