"""What a run is trained on and judged by, in the micro-batches of its strategy."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from brimful.build.batch import Batch
from brimful.build.program import Program
from brimful.train.data.prepare import Batches, Summary, prepare
from brimful.train.data.source import as_source
from brimful.train.observers import Observers
from brimful.train.precomputed import with_reference
from brimful.train.settings import RunSettings
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

    Args:
        plan: Says the job, and how many rows run together.
        settings: Where it is, and how much it is judged by.
        before: Other strategies of the run: it is judged by one sample, which is at least a
            micro-batch of the first.

    Raises:
        InputError: It is unusable.
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
