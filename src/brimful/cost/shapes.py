"""Shapes of a model's parameters, for optimizers whose state hangs on more than a count."""

from collections.abc import Sequence

from brimful.models.config import layout_of
from brimful.models.layout import Shape, parts, unnamed_parameters
from brimful.models.spec import ModelSpec
from brimful.techniques.optimizers import Updated

__all__ = ["Shape", "groups_of", "largest_parameter", "parameter_shapes"]


def groups_of(parameters: Sequence[Updated]) -> tuple[list[Updated], ...]:
    """Return parameters as an optimizer groups them: matrices, which decay, then the rest.

    Where its rule tells matrices of blocks from others these come first.

    ``parameters``: in the order of ``Module.parameters()``.
    """
    others = [each for each in parameters if not each.is_hidden]
    return (
        [each for each in parameters if each.is_hidden],
        [each for each in others if len(each.shape) > 1],
        [each for each in others if len(each.shape) <= 1],
    )


def parameter_shapes(spec: ModelSpec) -> list[Shape]:
    """List the shape of every parameter, a tied one once.

    In the order of ``Module.parameters()``, since buckets of masters are filled in that order.

    Raises UnsupportedError: the architecture has no layout.
    """
    return [parameter.shape for parameter in unnamed_parameters(layout_of(spec))]


def largest_parameter(spec: ModelSpec) -> int:
    """Count the numbers of the largest parameter."""
    return max(each.num_elements for some, _ in parts(layout_of(spec)) for each in some)
