"""What is done block by block, and so not to a model whose body is no row of blocks."""

from collections.abc import Iterator

from brimful.errors import UnsupportedError
from brimful.models.traced import find_built
from brimful.techniques.offload import NONE, OPTIMIZER
from brimful.values.job import Job
from brimful.values.strategy import Strategy, num_checkpointed, recompute_of, what_is_away


def check_built_unit(job: Job, strategy: Strategy) -> None:
    """Refuse the same of a model that was built before; of another nobody knows yet.

    Raises UnsupportedError: as ``check_unit``.
    """
    built = find_built(job.model)
    if built is not None and not built.kinds:
        check_unit(job, strategy, recomputes=built.again)


def check_unit(job: Job, strategy: Strategy, *, recomputes: bool) -> None:
    """Refuse what is done block by block to a body that is one unit.

    ``recomputes``: whether its class can recompute parts of it, which it does all or none.
    """
    for field, instead in _one_by_one(job, strategy, recomputes=recomputes):
        raise UnsupportedError(
            f"{field}={getattr(strategy, field)} goes block by block, and the body of "
            f"{job.model.name} is one unit, as no list of blocks of type {job.model.model_type} "
            f"runs one after the other; use {field}={instead}",
            nearest={field: instead},
        )


def _one_by_one(
    job: Job, strategy: Strategy, *, recomputes: bool
) -> Iterator[tuple[str, str | int]]:
    """Yield the fields that ask for it, each with what can be asked for."""
    num_layers = job.model.num_layers
    again = num_checkpointed(strategy, num_layers=num_layers)
    is_whole = again == num_layers and recompute_of(strategy) == "full"
    if again and not (recomputes and is_whole):
        yield "activation_checkpointing", "full" if recomputes else "none"
    for degree in ("pp", "tp"):
        if getattr(strategy, degree) > 1:
            yield degree, 1
    away = what_is_away(job, strategy)
    if away.parameters or away.activations:
        yield "offload", OPTIMIZER if away.optimizer else NONE
    if strategy.compile != "none":
        yield "compile", "none"
