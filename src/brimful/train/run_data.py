"""What a run is trained on and judged by, in the micro-batches of its strategy."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from brimful.build.batch import Batch
from brimful.build.program import Program
from brimful.train.data.prepare import Batches, Summary, prepare
from brimful.train.data.source import as_source
from brimful.train.observers import Observer, Observers
from brimful.train.opening import describe_data
from brimful.train.precomputed import with_reference
from brimful.train.run_folder import Resumed, check_same_data
from brimful.train.settings import RunSettings
from brimful.train.takeover import rows_of, strategies_of
from brimful.train.world import first_alone, is_first, together, told_by_first
from brimful.values.plan import Plan
from brimful.values.strategy import Strategy


class RunData(msgspec.Struct, frozen=True, kw_only=True):
    """What is trained on, and the fixed sample that it is judged by."""

    tokenizer_path: Path | None
    data_hash: str
    batches: Batches
    heldout: list[Batch]
    summary: Summary


def prepare_data(plan: Plan, settings: RunSettings, *, before: Sequence[Strategy] = ()) -> RunData:
    """Read, encode or find again what a plan is trained on.

    ``plan``: says the job, and how many rows run together. ``settings``: where it is, and how much
    it is judged by. ``before``: other strategies of the run: it is judged by one sample, which is
    at least a micro-batch of the first. Raises InputError: it is unusable.
    """
    prepared = prepare(
        as_source(settings.data),
        plan.job,
        micro_batch=plan.strategy.micro_batch,
        cache=settings.cache,
        num_eval_tokens=settings.num_eval_tokens,
        num_judged=max((each.micro_batch for each in before), default=0),
    )
    return RunData(
        tokenizer_path=prepared.tokenizer_path,
        data_hash=prepared.data_hash,
        batches=prepared.batches,
        heldout=prepared.heldout,
        summary=prepared.summary,
    )


def asked(program: Program, data: RunData, settings: RunSettings, observer: Observers) -> RunData:
    """Ask the reference model, where that is done before training."""
    if program.strategy.reference != "precomputed":
        return data
    observer.on_stage("asking the reference model")
    batches, heldout = with_reference(
        program, data.batches, data.heldout, data_hash=data.data_hash, folder=settings.out
    )
    return msgspec.structs.replace(data, batches=batches, heldout=heldout)


def read_data(
    plan: Plan, settings: RunSettings, resumed: Resumed | None, observer: Observer
) -> RunData:
    """Read what is trained on, in the first process; a run that goes on has what it began with."""
    observer.on_stage("reading the data")
    before = told_by_first(strategies_of(rows_of(settings.out)) if is_first() else ())
    data = first_alone(partial(prepare_data, plan, settings, before=before))
    observer.on_message(describe_data(data.summary, plan.job))
    with together():
        if resumed is not None:
            check_same_data(resumed, data.data_hash)
    return data
