"""torch's Adafactor: of a matrix's second moment only the means of its rows and columns are kept.

    r <- beta r + (1 - beta) mean of g^2 over columns        c likewise over rows
    u = g / root(r c / mean of r),  made no larger than root mean square 1
    w <- w - rate (decay w + u)

State: a count of steps on the host; of a matrix its rows' and its columns' means, of a stack of
matrices those of each, of anything else every value's mean square.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

from brimful.techniques.optimizers.base import (
    Kept,
    Moment,
    Optimizer,
    Settings,
    Spelled,
    Updated,
    counted,
)


def _state(parameter: Updated, _settings: Settings) -> tuple[Kept, ...]:
    shape = parameter.shape
    if len(shape) <= 1:
        return counted(on_host=True), Kept("variance", shape)
    rows, columns = (*shape[:-1], 1), (*shape[:-2], 1, shape[-1])
    return counted(on_host=True), Kept("row_var", rows), Kept("col_var", columns)


def _moments(parameters: Sequence[Updated], settings: Settings) -> Iterator[Moment]:
    """The estimate of one parameter's moment is made beside its predecessor's, still bound.

    And beside the means or squares of its own gradient (``_single_tensor_adafactor``). Before it
    the squares of columns are added up, for which CUDA's blocks of threads leave partial results;
    the predecessor's means of columns are bound until then.
    """
    element = settings.num_bytes
    before = [0, *(each.num * element for each in parameters)]
    columns = 0
    for (bound, now), each in zip(pairwise(before), parameters, strict=True):
        kept = tuple(prod(tensor.shape) * element for tensor in _state(each, settings)[1:])
        if len(each.shape) > 1:
            partial = settings.partial_sums(each.shape, len(each.shape) - 2)
            yield Moment((*kept, partial), bound + columns)
            columns = kept[-1]
        yield Moment((*kept, now), bound)


ADAFACTOR = Optimizer(
    name="adafactor",
    words="Adafactor",
    keeps="means of rows and columns",
    source="Shazeer and Stern 2018, arXiv:1804.04235; ``torch/optim/_adafactor.py``",
    state=_state,
    moments=_moments,
    rates=frozenset(),
    keeps_by_number=False,
    on_host=True,
    hangs_on_chip=True,
    transformers=Spelled("adafactor", "optimizer", "adafactor is another implementation"),
)
