"""Profiles on demand: what a job needs that does not ship is traced once and kept.

Shared by whoever predicts; what is asked for decides what is traced.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter

import msgspec

from brimful.build.layout import read_model
from brimful.cost.own_programs import Need, chosen_program, missing_needs
from brimful.cost.profiles import Body, has_profile, keep_profile, load_profile
from brimful.cost.programs import Kernels
from brimful.errors import UnsupportedError
from brimful.job import Job
from brimful.models.traced import BuiltModel, find_built, keep_built
from brimful.simulate.own_profile import OwnProgram, with_variants
from brimful.simulate.runs import UnlikeShapesError
from brimful.strategy import Attention, Strategy
from brimful.traced_files import keep_traced, read_traced


def trace_needs(
    job: Job,
    attention: Attention,
    kernels: Kernels,
    needs: Sequence[Need],
    *,
    on_progress: Callable[[float], None],
) -> None:
    """Trace what is needed and was not traced before.

    Args:
        job: What is trained.
        attention: How the model attends.
        kernels: Whose kernels run.
        needs: Variants.
        on_progress: Called with the share that is done.

    Raises:
        UnsupportedError: No formula gives what the job allocates.
    """
    built = _built(job, attention)
    missing = missing_needs(job, attention, kernels, needs)
    num_bodies = len({need[:3] for need in missing})
    done = 0

    def tell() -> None:
        nonlocal done
        done += 1
        on_progress(done / num_bodies)

    for (gathers, recompute), some in groupby(missing, attrgetter("gathers", "recompute")):
        wanted: dict[Body, frozenset[int]] = {}
        for need in some:
            wanted[need.body] = wanted.get(need.body, frozenset()) | {need.num_chunks}
        program = chosen_program(job, attention, kernels, recompute, gathers=gathers)
        known = load_profile(program.key) if has_profile(program.key) else None
        own = OwnProgram(program, job, built, gathers)
        _check_refused(program.key)
        try:
            keep_profile(with_variants(known, own, wanted, tell))
        except UnlikeShapesError:
            keep_built(job.model, msgspec.structs.replace(built, loops=True))
            trace_needs(job, attention, kernels, needs, on_progress=on_progress)
            return
        except UnsupportedError as error:
            keep_traced(_refusal_of(program.key), str(error))
            raise


def _refusal_of(key: str) -> str:
    return f"{key}.refused"


def _check_refused(key: str) -> None:
    """Refuse at once what was traced before, and had no formula."""
    refused = read_traced(_refusal_of(key), str)
    if refused is not None:
        raise UnsupportedError(refused)


def _built(job: Job, attention: Attention) -> BuiltModel:
    """Return what a job's model is when it is built, from an earlier time if there was one."""
    built = find_built(job.model)
    if built is None:
        full = msgspec.structs.replace(job, method="full", adapter=None, weights=None)
        plain = Strategy(
            micro_batch=1, activation_checkpointing="none", loss_chunks=1, attention=attention
        )
        built = read_model(full, plain)
        keep_built(job.model, built)
    return built
