"""Shapes of a model's parameters, for optimizers whose state hangs on more than a count."""

from collections.abc import Sequence

from brimful.models.config import layout_of
from brimful.models.layout import Shape, parts, unnamed_parameters
from brimful.models.spec import ModelSpec

__all__ = ["Shape", "groups_of", "largest_parameter", "parameter_shapes"]


def groups_of(shapes: Sequence[Shape]) -> tuple[list[Shape], list[Shape]]:
    """Return matrices, and the rest: the two groups of an optimizer, of which the first decays."""
    return [s for s in shapes if len(s) > 1], [s for s in shapes if len(s) <= 1]


def parameter_shapes(spec: ModelSpec) -> list[Shape]:
    """List the shape of every parameter, a tied one once.

    In the order of ``Module.parameters()``, since buckets of masters are filled in that order.

    Raises UnsupportedError: the architecture has no layout.
    """
    return [parameter.shape for parameter in unnamed_parameters(layout_of(spec))]


def largest_parameter(spec: ModelSpec) -> int:
    """Count the numbers of the largest parameter."""
    return max(each.num_elements for some, _ in parts(layout_of(spec)) for each in some)
