"""What one of several devices that share every matrix has of a parameter.

Matrices that read the residual stream are cut by what they give, those that write to it by what
they take, the embedding and the output layer by tokens of the vocabulary; norms, and biases that
are added to the residual stream, are whole. Tested equal to what ``build.parallel.tensor`` makes.
"""

from brimful.models.layout import Parameter, Shape

_WRITING = frozenset({"o_proj", "down_proj"})
"""Layers that write to the residual stream, in every architecture that is cut."""


def piece_shape(parameter: Parameter, tp: int) -> Shape:
    """Return the shape of the first device's piece, which is as large as any.

    ``parameter``: of a decoder that is cut (``parallel.tensor.CUT_DECODERS``), where ``tp`` > 1.
    """
    first, *others = parameter.shape
    if tp == 1 or parameter.kind == "norm":
        return parameter.shape
    if parameter.name.split(".")[-2] not in _WRITING:
        return (-(-first // tp), *others)
    return (first, *(-(-size // tp) for size in others))
